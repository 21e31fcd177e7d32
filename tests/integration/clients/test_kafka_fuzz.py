"""Malicious clients of a real broker: damaged and random frames, wrong sizes, idle connections, unread responses.

The broker does not crash or hang, its memory is limited, and a correct client is not affected.

FUZZ_SEED=n repeats a run, FUZZ_S sets the duration of each attack; SOAK=1 uses a new seed each time.
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
from tests.harness.clients.programs import SOAK
from tests.harness.kafka.message_samples import RandomMaker, request_frames
from tests.wire.frames import captured

from lakestream.protocol.kafka.wire import codec
from lakestream.testing.brokers import BrokerProcess, brokers

pytestmark = pytest.mark.alone

SEED: Final = int(os.environ.get("FUZZ_SEED") or (random.randrange(2**32) if SOAK else 4))
ATTACK_S: Final = float(os.environ.get("FUZZ_S", "4"))
MiB: Final = 1 << 20
RESPONSE_S_MAX: Final = 10.0
ROUND_TRIP_S_MAX: Final = 10.0

BOUNDARY_NUMBERS: Final = [
    *(b"\x7f\xff\xff\xff", b"\x80\0\0\0", b"\xff\xff\xff\xff", b"\0\0\0\0"),
    *(b"\x7f\xff", b"\x80\0", b"\xff\xff", b"\0", b"\x7f", b"\x80", b"\xff"),
    *(b"\xff\xff\xff\xff\x0f", b"\xff" * 8 + b"\x7f", b"\x80\x80\x80\x80\x01", b"\x7f" + b"\xff" * 7),
]
"""Limits of ranges as 4, 2 and 1 bytes, and as varints."""


class CorrectClient:
    """Writes and reads continuously. Each record must be read within some seconds."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._address = broker.address
        self.slowest_s = 0.0
        self.round_trips = 0

    async def run(self) -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=self._address, enable_idempotence=True)
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=self._address, enable_auto_commit=False)
        await producer.start()
        await consumer.start()
        try:
            partition = aiokafka.TopicPartition("good", 0)
            await producer.send_and_wait("good", b"first", partition=0)
            consumer.assign([partition])
            consumer.seek(partition, 1)
            while True:
                await self._round_trip(producer, consumer, f"{self.round_trips}".encode())
                await asyncio.sleep(0.02)
        finally:
            await consumer.stop()
            await producer.stop()

    async def _round_trip(
        self, producer: aiokafka.AIOKafkaProducer, consumer: aiokafka.AIOKafkaConsumer, value: bytes
    ) -> None:
        start_s = time.monotonic()
        async with asyncio.timeout(RESPONSE_S_MAX):
            await producer.send_and_wait("good", value, partition=0)
            record = await consumer.getone()
        assert record.value == value
        self.round_trips += 1
        self.slowest_s = max(self.slowest_s, time.monotonic() - start_s)


Attack = Callable[[BrokerProcess, random.Random], Awaitable[None]]


@asynccontextmanager
async def connected(broker: BrokerProcess) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def send_raw(broker: BrokerProcess, data: bytes, patience_s: float = 0.05) -> None:
    """Sends bytes, reads for a short time, and closes the connection."""
    with suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        async with connected(broker) as (reader, writer):
            writer.write(data)
            async with asyncio.timeout(patience_s):
                await writer.drain()
                while await reader.read(65_536):
                    pass


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def damaged(frame: bytes, rng: random.Random) -> bytes:
    """Returns a damaged copy of a frame, mostly with the same API key and version."""
    body = bytearray(frame)
    for _ in range(rng.choice((1, 1, 2, 5))):
        if len(body) < 9:
            break
        at = rng.randrange(8 if rng.random() < 0.9 else 0, len(body))
        kind = rng.randrange(5)
        if kind == 0:
            del body[at:]
        elif kind == 1:
            body[at] ^= 1 << rng.randrange(8)
        elif kind == 2:
            number = rng.choice(BOUNDARY_NUMBERS)
            body[at : at + len(number)] = number
        elif kind == 3:
            body[at:at] = rng.randbytes(rng.choice((1, 4, 100)))
        else:
            body[at:at] = body[at : at + rng.randrange(1, 64)]
    return bytes(body)


async def send_damaged_frames(broker: BrokerProcess, rng: random.Random) -> None:
    """Sends damaged frames of real clients and of every request."""
    corpus = [frame for frames in captured().values() for frame in frames]
    corpus += [frame for _, _, frame in request_frames(RandomMaker(rng))]
    end = time.monotonic() + ATTACK_S
    while time.monotonic() < end:
        batch = [damaged(rng.choice(corpus), rng) for _ in range(40)]
        await asyncio.gather(*(send_raw(broker, framed(frame)) for frame in batch))


