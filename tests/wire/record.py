"""Records what real clients send: `python -m tests.wire.record` writes tests/wire/captures/CLIENT.bin anew; with names
of clients behind it, only theirs.

Each client works with a broker of ours through a proxy that keeps its requests. Of every request and version a
few short ones are kept, so that the files stay small. They hold what the clients wrote: no address, no machine's name.
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

from tests.integration.group_members import (
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
from tests.integration.kafka_clients import CLIENTS, Client, Record
from tests.integration.programs import need, run
from tests.integration.transactional_clients import WRITERS
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
    """A way to the broker that keeps what clients say."""

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
        await asyncio.sleep(0.1)  # its tasks see the end of their streams

    def frames(self) -> list[bytes]:
        """Of each request and version the shortest ones."""
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
    client.produce("made-by-writing", [Record(b"value")])
    client.delete_topic("events")


def use_groups(name: str, bootstrap: str) -> None:
    """A member, a static one, one that speaks the new protocol; then transactions, and a group's offsets in some."""
    for kind in MEMBER_KINDS[name]:
        for instance in (None, "static"):
            group = f"{kind.name.replace(', ', '-')}-{instance or 'dynamic'}"
            read_along(kind(bootstrap, group, "read", instance))
    if name in WRITERS:
        writer = WRITERS[name](bootstrap, "writer")
        for end in (writer.commit, writer.abort):
            writer.begin()
            writer.send("read", 0, b"value")
            end()
        writer.transform("read", "written", "transformers", 4)
        writer.close()


def use_java_groups(bootstrap: str) -> None:
    use_groups("java", bootstrap)
    kafka, where = need("kafka-class"), ["--bootstrap-server", bootstrap]
    groups = [kafka, "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand", *where]
    run([*groups, "--list", "--state"])
    run([*groups, "--describe", "--all-groups"])
    run([*groups, "--reset-offsets", "--group", "java-dynamic", "--topic", "read", "--to-earliest", "--execute"])
    run([*groups, "--delete-offsets", "--group", "java-dynamic", "--topic", "read"])
    run([*groups, "--delete", "--group", "java-dynamic"])
    run([kafka, str(Path(__file__).parents[1] / "integration" / "JavaTransactions.java"), bootstrap, "in", "out"])


def fill(bootstrap: str) -> None:
    """Before somebody reads along."""
    client = CLIENTS["kafka-python"](bootstrap, "client")
    for topic in ("read", "written", "in", "out"):
        client.create_topic(topic, 2)
    client.produce("read", [Record(b"%d" % number) for number in range(4)])


def read_along(member: Member) -> None:
    with member:
        wait_until("it reads and beats", lambda: len(member.read) >= 4, [member])
        time.sleep(1.5)


def use_java(bootstrap: str) -> None:
    kafka, here = need("kafka-class"), Path(__file__).parents[1] / "integration"
    where = ["--bootstrap-server", bootstrap]
    topics = [kafka, "org.apache.kafka.tools.TopicCommand", *where, "--topic", "events"]
    configs = [kafka, "kafka.admin.ConfigCommand", *where, "--entity-type", "topics", "--entity-name", "events"]
    run([*topics, "--create", "--partitions", "1", "--config", "max.message.bytes=12000000"])
    run([*topics, "--describe"])
    run([*topics, "--alter", "--partitions", "2"])
    run([*configs, "--alter", "--add-config", "retention.ms=100000"])
    run([*configs, "--describe"])
    run([kafka, str(here / "JavaClient.java"), bootstrap, "events"])
    run([kafka, "org.apache.kafka.tools.GetOffsetShell", *where])
    run([kafka, "org.apache.kafka.tools.LogDirsCommand", *where, "--describe"])
    run([*topics, "--delete"])


def use_kafkajs(bootstrap: str) -> None:
    script = Path(__file__).parents[1] / "integration" / "kafkajs_client.js"
    run([need("kafkajs-node"), str(script), bootstrap, "events"])


def use_kcat(bootstrap: str) -> None:
    kcat = [need("kcat"), "-b", bootstrap]
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
                recorder.streams.clear()  # they are another client's
            await asyncio.to_thread(USES[name], f"127.0.0.1:{port}")
    await recorder.close()
    content = joined(recorder.frames())
    assert platform.node().encode() not in content, "a capture must not name this machine"
    (CAPTURES / f"{name}.bin").write_bytes(content)
    print(f"{name}: {len(recorder.frames())} frames, {len(content)} bytes")


if __name__ == "__main__":
    CAPTURES.mkdir(exist_ok=True)
    for each in sys.argv[1:] or USES:
        asyncio.run(record(each))
