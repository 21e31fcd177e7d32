"""Kafka's Java client and command line tools with Lakestream's brokers."""

import asyncio
import json
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.clients.kafka_clients import Confluent
from tests.harness.clients.moved_records import move
from tests.harness.clients.programs import PROGRAMS, SETTINGS, require_program, run, running_cluster, settings_for

from lakestream.testing.brokers import BrokerProcesses, brokers
from lakestream.testing.servers import toxiproxy

TOOLS = "org.apache.kafka.tools"


class Kafka:
    """Kafka's command line tools with the address of the cluster."""

    def __init__(self, cluster: BrokerProcesses) -> None:
        self._cluster = cluster
        self._program = require_program("kafka-class")

    def __call__(self, tool: str, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        bootstrap = ["--bootstrap-server", self._cluster.bootstrap]
        return run([self._program, tool, *bootstrap, *arguments], stdin, fails=fails)

    def topics(self, *arguments: str, fails: bool = False) -> str:
        return self(f"{TOOLS}.TopicCommand", *arguments, fails=fails)

    def configs(self, *arguments: str, fails: bool = False) -> str:
        return self("kafka.admin.ConfigCommand", "--entity-type", "topics", *arguments, fails=fails)

    def offsets(self, topic: str, *arguments: str) -> dict[int, int]:
        output = self(f"{TOOLS}.GetOffsetShell", "--topic", topic, *arguments)
        return {
            int(partition): int(offset) for partition, offset in re.findall(rf"^{topic}:(\d+):(\d+)$", output, re.M)
        }

    def groups(self, *arguments: str) -> str:
        return self(f"{TOOLS}.consumer.group.ConsumerGroupCommand", *arguments)

    def produce(self, topic: str, lines: str, *arguments: str) -> None:
        self(f"{TOOLS}.ConsoleProducer", "--topic", topic, *arguments, stdin=lines)

    def consume(self, topic: str, count: int, *arguments: str) -> list[str]:
        limits = ["--max-messages", str(count), "--timeout-ms", "20000"]
        output = self(f"{TOOLS}.consumer.ConsoleConsumer", "--topic", topic, *limits, *arguments)
        assert f"Processed a total of {count} messages" in output
        return [line for line in output.splitlines() if not line.startswith(("Processed", "The consumer rebalance"))]


@pytest.fixture(scope="module", params=settings_for("three-sqlite"))
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    require_program("kafka-class")
    yield from running_cluster(request.param, tmp_path_factory)


@pytest.fixture
def kafka(cluster: BrokerProcesses) -> Kafka:
    return Kafka(cluster)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def test_topic_command_creates_lists_extends_and_deletes_topics(kafka: Kafka, topic: str) -> None:
    created = kafka.topics("--create", "--topic", topic, "--partitions", "3", "--config", "retention.ms=100000")
    assert f"Created topic {topic}." in created
    assert topic in kafka.topics("--list").splitlines()
    described = kafka.topics("--describe", "--topic", topic)
    assert re.search(rf"Topic: {topic}\s.*PartitionCount: 3\s.*Configs: retention.ms=100000", described)
    assert len(re.findall(r"Partition: \d+\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", described)) == 3
    kafka.topics("--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in kafka.topics("--describe", "--topic", topic)
    for replicas in (("--replication-factor", "999"), ("--replica-assignment", "0:1,1:77")):
        rejected = kafka.topics("--create", "--topic", f"{topic}-x", *replicas, fails=True)
        assert re.search("target replication factor of 999 cannot be reached|broker 77, but no such broker", rejected)
    assert "TopicExistsException" in kafka.topics("--create", "--topic", topic, fails=True)
    kafka.topics("--delete", "--topic", topic)
    assert "does not exist" in kafka.topics("--describe", "--topic", topic, fails=True)


def test_config_command_changes_shows_and_rejects_configs(kafka: Kafka, topic: str) -> None:
    kafka.topics("--create", "--topic", topic)
    entity = ("--entity-name", topic)
    output = kafka.configs("--alter", *entity, "--add-config", "retention.ms=123456,max.message.bytes=5000000")
    assert f"Completed updating config for topic {topic}." in output
    assert "retention.ms=123456" in kafka.configs("--describe", *entity)
    kafka.configs("--alter", *entity, "--delete-config", "retention.ms")
    described = kafka.configs("--describe", *entity)
    assert "retention.ms" not in described
    assert "max.message.bytes=5000000" in described
    everything = kafka.configs("--describe", "--all", *entity)
    assert "retention.ms=604800000" in everything
    assert "cleanup.policy=delete" in everything
    rejected = kafka.configs("--alter", *entity, "--add-config", "no.such.config=1", fails=True)
    assert "no.such.config" in rejected
    assert "retention.ms" in kafka.configs("--alter", *entity, "--add-config", "retention.ms=soon", fails=True)


def test_config_command_changes_and_shows_configs_of_groups_and_brokers(
    kafka: Kafka, cluster: BrokerProcesses, topic: str
) -> None:
    def configs(entity: str, *arguments: str, fails: bool = False) -> str:
        return kafka("kafka.admin.ConfigCommand", "--entity-type", entity, *arguments, fails=fails)

    group = ("--entity-name", topic)
    chosen = "consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=7000"
    assert "Completed updating config" in configs("groups", "--alter", *group, "--add-config", chosen)
    for text in ("consumer.session.timeout.ms=50000", "consumer.heartbeat.interval.ms=7000"):
        assert text in configs("groups", "--describe", *group)
    assert topic in configs("groups", "--describe")
    rejected = configs("groups", "--alter", *group, "--add-config", "consumer.session.timeout.ms=7000", fails=True)
    assert "must be greater than consumer.heartbeat.interval.ms" in rejected

    configs("brokers", "--alter", "--entity-default", "--add-config", "num.partitions=7")
    configs("brokers", "--alter", "--entity-name", "1", "--add-config", "num.partitions=8")
    assert "num.partitions=7" in configs("brokers", "--describe", "--entity-default")
    assert "DYNAMIC_DEFAULT_BROKER_CONFIG:num.partitions=7" in configs("brokers", "--describe", "--entity-name", "1")
    rejected = configs("brokers", "--alter", "--entity-default", "--add-config", "log.dirs=/data", fails=True)
    assert "Cannot update these configs dynamically: log.dirs" in rejected
    configs("brokers", "--alter", "--entity-name", "1", "--delete-config", "num.partitions")
    kafka.topics("--create", "--topic", topic)
    assert "PartitionCount: 7" in kafka.topics("--describe", "--topic", topic)
    configs("brokers", "--alter", "--entity-default", "--delete-config", "num.partitions")


def test_feature_command_cannot_change_a_feature(kafka: Kafka) -> None:
    command = f"{TOOLS}.FeatureCommand"
    assert re.search(r"group.version\s.*FinalizedVersionLevel: 1", kafka(command, "describe"))
    assert "group.version was upgraded to 1" in kafka(command, "upgrade", "--feature", "group.version=1")
    for action, level in (("upgrade", 2), ("downgrade", 0)):
        rejected = kafka(command, action, "--feature", f"group.version={level}", fails=True)
        assert f"Could not {action} group.version to {level}" in rejected, rejected


def test_console_tools_write_and_read_every_codec(kafka: Kafka, topic: str) -> None:
    kafka.topics("--create", "--topic", topic, "--partitions", "1")
    keyed = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        kafka.produce(topic, f"a:1,a:2\tkey\t{codec}\n", *keyed, "--compression-codec", codec)
    shown = [f"--formatter-property=print.{part}=true" for part in ("key", "headers", "offset")]
    read = kafka.consume(topic, 4, "--partition", "0", "--offset", "1", *shown)
    codecs = ("gzip", "snappy", "lz4", "zstd")
    assert read == [f"Offset:{offset}\ta:1,a:2\tkey\t{codec}" for offset, codec in enumerate(codecs, 1)]
    assert kafka.consume(topic, 1, "--partition", "0", "--offset", "earliest") == ["none"]


def test_tools_return_offsets_and_delete_records(kafka: Kafka, topic: str, tmp_path: Path) -> None:
    kafka.topics("--create", "--topic", topic, "--partitions", "2")
    keyed = ("--reader-property", "parse.key=true")
    kafka.produce(topic, "".join(f"{number}\tvalue\n" for number in range(40)), *keyed)
    ends = kafka.offsets(topic)
    assert sum(ends.values()) == 40
    assert kafka.offsets(topic, "--time", "earliest") == {0: 0, 1: 0}
    assert kafka.offsets(topic, "--time", "0") == {0: 0, 1: 0}
    newest = kafka.offsets(topic, "--time", "max-timestamp")
    assert all(0 <= newest[partition] < ends[partition] for partition in ends)
    plan = tmp_path / "delete.json"
    plan.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 3}], "version": 1}))
    deleted = kafka(f"{TOOLS}.DeleteRecordsCommand", "--offset-json-file", str(plan))
    assert re.search(rf"partition: {topic}-0\s+low_watermark: 3", deleted)
    assert kafka.offsets(topic, "--time", "earliest") == {0: 3, 1: 0}
    first = kafka.consume(
        topic, 1, "--partition", "0", "--offset", "earliest", "--formatter-property", "print.offset=true"
    )
    assert first == ["Offset:3\tvalue"]