async def send_random_frames(broker: BrokerProcess, rng: random.Random) -> None:
    """Sends a valid header with random bytes after it, or only random bytes."""
    end = time.monotonic() + ATTACK_S
    while time.monotonic() < end:
        frames = []
        for _ in range(40):
            head = struct.pack(">hhih", rng.randrange(93), rng.randrange(19), rng.randrange(2**31), -1)
            noise = b"".join(rng.choice(BOUNDARY_NUMBERS) for _ in range(rng.randrange(12)))
            frames.append(rng.choice((head + noise, head + rng.randbytes(50), rng.randbytes(30))))
        await asyncio.gather(*(send_raw(broker, framed(frame)) for frame in frames))


async def send_wrong_sizes(broker: BrokerProcess, rng: random.Random) -> None:
    """Sends invalid sizes and incomplete frames on many concurrent connections."""
    sizes = [0, -1, -(2**31), 2**31 - 1, 101 * MiB, 99 * MiB, 5]
    async with asyncio.TaskGroup() as tasks:
        for number in range(300):
            data = struct.pack(">i", sizes[number % len(sizes)]) + rng.randbytes(rng.choice((0, 3, 4_000)))
            tasks.create_task(send_raw(broker, data, patience_s=ATTACK_S / 2))


async def send_incomplete_frames(broker: BrokerProcess, rng: random.Random) -> None:
    """Sends most of a frame of 90 MiB on many connections: incomplete requests count towards the memory limit."""
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


async def read_no_response(broker: BrokerProcess, rng: random.Random) -> None:
    """Sends Fetch requests for all records, and reads no response."""
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
    fetches = b"".join(codec.write_request(1, 11, number, "fuzz", body) for number in range(400))

    async def send_only() -> None:
        with suppress(OSError):
            async with connected(broker) as (_, writer):
                writer.transport.pause_reading()  # type: ignore[attr-defined]
                writer.write(fetches)
                await asyncio.sleep(ATTACK_S)

    await asyncio.gather(*(send_only() for _ in range(4)))


async def fill(broker: BrokerProcess) -> None:
    """Writes some tens of megabytes to a topic."""
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
    ("attack", "growth_mib_max"),
    [
        (send_damaged_frames, 200),
        (send_random_frames, 100),
        (send_wrong_sizes, 200),
        (send_incomplete_frames, 1_000),  # of 980 sent; the limit of all requests is 512, plus growing buffers
        (read_no_response, 400),
    ],
)
async def test_broker_serves_other_clients_within_its_memory_limit_under_attack(
    attack: Attack, growth_mib_max: int, tmp_path: Path
) -> None:
    print(f"\nFUZZ_SEED={SEED}")
    async with brokers(tmp_path) as cluster:
        broker = cluster[0]
        if attack is read_no_response:
            await fill(broker)
        client = CorrectClient(broker)
        working = asyncio.create_task(client.run())
        growth = MemoryGrowth(broker)
        watching = asyncio.create_task(growth.watch())
        try:
            await asyncio.sleep(0.5)
            growth.start()
            await attack(broker, random.Random(SEED))
            before = client.round_trips
            async with asyncio.timeout(RESPONSE_S_MAX):
                while client.round_trips < before + 3:
                    assert not working.done(), working.exception()
                    await asyncio.sleep(0.05)
        finally:
            for task in (working, watching):
                task.cancel()
            ended = await asyncio.gather(working, watching, return_exceptions=True)
        logs = cluster.logs()
        assert all(isinstance(end, asyncio.CancelledError) for end in ended), (ended, logs[-2000:])
        assert broker.is_running, logs[-2000:]
        assert "Traceback" not in logs, logs[: logs.index("Traceback") + 3000]
        print(
            f"{client.round_trips} round trips, slowest {client.slowest_s:.2f} s, {growth.bytes_max / MiB:.0f} MiB more"
        )
        assert client.slowest_s < ROUND_TRIP_S_MAX
        assert growth.bytes_max < growth_mib_max * MiB
        assert broker.stop() == 0


class MemoryGrowth:
    """Maximum growth of the broker's memory."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._start_bytes = 0
        self.bytes_max = 0

    def start(self) -> None:
        self._start_bytes = self._broker.rss_bytes()

    async def watch(self) -> None:
        while True:
            if self._start_bytes:
                self.bytes_max = max(self.bytes_max, self._broker.rss_bytes() - self._start_bytes)
            await asyncio.sleep(0.05)
