"""Records become rows while brokers and pipelines are killed with SIGKILL repeatedly.

Two pipelines run concurrently, and an external Spark rewrites the tables and deletes rows. At the end the log, the
table, its Delta table and the records of every consumer are compared record by record.

    STORM_S=600 STORM_SEED=7 pytest -s tests/integration/chaos/test_pipeline_kill.py
"""

import asyncio
import os
import random
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, Protocol

import pytest
from tests.harness.clients.kafka_clients import Confluent
from tests.harness.clients.programs import SOAK
from tests.harness.engines.delta_tables import BOTH, delta_rows, maintain_tables
from tests.harness.engines.engines import pyiceberg_of, spark_of
from tests.harness.processes.pipelines import BrokersAndPipelines, with_pipelines
from tests.integration.chaos.clients import Consumer, Headers, Log, Place, Producer, Record, producer_of
from tests.integration.chaos.external_spark import ExternalSpark

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, BrokerProcesses, brokers

pytestmark = pytest.mark.alone

RUN_S: Final = float(os.environ.get("STORM_S") or (600 if SOAK else 30))
EXTERNAL_S_MAX: Final = 300.0
"""Time limit of the round of the external Spark that runs after the last kill: a slow machine may have done nothing of
it before."""
WORKS_S_MAX: Final = 12.0
"""After this time a process is killed even if it has done nothing: at its start, or because the other pipeline was
always faster."""
BROKER_UP_S: Final = (2.0, 8.0)
"""Minimum and maximum time to the kill, after it has begun to work."""
PIPELINE_UP_S: Final = (0.5, 6.0) if not SOAK else (0.5, 120.0)

PLACES: Final = [Place("orders", 0), Place("orders", 1), Place("orders", 2), Place("clicks", 0), Place("clicks", 1)]
TOPICS: Final = sorted({place.topic for place in PLACES})
LATE: Final = Place("late", 0)
"""Partition of a topic that is created in the middle of the test, when a producer first writes to it."""
LAYOUT: Final = {
    "lakestream.table.partition": "_stream.partition, bucket(3, _stream.key)",
    "lakestream.table.sort": "_stream.timestamp desc",
}
SETTINGS: Final = {topic: BOTH | (LAYOUT if topic == "orders" else {}) for topic in TOPICS}
PRODUCERS: Final = 3
PACE_S: Final = 0.02
ERRORS_MAX: Final = 20

Row = tuple[Place, int, Record]
"""Partition, offset and record."""


class Victim(Protocol):
    name: str

    def kill(self) -> None: ...

    def start(self) -> Awaitable[None]: ...

    def works(self) -> bool: ...


class Runner(Protocol):
    def run(self, ended: threading.Event) -> None: ...


class Broker:
    def __init__(self, cluster: BrokerProcesses, number: int) -> None:
        self.name = f"broker-{number}"
        self._broker = cluster[number]

    async def start(self) -> None:
        await self._broker.start()

    def works(self) -> bool:
        return self._broker.is_running

    def kill(self) -> None:
        assert self._broker.is_running, f"{self.name} ended without a kill:\n{self._broker.log()[-3000:]}"
        self._broker.kill()


@pytest.mark.timeout(2 * EXTERNAL_S_MAX + 300 + RUN_S)
@pytest.mark.parametrize("stores", [SQLITE_AND_DISK, *([OXIA_AND_S3] if SOAK else [])])  # else test_cluster_run.py
async def test_log_tables_and_consumers_agree_when_processes_are_killed(stores: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("STORM_SEED") or random.randrange(10**6))
    log = event_log()
    log(f"STORM_SEED={seed} on {stores}")
    rng = random.Random(seed)
    async with (
        brokers(tmp_path, 2 if not SOAK else 3, stores) as started,
        with_pipelines(started, tmp_path) as system,
    ):
        cluster = system.cluster
        client = Confluent(cluster.bootstrap)
        for topic in TOPICS:
            partitions = sum(place.topic == topic for place in PLACES)
            await asyncio.to_thread(client.create_topic, topic, partitions, SETTINGS[topic])
        open_places = list(PLACES)
        producers = [Producer(number, cluster.bootstrap, open_places, PACE_S) for number in range(PRODUCERS)]
        consumers = [Consumer(f"consumer-{topic}", cluster.bootstrap, places_of(topic)) for topic in TOPICS]
        with spark_of(cluster, tmp_path) as spark:
            external_spark = ExternalSpark(spark, TOPICS, random.Random(seed), log)
            kills = await run_with_kills(system, producers, consumers, external_spark, open_places, rng, log)
        commands = {words: await system.run(*words) for words in (("pipeline", "--once"), ("doctor", "--full"))}
        readers = [await read_from(cluster, number) for number in range(len(cluster))]
        tables = {topic: await asyncio.to_thread(rows_of, cluster, topic) for topic in (*TOPICS, LATE.topic)}
        await asyncio.to_thread(maintain_tables, cluster)  # rewrites files with position deletes for Delta
        delta_tables = {topic: await asyncio.to_thread(delta_rows_of, cluster, topic) for topic in TOPICS}
        logs = system.logs()
    written = sum(len(log) for producer in producers for log in producer.acked.values())
    deleted = sum(len(offsets) for offsets in external_spark.deleted.values())
    passes = [consumer.passes for consumer in consumers]
    log(f"{kills=} {written=} {deleted=} {passes=} rounds={external_spark.rounds}")
    errors = [
        *differences(producers, [*consumers, *readers], tables, delta_tables, external_spark.deleted),
        *logged_errors(logs),
    ]
    for words, (code, output) in commands.items():
        log(output)
        errors += [f"{' '.join(words)} exited with {code}"] if code else []
    if errors:
        log("\n".join(line for line in logs.splitlines() if " WARNING " in line or " ERROR " in line))
    assert not errors, "\n".join([f"STORM_SEED={seed}: {len(errors)} differences", *errors[:ERRORS_MAX]])
    assert kills >= 5
    assert written >= 500
    assert deleted >= len(TOPICS)
    assert min(passes) >= 2
    log(f"{logs.count('maintenance.merged')} merges, {logs.count('maintenance.conflict')} conflicts")
    assert "maintenance." in logs
    # Objects are deleted after the read timeout, segments of killed brokers only after hours.
    if stores == OXIA_AND_S3 and RUN_S >= 300:
        assert "gc.object_deleted" in logs


