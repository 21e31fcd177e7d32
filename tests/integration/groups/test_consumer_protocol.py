"""Groups of the consumer protocol (KIP-848) with librdkafka and Java.

The members use one client, several clients, or also the classic protocol while a group is upgraded and downgraded.
"""

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
    AioKafka,
    Confluent,
    Java,
    KafkaPython,
    Member,
    NewConfluent,
    NewJava,
    is_balanced,
    running,
    wait_until,
)
from tests.harness.clients.programs import SOAK, require_program, run, running_cluster, settings_for

from lakestream.testing.brokers import SQLITE_AND_DISK, BrokerProcesses, running_brokers

GROUPS = "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand"

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module", params=settings_for("three-oxia-s3"))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster(request.param, tmp_path_factory)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def group() -> str:
    return f"group-{uuid.uuid4().hex[:12]}"


def require_java() -> None:
    require_program("kafka-class")
    if shutil.which("javac") is None:
        pytest.skip("javac is not on the PATH: a JRE cannot run a source file")


def kind_of(bootstrap: str, group: str) -> tuple[ConsumerGroupType, ConsumerGroupState]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    listed = [entry for entry in admin.list_consumer_groups().result(60).valid if entry.group_id == group]
    return listed[0].type, listed[0].state


def test_members_share_partitions_and_a_later_member_continues_from_committed_offsets(
    cluster: BrokerProcesses, topic: str, group: str
) -> None:
    create_topic(cluster.bootstrap, topic)
    values = fill(cluster.bootstrap, topic, 40)
    members = [NewConfluent(cluster.bootstrap, group, topic) for _ in range(2)]
    with running(members):
        wait_until("both members have partitions", lambda: is_balanced(members, PARTITIONS), members)
        more = fill(cluster.bootstrap, topic, 40, start=40)
        wait_until("all records are read", lambda: set(values_of(*members)) == values | more, members)
        assert kind_of(cluster.bootstrap, group) == (ConsumerGroupType.CONSUMER, ConsumerGroupState.STABLE)
    assert committed_offsets(cluster.bootstrap, group, topic) == [20] * PARTITIONS
    last = fill(cluster.bootstrap, topic, 8, start=80)
    later = NewConfluent(cluster.bootstrap, group, topic)
    with running([later]):
        wait_until("the new records are read", lambda: len(later.read) >= 8, [later])
    assert set(values_of(later)) == last, "a new member must not read records again whose offsets are committed"


def test_new_partitions_and_topics_are_assigned(cluster: BrokerProcesses, topic: str, group: str) -> None:
    member = NewConfluent(cluster.bootstrap, group, topic)
    with running([member]):
        time.sleep(1)
        create_topic(cluster.bootstrap, topic)
        wait_until("the member has the topic", lambda: is_balanced([member], PARTITIONS), [member])
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
        admin.create_partitions([NewPartitions(topic, PARTITIONS + 2)])[topic].result(60)
        wait_until("the member has the new partitions", lambda: is_balanced([member], PARTITIONS + 2), [member])


def test_returning_static_member_keeps_its_partitions_without_a_rebalance(
    cluster: BrokerProcesses, topic: str, group: str
) -> None:
    create_topic(cluster.bootstrap, topic)
    stays = NewConfluent(cluster.bootstrap, group, topic)
    first, second = (NewConfluent(cluster.bootstrap, group, topic, instance="static") for _ in range(2))
    with stays:
        with first:
            wait_until("both members have partitions", lambda: is_balanced([stays, first], PARTITIONS), [stays, first])
            partitions, assignments = first.assigned, len(stays.assignments)
        with second:
            wait_until("the static member is back", lambda: bool(second.assigned), [stays, second])
            assert second.assigned == partitions
            assert len(stays.assignments) == assignments, "the other member was not rebalanced"


