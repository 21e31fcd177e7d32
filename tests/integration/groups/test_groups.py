"""Consumer groups of stock clients: members share partitions, continue from committed offsets, and are not affected
when their coordinator is killed."""

import gc
import logging
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState
from confluent_kafka.admin import AdminClient
from tests.harness.clients import kafka_clients
from tests.harness.clients.group_clusters import (
    PARTITIONS,
    committed_offsets,
    coordinator_moved,
    coordinator_of,
    create_topic,
    fill,
    values_of,
)
from tests.harness.clients.group_members import (
    MEMBERS,
    AioKafka,
    Confluent,
    KafkaPython,
    is_balanced,
    running,
    wait_until,
)
from tests.harness.clients.programs import running_cluster, settings_for

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, BrokerProcesses, running_brokers

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def clients_are_collected() -> Iterator[None]:
    """Collects the connections that kafka-python does not close when a broker is killed, so that warnings come here.

    Log records would hold references to them."""
    logging.getLogger("kafka").disabled = True
    for name in list(logging.root.manager.loggerDict):
        if name.startswith("kafka."):
            logging.getLogger(name).disabled = True
    yield
    gc.collect()


@pytest.fixture(scope="module", params=[*dict.fromkeys((*settings_for("one-sqlite"), *settings_for("three-oxia-s3")))])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster(request.param, tmp_path_factory)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


@pytest.mark.parametrize("client", list(MEMBERS))
def test_members_share_partitions_and_a_later_member_continues_from_committed_offsets(
    cluster: BrokerProcesses, client: str, topic: str, group: str
) -> None:
    create_topic(cluster.bootstrap, topic)
    values = fill(cluster.bootstrap, topic, 40)
    members = [MEMBERS[client](cluster.bootstrap, group, topic) for _ in range(2)]
    with running(members):
        wait_until("both members have partitions", lambda: is_balanced(members, PARTITIONS), members)
        wait_until("all records are read", lambda: set(values_of(*members)) == values, members)
        more = fill(cluster.bootstrap, topic, 40, start=40)
        wait_until("the new records are read", lambda: set(values_of(*members)) == values | more, members)
    assert committed_offsets(cluster.bootstrap, group, topic) == [20] * PARTITIONS
    last = fill(cluster.bootstrap, topic, 8, start=80)
    later = MEMBERS[client](cluster.bootstrap, group, topic)
    with running([later]):
        wait_until("the new records are read", lambda: len(later.read) >= 8, [later])
    assert set(values_of(later)) == last, "a new member must not read records again whose offsets are committed"


@pytest.mark.parametrize("client", list(MEMBERS))
def test_remaining_member_gets_all_partitions_when_the_other_leaves(
    cluster: BrokerProcesses, client: str, topic: str, group: str
) -> None:
    create_topic(cluster.bootstrap, topic)
    stays, leaves = (MEMBERS[client](cluster.bootstrap, group, topic) for _ in range(2))
    with stays:
        with leaves:
            wait_until(
                "both members have partitions", lambda: is_balanced([stays, leaves], PARTITIONS), [stays, leaves]
            )
        left_at = time.monotonic()
        wait_until("the remaining member has all partitions", lambda: is_balanced([stays], PARTITIONS), [stays])
    assert time.monotonic() - left_at < 9.5, "the member left the group, so the session timeout does not apply"


def test_members_of_different_clients_share_one_group(cluster: BrokerProcesses, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap, topic)
    values = fill(cluster.bootstrap, topic, 100)
    members = [kind(cluster.bootstrap, group, topic) for kind in (Confluent, KafkaPython, AioKafka, Confluent)]
    with running(members):
        wait_until("each member has a partition", lambda: is_balanced(members, PARTITIONS), members)
        more = fill(cluster.bootstrap, topic, 100, start=100)
        wait_until("all records are read", lambda: set(values_of(*members)) == values | more, members)


