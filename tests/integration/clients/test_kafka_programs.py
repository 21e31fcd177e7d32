"""KafkaJS and kcat with Lakestream's brokers: old clients that use the protocol differently."""

import json
import uuid
from collections.abc import Iterator

import pytest
from tests.harness.clients.kafka_clients import Confluent, Record
from tests.harness.clients.programs import PROGRAMS, require_program, run, running_cluster, settings_for

from lakestream.testing.brokers import BrokerProcesses


@pytest.fixture(scope="module", params=settings_for("one-oxia-s3"))
def for_kafkajs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    require_program("kafkajs-node")
    yield from running_cluster(request.param, tmp_path_factory)


@pytest.fixture(scope="module", params=settings_for("three-oxia-s3"))
def for_kcat(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    require_program("kcat")
    yield from running_cluster(request.param, tmp_path_factory)


@pytest.fixture
def topic() -> str:
    return f"topic-{uuid.uuid4().hex[:12]}"


def test_kafkajs_creates_topics_and_produces(for_kafkajs: BrokerProcesses, topic: str) -> None:
    script = PROGRAMS / "kafkajs_client.js"
    output = run([require_program("kafkajs-node"), str(script), for_kafkajs.bootstrap, topic])
    assert [json.loads(line) for line in output.splitlines() if line.startswith("[")] == [
        ["created", True],
        ["created again", False],
        ["listed", True],
        ["partitions", 3],
        ["retention", "2000000"],
        ["brokers", len(for_kafkajs)],
        ["sent", [0, 0]],
        ["sent", [0, 3]],
        ["offsets", [[0, 0, 0], [1, 0, 6], [2, 0, 0]]],
        ["low", 2],
    ]
    read = Confluent(for_kafkajs.bootstrap).read(topic, 2, 4, partition=1)
    assert [(record.key, record.value) for record in read] == [
        (b"tombstone", None),
        (b"key", b"value"),
        (None, b""),
        (b"tombstone", None),
    ]
    assert read[1].headers == (("a", b"1"), ("a", b"2"), ("b", b"3"))
    assert read[1].timestamp_ms == 1_000_000_000_000


def test_kafkajs_reads_as_a_member_of_a_group(for_kafkajs: BrokerProcesses, topic: str) -> None:
    client = Confluent(for_kafkajs.bootstrap)
    client.create_topic(topic, partitions=2)
    client.produce(topic, [Record(f"{number}".encode(), partition=number % 2) for number in range(4)])
    script = PROGRAMS / "kafkajs_group.js"
    output = run([require_program("kafkajs-node"), str(script), for_kafkajs.bootstrap, topic, f"group-of-{topic}", "4"])
    assert [json.loads(line) for line in output.splitlines() if line.startswith("[")] == [
        ["state", ["Stable", 1]],
        ["listed", True],
        ["read", [[0, 0, "0"], [0, 1, "2"], [1, 0, "1"], [1, 1, "3"]]],
        ["committed", [[0, 2], [1, 2]]],
        ["deleted", True],
    ]


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kcat_writes_and_reads_every_codec(for_kcat: BrokerProcesses, topic: str, codec: str) -> None:
    kcat = [require_program("kcat"), "-b", for_kcat.bootstrap, "-t", topic]
    # This command creates the topic. -Z: an empty value is null.
    write = [*kcat, "-P", "-p", "1", "-z", codec, "-K", ":", "-H", "a=1", "-H", "a=2", "-H", "n", "-Z"]
    run(write, "key:value\nother:\n")
    line_format = r"%p %o %k %S %s %h\n"
    read = run([*kcat, "-C", "-p", "1", "-o", "beginning", "-e", "-q", "-f", line_format])
    assert read == "1 0 key 5 value a=1,a=2,n=NULL\n1 1 other -1  a=1,a=2,n=NULL\n"
    assert run([*kcat, "-C", "-p", "1", "-o", "-1", "-e", "-q", "-f", r"%o\n"]) == "1\n"
    written = Confluent(for_kcat.bootstrap).produce(topic, [Record(b"third", partition=1)], codec)
    assert written == [2]
    assert run([*kcat, "-C", "-p", "1", "-o", "2", "-c", "1", "-q"]) == "third\n"


def test_kcat_lists_topics_and_finds_offsets_by_time(for_kcat: BrokerProcesses, topic: str) -> None:
    times = [1_600_000_000_000 + 1000 * number for number in range(10)]
    client = Confluent(for_kcat.bootstrap)
    client.create_topic(topic, partitions=2)
    client.produce(topic, [Record(b"v", timestamp_ms=time) for time in times])
    kcat = [require_program("kcat"), "-b", for_kcat.bootstrap]
    listed = json.loads(run([*kcat, "-L", "-J"]))
    assert len(listed["brokers"]) == len(for_kcat)
    (entry,) = [entry for entry in listed["topics"] if entry["topic"] == topic]
    assert len(entry["partitions"]) == 2
    assert run([*kcat, "-Q", "-t", f"{topic}:0:{times[4] - 500}"]).strip() == f"{topic} [0] offset 4"
    since = run([*kcat, "-C", "-t", topic, "-p", "0", "-o", f"s@{times[7]}", "-e", "-q", "-f", r"%o %T\n"])
    assert since.splitlines() == [f"{offset} {times[offset]}" for offset in (7, 8, 9)]


def test_kcat_continues_from_committed_offsets_of_its_group(for_kcat: BrokerProcesses, topic: str) -> None:
    client = Confluent(for_kcat.bootstrap)
    client.create_topic(topic, partitions=2)
    kcat = [require_program("kcat"), "-b", for_kcat.bootstrap, "-X", "auto.offset.reset=earliest", "-q", "-u"]
    for start in (0, 4):  # the second run continues from the committed offsets
        client.produce(
            topic, [Record(f"{number}".encode(), partition=number % 2) for number in range(start, start + 4)]
        )
        output = run([*kcat, "-c", "4", "-G", f"group-of-{topic}", topic])
        assert sorted(output.split()) == [f"{number}" for number in range(start, start + 4)]
