"""Groups of the new protocol (KIP-848) with the clients that speak it: librdkafka and Java, alone, together, and with
members of the classic protocol while a group is upgraded and goes back."""

import re
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from tests.integration.group_clusters import PARTITIONS, committed, coordinator_of, fill, make, moved, values_of
from tests.integration.group_members import (
    AioKafka,
    Confluent,
    Java,
    KafkaPython,
    Member,
    NewConfluent,
    NewJava,
    running,
    shared,
    wait_until,
)
from tests.integration.programs import SOAK, cluster_of, need, run, settings_for

from lakestream.testing.brokers import SQLITE_AND_DISK, Brokers, running_brokers

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module", params=settings_for("three-oxia-s3"))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of(request.param, tmp_path_factory)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


def need_java() -> None:
    need("kafka-class")
    if shutil.which("javac") is None:
        pytest.skip("there is no javac on the PATH: a JRE cannot run a source file")


def kind_of(bootstrap: str, group: str) -> tuple[ConsumerGroupType, ConsumerGroupState]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = [one for one in admin.list_consumer_groups().result(60).valid if one.group_id == group]
    return found[0].type, found[0].state


def test_members_share_and_the_next_one_goes_on(cluster: Brokers, topic: str, group: str) -> None:
    make(cluster.bootstrap, topic)
    values = fill(cluster.bootstrap, topic, 40)
    two = [NewConfluent(cluster.bootstrap, group, topic) for _ in range(2)]
    with running(two):
        wait_until("both have a share", lambda: shared(two, PARTITIONS), two)
        more = fill(cluster.bootstrap, topic, 40, start=40)
        wait_until("all is read", lambda: set(values_of(*two)) == values | more, two)
        assert kind_of(cluster.bootstrap, group) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
    assert committed(cluster.bootstrap, group, topic) == [20] * PARTITIONS
    last = fill(cluster.bootstrap, topic, 8, start=80)
    one = NewConfluent(cluster.bootstrap, group, topic)
    with running([one]):
        wait_until("what was not read yet is read", lambda: len(one.read) >= 8, [one])
    assert set(values_of(one)) == last, "what was committed is not read again"


def test_partitions_and_topics_that_come_later_are_seen(cluster: Brokers, topic: str, group: str) -> None:
    member = NewConfluent(cluster.bootstrap, group, topic)
    with running([member]):
        time.sleep(1)
        make(cluster.bootstrap, topic)
        wait_until("it has the topic", lambda: shared([member], PARTITIONS), [member])
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_partitions([NewPartitions(topic, PARTITIONS + 2)])[topic].result(60)
        wait_until("it has the rest", lambda: shared([member], PARTITIONS + 2), [member])


def test_a_static_member_comes_back_and_nobody_notices(cluster: Brokers, topic: str, group: str) -> None:
    make(cluster.bootstrap, topic)
    stays = NewConfluent(cluster.bootstrap, group, topic)
    first, second = (NewConfluent(cluster.bootstrap, group, topic, instance="one") for _ in range(2))
    with stays:
        with first:
            wait_until("both have a share", lambda: shared([stays, first], PARTITIONS), [stays, first])
            share, given = first.assigned, len(stays.assignments)
        with second:
            wait_until("it is back", lambda: bool(second.assigned), [stays, second])
            assert second.assigned == share
            assert len(stays.assignments) == given, "the other one was not disturbed"


@pytest.mark.parametrize(("old", "new"), [(Confluent, NewConfluent), *([(Java, NewJava)] if SOAK else [])])
def test_a_group_is_upgraded_member_by_member_and_goes_back(
    cluster: Brokers, topic: str, group: str, old: type[Member], new: type[Member]
) -> None:
    make(cluster.bootstrap, topic)
    values = fill(cluster.bootstrap, topic, 40)
    members: list[Member] = [old(cluster.bootstrap, group, topic) for _ in range(2)]
    with running(members):
        wait_until("the classic ones share", lambda: shared(members, PARTITIONS), members)
        for place, kind in ((0, new), (1, new), (0, old), (1, old)):
            members[place].stop()
            members[place] = kind(cluster.bootstrap, group, topic)
            members[place].__enter__()
            wait_until(f"{place} is {kind.name}", lambda: shared(members, PARTITIONS), members)
            values |= fill(cluster.bootstrap, topic, 8, start=1_000 * len(values))
            last = ConsumerGroupType.CLASSIC if place and kind is old else ConsumerGroupType.CONSUMER
            assert kind_of(cluster.bootstrap, group)[0] == last
        wait_until("all is read by somebody", lambda: sum(committed(cluster.bootstrap, group, topic)) == len(values))
        for member in members:
            member.stop()


