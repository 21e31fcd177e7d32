"""Captures the requests of real clients.

`python -m tests.wire.record [CLIENT …]` rewrites tests/wire/captures/CLIENT.bin, by default for all clients.

Each client uses a broker through a proxy that records its requests. A few short requests of every kind and version are
kept, so that the files stay small. They contain no address and no machine name.
"""

import asyncio
import platform
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from tests.harness.clients.group_members import (
    AioKafka,
    Confluent,
    Cooperative,
    Java,
    KafkaPython,
    Member,
    NewConfluent,
    NewJava,
    wait_until,
)
from tests.harness.clients.kafka_clients import CLIENTS, Client, Record
from tests.harness.clients.programs import PROGRAMS, require_program, run
from tests.harness.clients.transactional_clients import TRANSACTIONAL_CLIENTS
from tests.wire.frames import CAPTURES, cut, joined, key_and_version

from lakestream.testing.brokers import brokers

GROUPS: Final = "-groups"
KEPT_OF_EACH: Final = 8
FRAME_BYTES_MAX: Final = 4_000
MEMBER_KINDS: Final[dict[str, tuple[type[Member], ...]]] = {
    "aiokafka": (AioKafka,),
    "confluent-kafka": (Confluent, Cooperative, NewConfluent),
    "java": (Java, NewJava),
    "kafka-python": (KafkaPython,),
}


class Recorder:
    """A proxy to the broker that records requests."""

    def __init__(self) -> None:
        self.streams: list[bytearray] = []
        self.upstream = 0
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def listen(self) -> int:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        stream = bytearray()
        self.streams.append(stream)
        self._writers.append(writer)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.upstream)
        await asyncio.gather(_pump(reader, up_writer, stream), _pump(up_reader, writer, None))

    async def close(self) -> None:
        assert self._server is not None, "listen first"
        self._server.close()
        for writer in self._writers:
            writer.close()
        await asyncio.sleep(0.1)  # the tasks of the connections end

    def frames(self) -> list[bytes]:
        """Returns the shortest frames of each request and version."""
        kept: dict[tuple[int, int], list[bytes]] = {}
        for frame in sorted({frame for stream in self.streams for frame in cut(bytes(stream))}, key=len):
            same = kept.setdefault(key_and_version(frame), [])
            if len(same) < KEPT_OF_EACH and len(frame) <= FRAME_BYTES_MAX:
                same.append(frame)
        return [frame for _, same in sorted(kept.items()) for frame in same]


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, copy: bytearray | None) -> None:
    with suppress(OSError):
        while data := await reader.read(65_536):
            if copy is not None:
                copy += data
            writer.write(data)
            await writer.drain()
        writer.close()


def use(kind: type[Client], bootstrap: str) -> None:
    client = kind(bootstrap, "client")
    client.create_topic("events", 2, {"retention.ms": "100000"})
    for codec in client.codecs:
        client.produce("events", [Record(b"value", b"key", (("h", b"1"), ("h", b"2"))), Record(None, b"k")], codec)
    client.read("events", "earliest", 2)
    client.offset_at("events", 1_600_000_000_000)
    client.bounds("events")
    client.produce("auto-created", [Record(b"value")])
    client.delete_topic("events")


def use_groups(name: str, bootstrap: str) -> None:
    """Uses dynamic and static members of both protocols, then transactions, some with offsets of a group."""
    for kind in MEMBER_KINDS[name]:
        for instance in (None, "static"):
            group = f"{kind.name.replace(', ', '-')}-{instance or 'dynamic'}"
            read_all(kind(bootstrap, group, "read", instance))
    if name in TRANSACTIONAL_CLIENTS:
        writer = TRANSACTIONAL_CLIENTS[name](bootstrap, "writer")
        for end in (writer.commit, writer.abort):
            writer.begin()
            writer.send("read", 0, b"value")
            end()
        writer.transform("read", "written", "transformers", 4)
        writer.close()