def test_console_consumer_continues_from_committed_offsets_of_its_group(kafka: Kafka, topic: str) -> None:
    kafka.topics("--create", "--topic", topic, "--partitions", "2")
    group = ("--group", f"group-of-{topic}")
    keyed = ("--reader-property", "parse.key=true")
    kafka.produce(topic, "".join(f"{number}\t{number}\n" for number in range(20)), *keyed)
    first = kafka.consume(topic, 20, *group, "--from-beginning")
    assert sorted(first, key=int) == [f"{number}" for number in range(20)]
    kafka.produce(topic, "".join(f"{number}\t{number}\n" for number in range(20, 25)), *keyed)
    assert sorted(kafka.consume(topic, 5, *group)) == ["20", "21", "22", "23", "24"]


def test_group_command_lists_describes_resets_and_deletes_groups(kafka: Kafka, topic: str) -> None:
    name = f"group-of-{topic}"
    group = ("--group", name)
    kafka.topics("--create", "--topic", topic, "--partitions", "1")
    kafka.produce(topic, "".join(f"{number}\n" for number in range(10)))
    kafka.consume(topic, 10, *group, "--from-beginning")
    assert name in kafka.groups("--list").split()
    assert re.search(rf"{name}\s+Classic\s+Empty", kafka.groups("--list", "--state", "--type"))
    described = kafka.groups("--describe", *group)
    assert re.search(rf"{name}\s+{topic}\s+0\s+(0\s+)?10\s+10\s+0\s", described), described
    assert "Empty" in kafka.groups("--describe", "--state", *group)
    reset = kafka.groups("--reset-offsets", *group, "--topic", topic, "--to-offset", "4", "--execute")
    assert re.search(rf"{topic}\s+0\s+4\b", reset), reset
    assert kafka.consume(topic, 6, *group) == ["4", "5", "6", "7", "8", "9"]
    deleted = kafka.groups("--delete-offsets", *group, "--topic", topic)
    assert "Successful" in deleted
    kafka.groups("--reset-offsets", *group, "--topic", topic, "--to-earliest", "--execute")
    assert "Deletion of requested consumer groups" in kafka.groups("--delete", *group)
    assert name not in kafka.groups("--list").split()
    assert f"group {name} does not exist" in kafka.groups("--describe", *group)