def test_members_of_all_kinds_in_one_group(cluster: Brokers, topic: str, group: str) -> None:
    make(cluster.bootstrap, topic)
    values = fill(cluster.bootstrap, topic, 100)
    members = [kind(cluster.bootstrap, group, topic) for kind in (AioKafka, NewConfluent, KafkaPython, Confluent)]
    with running(members):
        wait_until("each has one", lambda: shared(members, PARTITIONS), members)
        more = fill(cluster.bootstrap, topic, 100, start=100)
        wait_until("all is read", lambda: set(values_of(*members)) == values | more, members)
        assert kind_of(cluster.bootstrap, group)[0] == ConsumerGroupType.CONSUMER


def test_java_members_are_described_by_the_tool(cluster: Brokers, topic: str, group: str) -> None:
    need_java()
    make(cluster.bootstrap, topic)
    values = fill(cluster.bootstrap, topic, 40)
    members = [kind(cluster.bootstrap, group, topic) for kind in (NewJava, NewConfluent, Java)]
    with running(members):
        wait_until("each has a share", lambda: shared(members, PARTITIONS), members)
        wait_until("all is read", lambda: set(values_of(*members)) == values, members)
        wait_until("and committed", lambda: committed(cluster.bootstrap, group, topic) == [10] * PARTITIONS)
        where = [need("kafka-class"), GROUPS, "--bootstrap-server", cluster.bootstrap, "--describe", "--group", group]
        said = run(where)
        assert len(re.findall(rf"^{group}\s+{topic}\s+\d+\s+10\s+10\s+0\s", said, re.M)) == PARTITIONS, said
        assert re.search(rf"^{group}\s.*\suniform\s+Stable\s+3$", run([*where, "--state"]), re.M)
        named = run([*where, "--members", "--verbose"])
        assert sorted(re.findall(rf"^{group}\s.*\s{topic}:[0-9,]+\s+(true|false)$", named, re.M)) == [
            "false",
            *["true"] * 2,
        ]


def test_a_java_member_of_a_pattern(cluster: Brokers, topic: str, group: str) -> None:
    """The broker matches it."""
    need_java()
    member = NewJava(cluster.bootstrap, group, f"^{topic}-[a-c]")
    with running([member]):
        make(cluster.bootstrap, f"{topic}-d")
        make(cluster.bootstrap, f"{topic}-b")
        values = fill(cluster.bootstrap, f"{topic}-b", 8)
        fill(cluster.bootstrap, f"{topic}-d", 8, start=100)
        wait_until("it reads what fits", lambda: set(values_of(member)) == values, [member])
    assert set(values_of(member)) == values


def test_a_coordinator_is_killed_and_nobody_notices(tmp_path: Path, topic: str, group: str) -> None:
    """Same members, same epochs, same shares; and all that is sent meanwhile is read."""
    need_java()
    with running_brokers(tmp_path, 3, SQLITE_AND_DISK) as cluster:
        make(cluster.bootstrap, topic)
        values = fill(cluster.bootstrap, topic, 40)
        members = [kind(cluster.bootstrap, group, topic) for kind in (NewConfluent, NewJava, Confluent)]
        with running(members):
            wait_until("each has a share", lambda: shared(members, PARTITIONS), members)
            wait_until("all is read", lambda: set(values_of(*members)) == values, members)
            before = [(member.identity(), len(member.assignments)) for member in members]
            coordinator = coordinator_of(cluster, group)
            cluster[coordinator].kill()
            left = ",".join(broker.address for broker in cluster if broker.is_running)
            wait_until("another one coordinates", lambda: moved(left, group, cluster, coordinator), members)
            more = fill(left, topic, 40, start=40)
            wait_until("all is read", lambda: set(values_of(*members)) == values | more, members)
            wait_until("all is committed", lambda: committed(left, group, topic) == [20] * PARTITIONS, members)
            assert [(member.identity(), len(member.assignments)) for member in members] == before
