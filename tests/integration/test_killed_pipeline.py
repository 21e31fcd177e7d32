"""Records become rows in a storm: two pipelines at once, a foreign Spark that rewrites the tables and deletes rows,
brokers and pipelines killed with SIGKILL again and again. At the end the log, the table, its Delta twin and what every
consumer saw are compared record by record.

    STORM_S=600 STORM_SEED=7 pytest -s tests/integration/test_killed_pipeline.py
"""

import asyncio
import os
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

import pytest
from tests.integration.delta_tables import BOTH, delta_rows, maintained
from tests.integration.eager_pipeline import COMMAND as EAGER
from tests.integration.engines import pyiceberg_of, spark_of
from tests.integration.kafka_clients import Confluent
from tests.integration.programs import SOAK
from tests.integration.storm_clients import Consumer, Headers, Log, Place, Producer, Record, writer_of
from tests.integration.storm_foreigner import Foreigner

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, Brokers, brokers
from lakestream.testing.processes import Process

RUN_S: Final = float(os.environ.get("STORM_S") or (600 if SOAK else 30))
FOREIGNER_S_MAX: Final = 300.0
"""For the round that it is at when the last was killed: on a slow machine it has got nowhere."""
WORKS_S_MAX: Final = 12.0
"""Then it is killed all the same: at its start, or while the other one is always the first."""
COMMAND_S_MAX: Final = 90.0
GONE_S_MAX: Final = 15.0
MARK: Final = "STORM_OF"
"""In the environment of all that this test starts, and of what they start."""
COMMAND: Final = [sys.executable, "-m", "lakestream"]

PLACES: Final = [Place("orders", 0), Place("orders", 1), Place("orders", 2), Place("clicks", 0), Place("clicks", 1)]
TOPICS: Final = sorted({place.topic for place in PLACES})
LATE: Final = Place("late", 0)
"""Of a topic that comes into being in the middle of the storm, when a producer first writes to it."""
ARRANGED: Final = {
    "lakestream.table.partition": "_stream.partition, bucket(3, _stream.key)",
    "lakestream.table.sort": "_stream.timestamp desc",
}
SETTINGS: Final = {topic: BOTH | (ARRANGED if topic == "orders" else {}) for topic in TOPICS}
PRODUCERS: Final = 3
PACE_S: Final = 0.02
SHOWN_MAX: Final = 20

Row = tuple[Place, int, Record]
"""Where it belongs, and what it holds."""


class Victim(Protocol):
    name: str
    up_s: tuple[float, float]
    """How long it lives, once it works."""

    def kill(self) -> None: ...

    def start(self) -> Awaitable[None]: ...

    def works(self) -> bool: ...


class Runner(Protocol):
    def run(self, ended: threading.Event) -> None: ...