@pytest.mark.parametrize(("old", "new"), [(Confluent, NewConfluent), *([(Java, NewJava)] if SOAK else [])])
def test_group_is_upgraded_and_downgraded_member_by_member(
    cluster: BrokerProcesses, topic: str, group: str, old: type[Member], new: type[Member]
) -> None:
    create_topic(cluster.bootstrap, topic)
    values = fill(cluster.bootstrap, topic, 40)
    members: list[Member] = [old(cluster.bootstrap, group, topic) for _ in range(2)]
    with running(members):
        wait_until("classic members have partitions", lambda: is_balanced(members, PARTITIONS), members)
        for index, kind in ((0, new), (1, new), (0, old), (1, old)):
            members[index].stop()
            members[index] = kind(cluster.bootstrap, group, topic)
            members[index].__enter__()
            wait_until(f"member {index} is {kind.name}", lambda: is_balanced(members, PARTITIONS), members)
            values |= fill(cluster.bootstrap, topic, 8, start=1_000 * len(values))
            last = ConsumerGroupType.CLASSIC if index and kind is old else ConsumerGroupType.CONSUMER
            assert kind_of(cluster.bootstrap, group)[0] == last
        wait_until(
            "all records are read and committed",
            lambda: sum(committed_offsets(cluster.bootstrap, group, topic)) == len(values),
        )
        for member in members:
            member.stop()


def test_members_of_both_protocols_share_one_group(cluster: BrokerProcesses, topic: str, group: str) -> None:
    create_topic(cluster.bootstrap, topic)
    values = fill(cluster.bootstrap, topic, 100)
    members = [kind(cluster.bootstrap, group, topic) for kind in (AioKafka, NewConfluent, KafkaPython, Confluent)]
    with running(members):
        wait_until("each member has a partition", lambda: is_balanced(members, PARTITIONS), members)
        more = fill(cluster.bootstrap, topic, 100, start=100)
        wait_until("all records are read", lambda: set(values_of(*members)) == values | more, members)
        assert kind_of(cluster.bootstrap, group)[0] == ConsumerGroupType.CONSUMER


def test_group_command_describes_java_members(cluster: BrokerProcesses, topic: str, group: str) -> None:
    require_java()
    create_topic(cluster.bootstrap, topic)
    values = fill(cluster.bootstrap, topic, 40)
    members = [kind(cluster.bootstrap, group, topic) for kind in (NewJava, NewConfluent, Java)]
    with running(members):
        wait_until("each member has partitions", lambda: is_balanced(members, PARTITIONS), members)
        wait_until("all records are read", lambda: set(values_of(*members)) == values, members)
        wait_until(
            "all offsets are committed", lambda: committed_offsets(cluster.bootstrap, group, topic) == [10] * PARTITIONS
        )
        command = [
            require_program("kafka-class"),
            GROUPS,
            "--bootstrap-server",
            cluster.bootstrap,
            "--describe",
            "--group",
            group,
        ]
        output = run(command)
        assert len(re.findall(rf"^{group}\s+{topic}\s+\d+\s+10\s+10\s+0\s", output, re.M)) == PARTITIONS, output
        assert re.search(rf"^{group}\s.*\suniform\s+Stable\s+3$", run([*command, "--state"]), re.M)
        members_output = run([*command, "--members", "--verbose"])
        assert sorted(re.findall(rf"^{group}\s.*\s{topic}:[0-9,]+\s+(true|false)$", members_output, re.M)) == [
            "false",
            *["true"] * 2,
        ]


def test_java_member_subscribes_to_a_pattern_that_the_broker_matches(
    cluster: BrokerProcesses, topic: str, group: str
) -> None:
    require_java()
    member = NewJava(cluster.bootstrap, group, f"^{topic}-[a-c]")
    with running([member]):
        create_topic(cluster.bootstrap, f"{topic}-d")
        create_topic(cluster.bootstrap, f"{topic}-b")
        values = fill(cluster.bootstrap, f"{topic}-b", 8)
        fill(cluster.bootstrap, f"{topic}-d", 8, start=100)
        wait_until("records of the matching topic are read", lambda: set(values_of(member)) == values, [member])
    assert set(values_of(member)) == values


def test_members_keep_ids_epochs_and_partitions_when_the_coordinator_is_killed(
    tmp_path: Path, topic: str, group: str
) -> None:
    require_java()
    with running_brokers(tmp_path, 3, SQLITE_AND_DISK) as cluster:
        create_topic(cluster.bootstrap, topic)
        values = fill(cluster.bootstrap, topic, 40)
        members = [kind(cluster.bootstrap, group, topic) for kind in (NewConfluent, NewJava, Confluent)]
        with running(members):
            wait_until("each member has partitions", lambda: is_balanced(members, PARTITIONS), members)
            wait_until("all records are read", lambda: set(values_of(*members)) == values, members)
            before = [(member.identity(), len(member.assignments)) for member in members]
            coordinator = coordinator_of(cluster, group)
            cluster[coordinator].kill()
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
            assert [(member.identity(), len(member.assignments)) for member in members] == before
