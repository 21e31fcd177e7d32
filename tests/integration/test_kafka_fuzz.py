"""Hostile clients against a real broker: frames that are cut, flipped and invented, sizes that lie, connections that
hold on, readers that do not read. The broker never dies, hangs or grows, and a good client notices nothing.

FUZZ_SEED=n repeats a run, FUZZ_S sets how long each part lasts; SOAK=1 takes a new seed each time.
"""

import asyncio
import os
import random
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import aiokafka  # type: ignore[import-untyped]
import pytest
from tests.integration.programs import SOAK
from tests.unit.protocol.kafka.samples import LuckyMaker, request_frames
from tests.wire.frames import captured

from lakestream.protocol.kafka import codec
from lakestream.testing.brokers import BrokerProcess, brokers

SEED: Final = int(os.environ.get("FUZZ_SEED") or (random.randrange(2**32) if SOAK else 4))
ATTACK_S: Final = float(os.environ.get("FUZZ_S", "4"))
MiB: Final = 1 << 20
ANSWER_S_MAX: Final = 10.0
NOTICED_S_MAX: Final = 10.0

HOSTILE_NUMBERS: Final = [
    *(b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\0"),
    *(b"\x7f\xff", b"\x80\0", b"\xff\xff", b"\0", b"\x7f", b"\x80", b"\xff"),
    *(b"\xff\xff\xff\xff\x0f", b"\xff" * 8 + b"\x7f", b"\x80\x80\x80\x80\x01", b"\x7f" + b"\xff" * 7),
]
"""Ends of ranges as 4, 2 and 1 bytes, and as varints."""


class GoodClient:
    """Writes and reads without pause; each record has to be back within some seconds."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._address = broker.address
        self.slowest_s = 0.0
        self.turns = 0

    async def run(self) -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self._address, enable_idempotence=True)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self._address, enable_auto_commit=False)
        await producer.start()
        await consumer.start()
        try:
            where = aiokafka.TopicPartition("good", 0)
            await producer.send_and_wait("good", b"first", partition=0)
            consumer.assign([where])
            consumer.seek(where, 1)
            while True:
                await self._turn(producer, consumer, f"{self.turns}".encode())
                await asyncio.sleep(0.02)
        finally:
            await consumer.stop()
            await producer.stop()

    async def _turn(
        self, producer: aiokafka.AIOKafkaProducer, consumer: aiokafka.AIOKafkaConsumer, value: bytes
    ) -> None:
        began = time.monotonic()
        async with asyncio.timeout(ANSWER_S_MAX):
            await producer.send_and_wait("good", value, partition=0)
            record = await consumer.getone()
        assert record.value == value
        self.turns += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - began)


Attack = Callable[[BrokerProcess, random.Random], Awaitable[None]]


@asynccontextmanager
async def connected(broker: BrokerProcess) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def sent(broker: BrokerProcess, data: bytes, patience_s: float = 0.05) -> None:
    """Say it, listen for a moment, and go."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with connected(broker) as (reader, writer):
            writer.write(data)
            async with asyncio.timeout(patience_s):
                await writer.drain()
                while await reader.read(65_536):
                    pass


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def spoilt(frame: bytes, luck: random.Random) -> bytes:
    """A frame with parts cut, flipped, doubled, or with a hostile number in them. Its key and version mostly stay."""
    body = bytearray(frame)
    for _ in range(luck.choice((1, 1, 2, 5))):
        if len(body) < 9:
            break
        at = luck.randrange(8 if luck.random() < 0.9 else 0, len(body))
        kind = luck.randrange(5)
        if kind == 0:
            del body[at:]
        elif kind == 1:
            body[at] ^= 1 << luck.randrange(8)
        elif kind == 2:
            number = luck.choice(HOSTILE_NUMBERS)
            body[at : at + len(number)] = number
        elif kind == 3:
            body[at:at] = luck.randbytes(luck.choice((1, 4, 100)))
        else:
            body[at:at] = body[at : at + luck.randrange(1, 64)]
    return bytes(body)


async def spoil_frames(broker: BrokerProcess, luck: random.Random) -> None:
    """Frames of real clients and of every kind that there is, spoilt."""
    corpus = [frame for frames in captured().values() for frame in frames]
    corpus += [frame for _, _, frame in request_frames(LuckyMaker(luck))]
    end = time.monotonic() + ATTACK_S
    while time.monotonic() < end:
        batch = [spoilt(luck.choice(corpus), luck) for _ in range(40)]
        await asyncio.gather(*(sent(broker, framed(frame)) for frame in batch))


async def invent_frames(broker: BrokerProcess, luck: random.Random) -> None:
    """A header that promises a request we know, and anything after it; or nothing but noise."""
    end = time.monotonic() + ATTACK_S
    while time.monotonic() < end:
        frames = []
        for _ in range(40):
            head = struct.pack(">hhih", luck.randrange(93), luck.randrange(19), luck.randrange(2**31), -1)
            noise = b"".join(luck.choice(HOSTILE_NUMBERS) for _ in range(luck.randrange(12)))
            frames.append(luck.choice((head + noise, head + luck.randbytes(50), luck.randbytes(30))))
        await asyncio.gather(*(sent(broker, framed(frame)) for frame in frames))


async def lie_about_sizes(broker: BrokerProcess, luck: random.Random) -> None:
    """Sizes that are no sizes, and frames that stop half way, many of them at once and all still open."""
    sizes = [0, -1, -(2**31), 2**31 - 1, 101 * MiB, 99 * MiB, 5]
    async with asyncio.TaskGroup() as tasks:
        for number in range(300):
            data = struct.pack(">i", sizes[number % len(sizes)]) + luck.randbytes(luck.choice((0, 3, 4_000)))
            tasks.create_task(sent(broker, data, patience_s=ATTACK_S / 2))


async def send_half_of_much(broker: BrokerProcess, luck: random.Random) -> None:
    """Frames of 90 MiB, most of each, from many connections: what is not a request yet counts too."""
    piece = bytes(MiB)

    async def send() -> None:
        with suppress(OSError, TimeoutError):
            async with connected(broker) as (_, writer), asyncio.timeout(ATTACK_S):
                writer.write(struct.pack(">i", 90 * MiB))
                for _ in range(70):
                    writer.write(piece)
                    await writer.drain()
                await asyncio.sleep(ATTACK_S)

    await asyncio.gather(*(send() for _ in range(14)))


async def never_read(broker: BrokerProcess, luck: random.Random) -> None:
    """Fetches for all there is, one after another, and no answer is taken."""
    partition = {
        "partition": 0,
        "fetch_offset": 0,
        "partition_max_bytes": 50 * MiB,
        "current_leader_epoch": -1,
        "log_start_offset": -1,
    }
    body = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 1,
        "max_bytes": 50 * MiB,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": "big", "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    fetches = b"".join(codec.write_request(1, 11, number, "greedy", body) for number in range(400))

    async def hold() -> None:
        with suppress(OSError):
            async with connected(broker) as (_, writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(fetches)
                await asyncio.sleep(ATTACK_S)

    await asyncio.gather(*(hold() for _ in range(4)))


async def fill(broker: BrokerProcess) -> None:
    """A topic with some tens of megabytes, for greedy readers."""
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.address, max_request_size=2 * MiB)
    await producer.start()
    try:
        for _ in range(60):
            await producer.send_and_wait("big", bytes(MiB - 1000), partition=0)
    finally:
        await producer.stop()


@pytest.mark.filterwarnings("default")
@pytest.mark.timeout(120 + 10 * ATTACK_S)
@pytest.mark.parametrize(
    ("attack", "grown_mib_max"),
    [
        (spoil_frames, 200),
        (invent_frames, 100),
        (lie_about_sizes, 200),
        (send_half_of_much, 1_000),  # of 980 sent; 512 are for all requests, and more while buffers grow
        (never_read, 400),
    ],
)
async def test_the_broker_never_dies_hangs_or_grows(attack: Attack, grown_mib_max: int, tmp_path: Path) -> None:
    print(f"\nFUZZ_SEED={SEED}")
    async with brokers(tmp_path) as cluster:
        broker = cluster[0]
        if attack is never_read:
            await fill(broker)
        good = GoodClient(broker)
        working = asyncio.create_task(good.run())
        peak = Peak(broker)
        watching = asyncio.create_task(peak.watch())
        try:
            await asyncio.sleep(0.5)
            peak.start()
            await attack(broker, random.Random(SEED))
            done = good.turns
            async with asyncio.timeout(ANSWER_S_MAX):
                while good.turns < done + 3:
                    assert not working.done(), working.exception()
                    await asyncio.sleep(0.05)
        finally:
            for task in (working, watching):
                task.cancel()
            ended = await asyncio.gather(working, watching, return_exceptions=True)
        said = cluster.logs()
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), (ended, said[-2000:])
        assert broker.is_running, said[-2000:]
        assert "Traceback" not in said, said[: said.index("Traceback") + 3000]
        print(f"{good.turns} turns, slowest {good.slowest_s:.2f} s, grown by {peak.grown_bytes / MiB:.0f} MiB")
        assert good.slowest_s < NOTICED_S_MAX
        assert peak.grown_bytes < grown_mib_max * MiB
        assert broker.stop() == 0


class Peak:
    """How much the broker's memory grew, at most."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._start_bytes = 0
        self.grown_bytes = 0

    def start(self) -> None:
        self._start_bytes = self._broker.rss_bytes()

    async def watch(self) -> None:
        while True:
            if self._start_bytes:
                self.grown_bytes = max(self.grown_bytes, self._broker.rss_bytes() - self._start_bytes)
            await asyncio.sleep(0.05)