@pytest.mark.parametrize("client", ["confluent-kafka", "kafka-python", "aiokafka"])
def test_returning_static_member_keeps_its_partitions_without_a_rebalance(
    cluster: BrokerProcesses, client: str, topic: str, group: str
) -> None:
    create_topic(cluster.bootstrap, topic)
    stays = MEMBERS[client](cluster.bootstrap, group, topic)
    first, second = (MEMBERS[client](cluster.bootstrap, group, topic, instance="static") for _ in range(2))
    with stays:
        with first:
            wait_until("both members have partitions", lambda: is_balanced([stays, first], PARTITIONS), [stays, first])
            partitions, assignments = first.assigned, len(stays.assignments)
        with second:
            wait_until("the static member is back", lambda: bool(second.assigned), [stays, second])
            assert second.assigned == partitions
            assert len(stays.assignments) == assignments, "the other member was not rebalanced"


def test_groups_are_listed_described_and_deleted(cluster: BrokerProcesses, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap, topic)
    fill(cluster.bootstrap, topic, 4)
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    member = Confluent(cluster.bootstrap, group, topic)
    with member:
        wait_until("all records are read", lambda: len(member.read) == 4, [member])
        described = admin.describe_consumer_groups([group])[group].result(60)
        assert described.state == ConsumerGroupState.STABLE
        (described_member,) = described.members
        assert {partition.partition for partition in described_member.assignment.topic_partitions} == set(
            range(PARTITIONS)
        )
        assert described_member.member_id == member.identity()[0]
        listed = admin.list_consumer_groups().result()
        assert not listed.errors
        assert [entry.state for entry in listed.valid if entry.group_id == group] == [ConsumerGroupState.STABLE]
        with pytest.raises(Exception, match="NON_EMPTY_GROUP"):
            admin.delete_consumer_groups([group])[group].result(60)
    admin.delete_consumer_groups([group])[group].result(60)
    assert group not in {entry.group_id for entry in admin.list_consumer_groups().result().valid}
    assert committed_offsets(cluster.bootstrap, group, topic) == [-1001] * PARTITIONS


def test_recreated_topic_is_read_from_its_start(cluster: BrokerProcesses, topic: str, group: str) -> None:
    def read_all() -> None:
        create_topic(cluster.bootstrap, topic)
        values = fill(cluster.bootstrap, topic, 8)
        member = Confluent(cluster.bootstrap, group, topic)
        with member:
            wait_until("all records are read", lambda: set(values_of(member)) == values, [member])
        assert committed_offsets(cluster.bootstrap, group, topic) == [2] * PARTITIONS

    read_all()
    kafka_clients.Confluent(cluster.bootstrap).delete_topic(topic)
    read_all()


@pytest.mark.parametrize("stores", [SQLITE_AND_DISK, OXIA_AND_S3])
def test_members_keep_ids_generation_and_partitions_when_the_coordinator_is_killed(
    stores: str, tmp_path: Path, topic: str, group: str
) -> None:
    with running_brokers(tmp_path, 3, stores) as cluster:
        create_topic(cluster.bootstrap, topic)
        values = fill(cluster.bootstrap, topic, 40)
        members = [kind(cluster.bootstrap, group, topic) for kind in (Confluent, KafkaPython, AioKafka)]
        with running(members):
            wait_until("each member has partitions", lambda: is_balanced(members, PARTITIONS), members)
            wait_until("all records are read", lambda: set(values_of(*members)) == values, members)
            before = [(member.identity(), len(member.assignments)) for member in members]
            coordinator = coordinator_of(cluster, group)
            cluster[coordinator].kill()
            killed_at = time.monotonic()
            survivors = ",".join(broker.address for broker in cluster if broker.is_running)
            wait_until(
                "another broker is the coordinator",
                lambda: coordinator_moved(survivors, group, cluster, coordinator),
                members,
            )
            more = fill(survivors, topic, 40, start=40)
            wait_until("all records are read", lambda: set(values_of(*members)) == values | more, members)
            wait_until(
                "all offsets are committed",
                lambda: committed_offsets(survivors, group, topic) == [20] * PARTITIONS,
                members,
            )
            print(f"{stores}: read and committed {time.monotonic() - killed_at:.1f} s after the kill")
            assert [(member.identity(), len(member.assignments)) for member in members] == before
            admin = AdminClient({"bootstrap.servers": survivors})  # the admin client must outlive the call
            described = admin.describe_consumer_groups([group])[group].result(60)
            assert described.state == ConsumerGroupState.STABLE
            assert len(described.members) == 3