def use_java_groups(bootstrap: str) -> None:
    use_groups("java", bootstrap)
    kafka, server = require_program("kafka-class"), ["--bootstrap-server", bootstrap]
    groups = [kafka, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *server]
    run([*groups, "--list", "--state"])
    run([*groups, "--describe", "--all-groups"])
    run([*groups, "--reset-offsets", "--group", "java-dynamic", "--topic", "read", "--to-earliest", "--execute"])
    run([*groups, "--delete-offsets", "--group", "java-dynamic", "--topic", "read"])
    run([*groups, "--delete", "--group", "java-dynamic"])
    run([kafka, str(PROGRAMS / "JavaTransactions.java"), bootstrap, "in", "out"])


def fill(bootstrap: str) -> None:
    """Produces the records that the members then read."""
    client = CLIENTS["kafka-python"](bootstrap, "client")
    for topic in ("read", "written", "in", "out"):
        client.create_topic(topic, 2)
    client.produce("read", [Record(b"%d" % number) for number in range(4)])


def read_all(member: Member) -> None:
    with member:
        wait_until("the member has read all records", lambda: len(member.read) >= 4, [member])
        time.sleep(1.5)


def use_java(bootstrap: str) -> None:
    kafka = require_program("kafka-class")
    server = ["--bootstrap-server", bootstrap]
    topics = [kafka, "org.apache.kafka.tools.TopicCommand", *server, "--topic", "events"]
    configs = [kafka, "kafka.admin.ConfigCommand", *server, "--entity-type", "topics", "--entity-name", "events"]
    run([*topics, "--create", "--partitions", "1", "--config", "max.message.bytes=12000000"])
    run([*topics, "--describe"])
    run([*topics, "--alter", "--partitions", "2"])
    run([*configs, "--alter", "--add-config", "retention.ms=100000"])
    run([*configs, "--describe"])
    run([kafka, str(PROGRAMS / "JavaClient.java"), bootstrap, "events"])
    run([kafka, "org.apache.kafka.tools.GetOffsetShell", *server])
    run([kafka, "org.apache.kafka.tools.LogDirsCommand", *server, "--describe"])
    run([*topics, "--delete"])


def use_kafkajs(bootstrap: str) -> None:
    script = PROGRAMS / "kafkajs_client.js"
    run([require_program("kafkajs-node"), str(script), bootstrap, "events"])


def use_kcat(bootstrap: str) -> None:
    kcat = [require_program("kcat"), "-b", bootstrap]
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        run([*kcat, "-t", "events", "-P", "-p", "0", "-z", codec, "-K", ":", "-H", "a=1"], "key:value\n")
    run([*kcat, "-t", "events", "-C", "-p", "0", "-o", "beginning", "-e", "-q"])
    run([*kcat, "-Q", "-t", "events:0:1600000000000"])
    run([*kcat, "-L"])


USES: Final[dict[str, Callable[[str], None]]] = {
    **{name: partial(use, kind) for name, kind in CLIENTS.items()},
    **{f"{name}{GROUPS}": partial(use_groups, name) for name in CLIENTS},
    "java": use_java,
    f"java{GROUPS}": use_java_groups,
    "kafkajs": use_kafkajs,
    "kcat": use_kcat,
}


async def record(name: str) -> None:
    recorder = Recorder()
    port = await recorder.listen()
    with tempfile.TemporaryDirectory() as folder:
        async with brokers(Path(folder), options=["--advertise", f"127.0.0.1:{port}"]) as cluster:
            recorder.upstream = cluster[0].port
            if name.endswith(GROUPS):
                await asyncio.to_thread(fill, f"127.0.0.1:{port}")
                recorder.streams.clear()  # the requests of fill()
            await asyncio.to_thread(USES[name], f"127.0.0.1:{port}")
    await recorder.close()
    content = joined(recorder.frames())
    assert platform.node().encode() not in content, "a capture must not contain the name of this machine"
    (CAPTURES / f"{name}.bin").write_bytes(content)
    print(f"{name}: {len(recorder.frames())} frames, {len(content)} bytes")


if __name__ == "__main__":
    CAPTURES.mkdir(exist_ok=True)
    for each in sys.argv[1:] or USES:
        asyncio.run(record(each))