def event_log() -> Callable[[str], None]:
    """Returns a function that prints an event with its time; pytest shows the output if the test fails."""
    start_s = time.monotonic()
    print()
    return lambda text: print(f"{time.monotonic() - start_s:6.2f} {text}", flush=True)


def places_of(topic: str) -> list[Place]:
    return [place for place in PLACES if place.topic == topic]


# Load and kills


async def run_with_kills(
    system: BrokersAndPipelines,
    producers: list[Producer],
    consumers: list[Consumer],
    external_spark: ExternalSpark,
    open_places: list[Place],
    rng: random.Random,
    log: Callable[[str], None],
) -> int:
    """Runs all clients while processes are killed; returns the number of kills.

    At the end the brokers are running, and all records are acknowledged."""
    loop = asyncio.get_running_loop()
    victims: list[tuple[Victim, tuple[float, float]]] = [(pipeline, PIPELINE_UP_S) for pipeline in system.pipelines]
    victims += [(Broker(system.cluster, number), BROKER_UP_S) for number in range(len(system.cluster))]
    clients: list[Runner] = [*producers, *consumers]
    ended, late, stopping = threading.Event(), threading.Event(), asyncio.Event()
    for pipeline in system.pipelines:
        await pipeline.start()
    with ThreadPoolExecutor(len(clients) + 1) as threads:
        try:
            running = [loop.run_in_executor(threads, client.run, ended) for client in clients]
            async with asyncio.timeout(EXTERNAL_S_MAX):
                await loop.run_in_executor(threads, external_spark.prepare)
            foreign = loop.run_in_executor(threads, external_spark.run, late)
            async with asyncio.TaskGroup() as group:
                killers = [
                    group.create_task(kill_repeatedly(victim, up_s, stopping, rng, log)) for victim, up_s in victims
                ]
                await asyncio.sleep(RUN_S / 2)
                open_places.append(LATE)
                await asyncio.sleep(RUN_S / 2)
                stopping.set()
            late.set()
            async with asyncio.timeout(EXTERNAL_S_MAX):
                await foreign
            assert [await asyncio.to_thread(pipeline.stop) for pipeline in system.pipelines] == [0, 0]
            ended.set()
            await asyncio.gather(*running)
        finally:
            ended.set()
            late.set()
    return sum(killer.result() for killer in killers)


async def kill_repeatedly(
    victim: Victim,
    up_s: tuple[float, float],
    stopping: asyncio.Event,
    rng: random.Random,
    log: Callable[[str], None],
) -> int:
    kills = 0
    loop = asyncio.get_running_loop()
    while not stopping.is_set():
        deadline_s = loop.time() + WORKS_S_MAX
        while not victim.works() and loop.time() < deadline_s and not await is_set_within(stopping, 0.2):
            pass
        if await is_set_within(stopping, rng.uniform(*up_s)):
            break
        victim.kill()
        log(f"killed {victim.name}")
        kills += 1
        await asyncio.sleep(rng.uniform(0.0, 1.0))
        await victim.start()
    return kills