def test_consumer_performance_tool_reads_all_records(kafka: Kafka, topic: str) -> None:
    kafka.topics("--create", "--topic", topic, "--partitions", "4")
    kafka(
        f"{TOOLS}.ProducerPerformance",
        "--topic",
        topic,
        *("--num-records", "20000", "--record-size", "1000"),
        "--throughput",
        "-1",
    )
    output = kafka(f"{TOOLS}.ConsumerPerformance", "--topic", topic, "--num-records", "20000", "--timeout", "30000")
    columns = output.splitlines()[-1].split(",")
    assert int(columns[4]) >= 20_000, output


def test_records_of_performance_tool_and_verifiable_producer_are_all_stored(kafka: Kafka, topic: str) -> None:
    kafka.topics("--create", "--topic", topic, "--partitions", "4")
    sizes = ("--num-records", "20000", "--record-size", "1000", "--throughput", "-1")
    output = kafka(f"{TOOLS}.ProducerPerformance", "--topic", topic, *sizes)
    assert "20000 records sent" in output
    verified = kafka(f"{TOOLS}.VerifiableProducer", "--topic", topic, "--max-messages", "500")
    events = [json.loads(line) for line in verified.splitlines() if line.startswith("{")]
    acked = [event for event in events if event["name"] == "producer_send_success"]
    assert len({(event["partition"], event["offset"]) for event in acked}) == 500
    assert events[-1]["sent"] == events[-1]["acked"] == 500
    assert sum(kafka.offsets(topic).values()) == 20_500