class Driver:
    """A `lakestream pipeline` process."""

    up_s = (0.5, 6.0) if not SOAK else (0.5, 120.0)

    def __init__(self, number: int, flags: Sequence[str], folder: Path, environment: dict[str, str]) -> None:
        self.name = f"pipeline-{number}"
        self._log = folder / f"{self.name}.log"
        program = [*COMMAND, "pipeline"] if number else EAGER  # one of them keeps the tables in order, too
        command = [*program, "--interval", "1s", "--master", "local[1]"]
        self._process = Process(self.name, flags, self._log, command=command, environment=environment)
        self._log_start = 0

    async def start(self) -> None:
        self._log_start = len(self.said())
        self._process.start()

    def works(self) -> bool:
        """It has moved something in this life."""
        return "pipeline.moved" in self.said()[self._log_start :]

    def kill(self) -> None:
        assert self._process.pid is not None, f"{self.name} ended by itself:\n{self.said()}"
        self._process.kill()

    def stop(self) -> int:
        return self._process.stop()

    def clear(self) -> None:
        """Whatever it does."""
        self._process.kill()

    def said(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


class Broker:
    up_s = (2.0, 8.0)

    def __init__(self, cluster: Brokers, number: int) -> None:
        self.name = f"broker-{number}"
        self._broker = cluster[number]

    async def start(self) -> None:
        await self._broker.start()

    def works(self) -> bool:
        return self._broker.is_running

    def kill(self) -> None:
        assert self._broker.is_running, f"{self.name} ended by itself:\n{self._broker.log()[-3000:]}"
        self._broker.kill()


@dataclass(frozen=True)
class Lake:
    """What the storm goes over."""

    cluster: Brokers
    drivers: tuple[Driver, ...]
    flags: list[str]
    """For our own programs on the same stores."""

    async def run(self, *words: str) -> tuple[int, str]:
        """One of our commands: its exit code, and what it said."""
        process = await asyncio.create_subprocess_exec(
            *(*COMMAND, *words, *self.flags),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env=self.cluster.environment,
        )
        try:
            async with asyncio.timeout(COMMAND_S_MAX):
                said = (await process.communicate())[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return process.returncode, said.strip()


@asynccontextmanager
async def lake(folder: Path, stores: str) -> AsyncIterator[Lake]:
    async with brokers(folder, 2 if not SOAK else 3, stores) as started:
        environment = {**started.environment, MARK: str(folder)}
        cluster = replace(started, environment=environment)
        flags = ["--data-dir", str(folder / "data"), "--metadata", cluster.metadata, "--storage", cluster.storage]
        drivers = tuple(Driver(number, flags, folder, environment) for number in range(2))
        try:
            yield Lake(cluster, drivers, flags)
        finally:
            for driver in drivers:
                driver.clear()
    await asyncio.to_thread(wait_until_gone, str(folder))


@pytest.mark.timeout(2 * FOREIGNER_S_MAX + 300 + RUN_S)
@pytest.mark.parametrize("stores", [SQLITE_AND_DISK, OXIA_AND_S3])
async def test_log_table_and_consumers_agree_after_a_storm(stores: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("STORM_SEED") or random.randrange(10**6))
    say = diary()
    say(f"STORM_SEED={seed} on {stores}")
    luck = random.Random(seed)
    async with lake(tmp_path, stores) as everything:
        cluster = everything.cluster
        client = Confluent(cluster.bootstrap)
        for topic in TOPICS:
            partitions = sum(place.topic == topic for place in PLACES)
            await asyncio.to_thread(client.create_topic, topic, partitions, SETTINGS[topic])
        open_places = list(PLACES)
        producers = [Producer(number, cluster.bootstrap, open_places, PACE_S) for number in range(PRODUCERS)]
        consumers = [Consumer(f"consumer-{topic}", cluster.bootstrap, places_of(topic)) for topic in TOPICS]
        with spark_of(cluster, tmp_path) as spark:
            foreigner = Foreigner(spark, TOPICS, random.Random(seed), say)
            kills = await storm(everything, producers, consumers, foreigner, open_places, luck, say)
        ended = {words: await everything.run(*words) for words in (("pipeline", "--once"), ("doctor", "--full"))}
        readers = [await read_from(cluster, number) for number in range(len(cluster))]
        tables = {topic: await asyncio.to_thread(rows_of, cluster, topic) for topic in (*TOPICS, LATE.topic)}
        await asyncio.to_thread(maintained, cluster)  # what was deleted by position is rewritten for Delta
        twins = {topic: await asyncio.to_thread(twin_of, cluster, topic) for topic in TOPICS}
        logs = cluster.logs() + "".join(driver.said() for driver in everything.drivers)
    written = sum(len(log) for producer in producers for log in producer.acked.values())
    deleted = sum(len(offsets) for offsets in foreigner.deleted.values())
    passes = [consumer.passes for consumer in consumers]
    say(f"{kills=} {written=} {deleted=} {passes=} rounds={foreigner.rounds}")
    wrong = [*differences(producers, [*consumers, *readers], tables, twins, foreigner.deleted), *complaints(logs)]
    for words, (code, said) in ended.items():
        say(said)
        wrong += [f"{' '.join(words)} ended with {code}"] if code else []
    if wrong:
        say("\n".join(line for line in logs.splitlines() if " WARNING " in line or " ERROR " in line))
    assert not wrong, "\n".join([f"STORM_SEED={seed}: {len(wrong)} things differ", *wrong[:SHOWN_MAX]])
    assert kills >= 5
    assert written >= 500
    assert deleted >= len(TOPICS)
    assert min(passes) >= 2
    say(f"{logs.count('maintenance.merged')} merges, {logs.count('maintenance.overtaken')} overtaken")
    assert "maintenance." in logs
    if stores == OXIA_AND_S3 and RUN_S >= 300:  # objects have their readers' time; segments of the killed have hours
        assert "wal.swept" in logs


def diary() -> Callable[[str], None]:
    """What happened when: shown if the test fails."""
    begun_s = time.monotonic()
    print()
    return lambda text: print(f"{time.monotonic() - begun_s:6.2f} {text}", flush=True)


def places_of(topic: str) -> list[Place]:
    return [place for place in PLACES if place.topic == topic]


# ── the storm ────────────────────────────────────────────────────────────────────────────────────────────────────────


async def storm(
    everything: Lake,
    producers: list[Producer],
    consumers: list[Consumer],
    foreigner: Foreigner,
    open_places: list[Place],
    luck: random.Random,
    say: Callable[[str], None],
) -> int:
    """How often something was killed. At the end the brokers run, and all that was sent is answered."""
    loop = asyncio.get_running_loop()
    victims: list[Victim] = [*everything.drivers]
    victims += [Broker(everything.cluster, number) for number in range(len(everything.cluster))]
    clients: list[Runner] = [*producers, *consumers]
    ended, late, over = threading.Event(), threading.Event(), asyncio.Event()
    for driver in everything.drivers:
        await driver.start()
    with ThreadPoolExecutor(len(clients) + 1) as threads:
        try:
            running = [loop.run_in_executor(threads, client.run, ended) for client in clients]
            async with asyncio.timeout(FOREIGNER_S_MAX):
                await loop.run_in_executor(threads, foreigner.prepare)
            foreign = loop.run_in_executor(threads, foreigner.run, late)
            async with asyncio.TaskGroup() as group:
                killers = [group.create_task(kill_again_and_again(victim, over, luck, say)) for victim in victims]
                await asyncio.sleep(RUN_S / 2)
                open_places.append(LATE)
                await asyncio.sleep(RUN_S / 2)
                over.set()
            late.set()
            async with asyncio.timeout(FOREIGNER_S_MAX):
                await foreign
            assert [await asyncio.to_thread(driver.stop) for driver in everything.drivers] == [0, 0]
            ended.set()
            await asyncio.gather(*running)
        finally:
            ended.set()
            late.set()
    return sum(killer.result() for killer in killers)


async def kill_again_and_again(
    victim: Victim, over: asyncio.Event, luck: random.Random, say: Callable[[str], None]
) -> int:
    kills = 0
    loop = asyncio.get_running_loop()
    while not over.is_set():
        until_s = loop.time() + WORKS_S_MAX
        while not victim.works() and loop.time() < until_s and not await happens(over, 0.2):
            pass
        if await happens(over, luck.uniform(*victim.up_s)):
            break
        victim.kill()
        say(f"killed {victim.name}")
        kills += 1
        await asyncio.sleep(luck.uniform(0.0, 1.0))
        await victim.start()
    return kills


async def happens(event: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            return await event.wait()
    except TimeoutError:
        return False


def wait_until_gone(mark: str) -> None:
    """Java ends a moment after whom it works for."""
    until_s = time.monotonic() + GONE_S_MAX
    while left := list(marked(mark)):
        assert time.monotonic() < until_s, f"left behind: {left}"
        time.sleep(0.1)


def marked(mark: str) -> Iterator[str]:
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"{MARK}={mark}".encode() in (process / "environ").read_bytes().split(b"\0"):
                yield f"{process.name} {(process / 'cmdline').read_bytes()[:100]!r}"
        except OSError:  # it ended meanwhile, or is not ours
            continue


# ── what is there at the end ─────────────────────────────────────────────────────────────────────────────────────────


async def read_from(cluster: Brokers, number: int) -> Consumer:
    """Everything, as that broker serves it."""
    reader = Consumer(f"reader-{number} zone_id={cluster[number].zone}", cluster.bootstrap, [*PLACES, LATE])
    if not await asyncio.to_thread(reader.read):
        reader.wrong.append(f"{reader.name} did not come to the end; the broker says {cluster[number].log()[-500:]}")
    return reader


def rows_of(cluster: Brokers, topic: str) -> list[Row]:
    return placed(topic, pyiceberg_of(cluster).load_table(f"default.{topic}").scan().to_arrow().to_pylist())


def twin_of(cluster: Brokers, topic: str) -> list[Row]:
    return placed(topic, delta_rows(cluster, topic))


def placed(topic: str, rows: list[dict[str, Any]]) -> list[Row]:
    return [(Place(topic, row["_stream"]["partition"]), row["_stream"]["offset"], record_of(row)) for row in rows]


def record_of(row: dict[str, Any]) -> Record:
    stream = row["_stream"]
    headers: Headers = tuple((header["key"], header["value"]) for header in stream["headers"])
    timestamp_ms = round(stream["timestamp"].timestamp() * 1000)
    return Record(row["value"], stream["key"], timestamp_ms, headers)


# ── the comparison ───────────────────────────────────────────────────────────────────────────────────────────────────


def differences(
    producers: list[Producer],
    consumers: list[Consumer],
    tables: dict[str, list[Row]],
    twins: dict[str, list[Row]],
    deleted: dict[Place, set[int]],
) -> Iterator[str]:
    for producer in producers:
        yield from producer.wrong
    for consumer in consumers:
        yield from consumer.wrong
    truth: dict[Place, Log] = {place: {} for place in (*PLACES, LATE)}
    for place in truth:
        for producer in producers:
            truth[place].update(producer.acked[place])
        yield from wrong_order(place, truth[place], producers)
        for consumer in consumers:
            if place in consumer.seen:
                yield from wrongly_seen(consumer, place, truth[place], deleted[place])
    left = {
        (place, offset): record
        for place, log in truth.items()
        for offset, record in log.items()
        if offset not in deleted[place]
    }
    yield from wrong_rows("the table", tables, left)
    twinned = {where: record for where, record in left.items() if where[0].topic in twins}
    yield from wrong_rows("the Delta table", twins, twinned)
    for consumer in consumers:
        if consumer.name.startswith("reader"):
            seen = {(place, offset): record for place, log in consumer.seen.items() for offset, record in log.items()}
            yield from unlike(f"{consumer.name} sees", seen, left)


def wrong_order(place: Place, log: Log, producers: Iterable[Producer]) -> Iterator[str]:
    """Each record of each producer once, in the order in which he sent them, without gaps between offsets."""
    if sorted(log) != list(range(len(log))):
        yield f"{place}: acknowledged offsets are not dense: {missing_in(log)}"
    for producer in producers:
        there = [log[offset] for offset in sorted(log) if writer_of(log[offset])[0] == producer.number]
        if there != producer.sent[place]:
            pairs = zip(there, producer.sent[place], strict=False)
            first = next((pair for pair in pairs if pair[0] != pair[1]), "its end")
            yield f"{place}: producer {producer.number} sent other records than were acknowledged, from {first} on"


def missing_in(log: Log) -> list[int]:
    return [offset for offset in range(max(log, default=-1) + 1) if offset not in log][:SHOWN_MAX]


def wrongly_seen(consumer: Consumer, place: Place, truth: Log, deleted: set[int]) -> Iterator[str]:
    for offset, record in consumer.seen[place].items():
        if truth.get(offset) != record:
            yield f"{consumer.name} saw {record} at offset {offset} of {place}: it is {truth.get(offset)}"
    for start, end in sorted(consumer.gaps[place]):
        lost = [offset for offset in range(start, end) if offset not in deleted]
        if lost:
            yield f"{consumer.name} was not given offsets {lost[:SHOWN_MAX]} of {place}, in the gap {start} to {end}"


def wrong_rows(name: str, tables: dict[str, list[Row]], left: dict[tuple[Place, int], Record]) -> Iterator[str]:
    found: dict[tuple[Place, int], Record] = {}
    for rows in tables.values():
        for place, offset, record in rows:
            if (place, offset) in found:
                yield f"{place}: offset {offset} is in {name} twice"
            found[place, offset] = record
    yield from unlike(f"{name} has", found, left)


def unlike(who: str, found: dict[tuple[Place, int], Record], wanted: dict[tuple[Place, int], Record]) -> Iterator[str]:
    for where in sorted(found.keys() | wanted.keys()):
        if found.get(where) != wanted.get(where):
            place, offset = where
            yield f"{place} offset {offset}: {who} {found.get(where)}, should be {wanted.get(where)}"


def complaints(logs: str) -> Iterator[str]:
    """Nothing that happens here is a reason to give up, or to say more than a line about it."""
    for line in logs.splitlines():
        if "Traceback" in line or "pipeline.stuck" in line:
            yield line