async def is_set_within(event: asyncio.Event, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            return await event.wait()
    except TimeoutError:
        return False


# Records at the end


async def read_from(cluster: BrokerProcesses, number: int) -> Consumer:
    """Returns a consumer that has read all records through that broker."""
    reader = Consumer(f"reader-{number} zone_id={cluster[number].zone}", cluster.bootstrap, [*PLACES, LATE])
    if not await asyncio.to_thread(reader.read):
        reader.errors.append(f"{reader.name} did not reach the end; log of the broker: {cluster[number].log()[-500:]}")
    return reader


def rows_of(cluster: BrokerProcesses, topic: str) -> list[Row]:
    return as_rows(topic, pyiceberg_of(cluster).load_table(f"default.{topic}").scan().to_arrow().to_pylist())


def delta_rows_of(cluster: BrokerProcesses, topic: str) -> list[Row]:
    return as_rows(topic, delta_rows(cluster, topic))


def as_rows(topic: str, rows: list[dict[str, Any]]) -> list[Row]:
    return [(Place(topic, row["_stream"]["partition"]), row["_stream"]["offset"], record_of(row)) for row in rows]


def record_of(row: dict[str, Any]) -> Record:
    stream = row["_stream"]
    headers: Headers = tuple((header["key"], header["value"]) for header in stream["headers"])
    timestamp_ms = round(stream["timestamp"].timestamp() * 1000)
    return Record(row["value"], stream["key"], timestamp_ms, headers)


# Comparison


def differences(
    producers: list[Producer],
    consumers: list[Consumer],
    tables: dict[str, list[Row]],
    delta_tables: dict[str, list[Row]],
    deleted: dict[Place, set[int]],
) -> Iterator[str]:
    for producer in producers:
        yield from producer.errors
    for consumer in consumers:
        yield from consumer.errors
    truth: dict[Place, Log] = {place: {} for place in (*PLACES, LATE)}
    for place in truth:
        for producer in producers:
            truth[place].update(producer.acked[place])
        yield from order_errors(place, truth[place], producers)
        for consumer in consumers:
            if place in consumer.seen:
                yield from consumer_errors(consumer, place, truth[place], deleted[place])
    expected = {
        (place, offset): record
        for place, log in truth.items()
        for offset, record in log.items()
        if offset not in deleted[place]
    }
    yield from row_errors("the table", tables, expected)
    expected_in_delta = {position: record for position, record in expected.items() if position[0].topic in delta_tables}
    yield from row_errors("the Delta table", delta_tables, expected_in_delta)
    for consumer in consumers:
        if consumer.name.startswith("reader"):
            seen = {(place, offset): record for place, log in consumer.seen.items() for offset, record in log.items()}
            yield from differing_records(f"{consumer.name} has", seen, expected)


def order_errors(place: Place, log: Log, producers: Iterable[Producer]) -> Iterator[str]:
    """Returns violations of: each record of each producer once, in the order of sending, without gaps between
    offsets."""
    if sorted(log) != list(range(len(log))):
        yield f"{place}: acknowledged offsets are not dense: {missing_in(log)}"
    for producer in producers:
        stored = [log[offset] for offset in sorted(log) if producer_of(log[offset])[0] == producer.number]
        if stored != producer.sent[place]:
            pairs = zip(stored, producer.sent[place], strict=False)
            first = next((pair for pair in pairs if pair[0] != pair[1]), "the number of records")
            yield f"{place}: acknowledged records differ from those sent by producer {producer.number}, first: {first}"


def missing_in(log: Log) -> list[int]:
    return [offset for offset in range(max(log, default=-1) + 1) if offset not in log][:ERRORS_MAX]


def consumer_errors(consumer: Consumer, place: Place, truth: Log, deleted: set[int]) -> Iterator[str]:
    for offset, record in consumer.seen[place].items():
        if truth.get(offset) != record:
            yield f"{consumer.name} read {record} at offset {offset} of {place}: expected {truth.get(offset)}"
    for start, end in sorted(consumer.gaps[place]):
        lost = [offset for offset in range(start, end) if offset not in deleted]
        if lost:
            yield f"{consumer.name} did not read offsets {lost[:ERRORS_MAX]} of {place}, in the gap {start} to {end}"


def row_errors(name: str, tables: dict[str, list[Row]], expected: dict[tuple[Place, int], Record]) -> Iterator[str]:
    rows_by_offset: dict[tuple[Place, int], Record] = {}
    for rows in tables.values():
        for place, offset, record in rows:
            if (place, offset) in rows_by_offset:
                yield f"{place}: offset {offset} is in {name} twice"
            rows_by_offset[place, offset] = record
    yield from differing_records(f"{name} has", rows_by_offset, expected)


def differing_records(
    reader: str, found: dict[tuple[Place, int], Record], expected: dict[tuple[Place, int], Record]
) -> Iterator[str]:
    for where in sorted(found.keys() | expected.keys()):
        if found.get(where) != expected.get(where):
            place, offset = where
            yield f"{place} offset {offset}: {reader} {found.get(where)}, expected {expected.get(where)}"


def logged_errors(logs: str) -> Iterator[str]:
    """Returns lines of tracebacks and stalled topics: a kill must cause neither."""
    for line in logs.splitlines():
        if "Traceback" in line or "pipeline.topic_stalled" in line:
            yield line
