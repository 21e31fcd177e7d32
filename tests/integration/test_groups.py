"""Consumer groups of stock clients: members share what there is, go on where the last one was, and do not notice when
their coordinator is killed."""

import gc
import logging
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient
from tests.integration import kafka_clients
from tests.integration.group_clusters import PARTITIONS, committed, coordinator_of, fill, make, moved, values_of
from tests.integration.group_members import (
    MEMBERS,
    AioKafka,
    Confluent,
    KafkaPython,
    running,
    shared,
    wait_until,
)
from tests.integration.programs import cluster_of, settings_for

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, Brokers, running_brokers

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def clients_are_gone() -> Iterator[None]:
    """kafka-python does not close its connections to a broker that was killed: that is said here, and not later. What
    it logs holds them, too."""
    logging.getLogger("kafka").disabled = True
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("kafka."):
            logging.getLogger(name).disabled = True
    yield
    gc.collect()


@pytest.fixture(scope="module", params=[*dict.fromkeys((*settings_for("one-sqlite"), *settings_for("three-oxia-s3")))])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of(request.param, tmp_path_factory)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("client", list(MEMBERS))
def test_members_share_and_the_next_one_goes_on(cluster: Brokers, client: str, topic: str, group: str) -> None:
    make(cluster.bootstrap, topic)
    values = fill(cluster.bootstrap, topic, 40)
    two = [MEMBERS[client](cluster.bootstrap, group, topic) for _ in range(2)]
    with running(two):
        wait_until("both have a share", lambda: shared(two, PARTITIONS), two)
        wait_until("all is read", lambda: set(values_of(*two)) == values, two)
        more = fill(cluster.bootstrap, topic, 40, start=40)
        wait_until("the rest is read", lambda: set(values_of(*two)) == values | more, two)
    assert committed(cluster.bootstrap, group, topic) == [20] * PARTITIONS
    last = fill(cluster.bootstrap, topic, 8, start=80)
    one = MEMBERS[client](cluster.bootstrap, group, topic)
    with running([one]):
        wait_until("what was not read yet is read", lambda: len(one.read) >= 8, [one])
    assert set(values_of(one)) == last, "what was committed is not read again"


@pytest.mark.parametrize("client", list(MEMBERS))
def test_when_one_leaves_the_other_has_all(cluster: Brokers, client: str, topic: str, group: str) -> None:
    make(cluster.bootstrap, topic)
    stays, leaves = (MEMBERS[client](cluster.bootstrap, group, topic) for _ in range(2))
    with stays:
        with leaves:
            wait_until("both have a share", lambda: shared([stays, leaves], PARTITIONS), [stays, leaves])
        left_at = time.monotonic()
        wait_until("one has all", lambda: shared([stays], PARTITIONS), [stays])
    assert time.monotonic() - left_at < 9.5, "it was told, and need not wait for the session to end"


def test_clients_of_all_kinds_in_one_group(cluster: Brokers, topic: str, group: str) -> None:
    make(cluster.bootstrap, topic)
    values = fill(cluster.bootstrap, topic, 100)
    members = [kind(cluster.bootstrap, group, topic) for kind in (Confluent, KafkaPython, AioKafka, Confluent)]
    with running(members):
        wait_until("each has one", lambda: shared(members, PARTITIONS), members)
        more = fill(cluster.bootstrap, topic, 100, start=100)
        wait_until("all is read", lambda: set(values_of(*members)) == values | more, members)


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_a_static_member_comes_back_and_nobody_notices(cluster: Brokers, client: str, topic: str, group: str) -> None:
    make(cluster.bootstrap, topic)
    stays = MEMBERS[client](cluster.bootstrap, group, topic)
    first, second = (MEMBERS[client](cluster.bootstrap, group, topic, instance="one") for _ in range(2))
    with stays:
        with first:
            wait_until("both have a share", lambda: shared([stays, first], PARTITIONS), [stays, first])
            share, given = first.assigned, len(stays.assignments)
        with second:
            wait_until("it is back", lambda: bool(second.assigned), [stays, second])
            assert second.assigned == share
            assert len(stays.assignments) == given, "the other one was not disturbed"


def test_groups_are_listed_described_and_deleted(cluster: Brokers, topic: str, group: str) -> None:
    make(cluster.bootstrap, topic)
    fill(cluster.bootstrap, topic, 4)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    member = Confluent(cluster.bootstrap, group, topic)
    with member:
        wait_until("all is read", lambda: len(member.read) == 4, [member])
        described = admin.describe_consumer_groups([group])[group].result(60)
        assert described.state == ConsumerGroupState.STABLE
        (one,) = described.members
        assert {where.partition for where in one.assignment.topic_partitions} == set(range(PARTITIONS))
        assert one.member_id == member.identity()[0]
        listed = admin.list_consumer_groups().result()
        assert not listed.errors
        assert [found.state for found in listed.valid if found.group_id == group] == [ConsumerGroupState.STABLE]
        with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([group])[group].result(60)
    admin.delete_consumer_groups([group])[group].result(60)
    assert group not in {found.group_id for found in admin.list_consumer_groups().result().valid}
    assert committed(cluster.bootstrap, group, topic) == [-1001] * PARTITIONS


def test_a_topic_that_is_made_anew_is_read_from_its_start(cluster: Brokers, topic: str, group: str) -> None:
    def read_all() -> None:
        make(cluster.bootstrap, topic)
        values = fill(cluster.bootstrap, topic, 8)
        member = Confluent(cluster.bootstrap, group, topic)
        with member:
            wait_until("all is read", lambda: set(values_of(member)) == values, [member])
        assert committed(cluster.bootstrap, group, topic) == [2] * PARTITIONS

    read_all()
    kafka_clients.Confluent(cluster.bootstrap).delete_topic(topic)
    read_all()


@pytest.mark.parametrize("stores", [SQLITE_AND_DISK, OXIA_AND_S3])
def test_a_coordinator_is_killed_and_nobody_notices(stores: str, tmp_path: Path, topic: str, group: str) -> None:
    """Same members, same generation, same shares; and all that is sent meanwhile is read."""
    with running_brokers(tmp_path, 3, stores) as cluster:
        make(cluster.bootstrap, topic)
        values = fill(cluster.bootstrap, topic, 40)
        members = [kind(cluster.bootstrap, group, topic) for kind in (Confluent, KafkaPython, AioKafka)]
        with running(members):
            wait_until("each has a share", lambda: shared(members, PARTITIONS), members)
            wait_until("all is read", lambda: set(values_of(*members)) == values, members)
            before = [(member.identity(), len(member.assignments)) for member in members]
            coordinator = coordinator_of(cluster, group)
            cluster[coordinator].kill()
            killed_at = time.monotonic()
            left = ",".join(broker.address for broker in cluster if broker.is_running)
            wait_until("another one coordinates", lambda: moved(left, group, cluster, coordinator), members)
            more = fill(left, topic, 40, start=40)
            wait_until("all is read", lambda: set(values_of(*members)) == values | more, members)
            wait_until("all is committed", lambda: committed(left, group, topic) == [20] * PARTITIONS, members)
            print(f"{stores}: read and committed {time.monotonic() - killed_at:.1f} s after the kill")
            assert [(member.identity(), len(member.assignments)) for member in members] == before
            admin = AdminClient({"bootstrap.servers": left})  # it has to outlive the call
            described = admin.describe_consumer_groups([group])[group].result(60)
            assert described.state == ConsumerGroupState.STABLE
            assert len(described.members) == 3