@pytest.mark.parametrize("setting", settings_for("one-sqlite"))
async def test_records_are_neither_lost_nor_duplicated_when_connections_are_cut(
    setting: str, tmp_path: Path, topic: str
) -> None:
    program, count = require_program("kafka-class"), 1_000
    size, stores = SETTINGS[setting]
    settings = tmp_path / "producer.properties"  # the tool has no option for retries
    settings.write_text("enable.idempotence=true\nretries=2147483647\n")
    async with toxiproxy() as network, brokers(tmp_path, size, stores, network=network) as cluster:
        client = Confluent(cluster.bootstrap)
        await asyncio.to_thread(client.create_topic, topic)
        arguments = ["--topic", topic, "--max-messages", str(count), "--throughput", "200"]
        command = [program, f"{TOOLS}.VerifiableProducer", "--bootstrap-server", cluster.bootstrap, *arguments]
        running = asyncio.create_task(asyncio.to_thread(run, [*command, "--command-config", str(settings)]))
        await asyncio.sleep(2)
        for _ in range(4):
            await asyncio.sleep(0.6)
            for broker in cluster:
                assert broker.proxy is not None
                await broker.proxy.cut()
            await asyncio.sleep(0.1)
            for broker in cluster:
                assert broker.proxy is not None
                await broker.proxy.restore()
        output = await running
        read = await asyncio.to_thread(client.read, topic, 0, count)
        assert await asyncio.to_thread(client.bounds, topic) == (0, count)
    assert "producer_send_error" not in output
    assert [record.value for record in read] == [f"{number}".encode() for number in range(count)]


def test_log_dirs_and_api_versions_tools_describe_all_brokers(
    kafka: Kafka, cluster: BrokerProcesses, topic: str
) -> None:
    def sizes() -> list[int]:
        directories = kafka(f"{TOOLS}.LogDirsCommand", "--describe", "--topic-list", topic)
        brokers = json.loads(directories[directories.index("{") :])["brokers"]
        assert len(brokers) == len(cluster)
        return [part["size"] for broker in brokers for one in broker["logDirs"] for part in one["partitions"]]

    kafka.topics("--create", "--topic", topic, "--partitions", "2")
    assert sizes() == [0, 0]
    kafka.produce(topic, "a\n" * 100)
    in_log = sum(sizes())
    assert in_log > 0
    move(cluster)
    in_table = sum(sizes())
    assert in_table > 0
    assert in_table != in_log
    kafka.produce(topic, "a\n" * 100)
    assert sum(sizes()) > in_table, "the log is added to the table"
    versions = kafka(f"{TOOLS}.BrokerApiVersionsCommand")
    assert versions.count("Produce(0)") == len(cluster)
    assert "ERROR" not in versions


def test_java_client_writes_and_reads_every_codec(kafka: Kafka, cluster: BrokerProcesses, topic: str) -> None:
    if shutil.which("javac") is None:
        pytest.skip("javac is not on the PATH: a JRE cannot run a source file")
    kafka.topics("--create", "--topic", topic, "--partitions", "1", "--config", "max.message.bytes=12000000")
    source = PROGRAMS / "JavaClient.java"
    output = run([require_program("kafka-class"), str(source), cluster.bootstrap, topic]).splitlines()
    assert [line for line in output if line.startswith("sent")] == [f"sent {offset}" for offset in range(25)]
    assert [line for line in output if line.startswith(("start", "end", "at", "after"))] == [
        "start 0",
        "end 25",
        "at time 3",
        "after all null",
    ]
    expected = []
    for number, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        values = [
            f"'key' '{codec}'",
            "null ''",
            "'' null",
            "null 'headers' a='1' a='2' n=null e=''",
            "null 10000000 bytes",
        ]
        expected += [f"read {5 * number + delta} +{delta} {value}" for delta, value in enumerate(values)]
    assert [line for line in output if line.startswith("read")] == expected
