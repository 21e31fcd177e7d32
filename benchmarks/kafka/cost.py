"""The `cost` profile: objects in a bucket, here an S3 server on the same machine, and SQLite. There is no peer.

Asked, at 5,000 records of 1 KiB a second: ack p50 below 300 ms; as many puts a second with 500 partitions as with 8.
"""

import asyncio
import itertools
import statistics
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.common.measure import by_turns
from benchmarks.common.report import Row, row
from benchmarks.kafka.load.tasks import Stamp
from benchmarks.kafka.loads import Loaded, cores, loaded
from benchmarks.kafka.rounds import Bench
from benchmarks.kafka.sides import Server, lakestream
from lakestream.testing.servers import s3_server

FEW, MANY = 8, 500
PER_S = 5_000
SECONDS = 16
PRODUCERS = 8
"""A client sends one request for each partition, 5,000 a second with many of them, and each is under way for the length
of a flush: more than a broker takes from one connection."""


@dataclass(frozen=True, slots=True)
class Put(Loaded):
    puts: float

    @property
    def puts_per_s(self) -> float:
        return self.puts / self.cost.seconds


async def run(bench: Bench) -> list[Row]:
    count, numbers = PER_S * bench.scaled(SECONDS), itertools.count()

    def with_partitions(server: Server, partitions: int) -> Callable[[], Awaitable[Put]]:
        async def work() -> Put:
            topic = f"cost-{next(numbers)}"
            await server.make_topics([topic], partitions)
            task = Stamp(
                bootstrap=server.bootstrap,
                topic=topic,
                partitions=partitions,
                records=count,
                per_s=PER_S,
                skip=count // 8,
                producers=PRODUCERS,
            )
            before = await _puts(server)
            found = await loaded(server, task, amount=count)
            puts = await _puts(server) - before
            await server.delete_topic(topic)
            return Put(found.amount, found.cost, found.told, puts)

        return work

    async with _on_bucket(bench.stage.fresh()) as server:
        works = [with_partitions(server, partitions) for partitions in (FEW, MANY)]
        found, quiet = await by_turns(works, bench.runs, bench.tries)
    few, many = [one for one, _ in found], [other for _, other in found]
    ratio = statistics.median(other.puts_per_s / one.puts_per_s for one, other in found)
    return [
        *_acks(few, FEW, quiet),
        *_acks(many, MANY, quiet),
        row(
            "cost",
            f"puts, {MANY} partitions to {FEW}",
            ratio,
            "times",
            at_most=1.2,
            quiet=quiet,
            note=f"{_median(few, _puts_per_s):.1f} and {_median(many, _puts_per_s):.1f} puts/s",
        ),
    ]


def _acks(runs: list[Put], partitions: int, quiet: bool) -> list[Row]:
    p99 = _median(runs, lambda run: run.told[0].p99_ms)
    return [
        row(
            "cost",
            f"{PER_S:,} records/s to {partitions} partitions, cost profile on S3, ack",
            _median(runs, lambda run: run.told[0].p50_ms),
            "ms p50",
            at_most=300,
            quiet=quiet,
            note=f"p99 {p99:.0f} ms; {_median(runs, _puts_per_s):.1f} puts/s; {_median(runs, cores):.2f} cores",
        )
    ]


def _median(runs: list[Put], figure: Callable[[Put], float]) -> float:
    return statistics.median(map(figure, runs))


def _puts_per_s(run: Put) -> float:
    return run.puts_per_s


@asynccontextmanager
async def _on_bucket(folder: Path) -> AsyncIterator[Server]:
    async with s3_server(folder) as s3:
        keys = {
            "AWS_ENDPOINT_URL": s3.endpoint,
            "AWS_ACCESS_KEY_ID": s3.access_key_id,
            "AWS_SECRET_ACCESS_KEY": s3.secret_access_key,
            "AWS_REGION": s3.region,
        }
        server = lakestream(folder, ["--storage", f"s3://{s3.bucket('lake')}", "--profile", "cost"], keys)
        try:
            await server.start()
            yield server
        finally:
            server.kill()


async def _puts(server: Server) -> float:
    """So far, as the server itself counts them."""

    def count() -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics", timeout=10) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == "lakestream_storage_operation_seconds_count" and sample.labels["operation"] == "put"
        )

    return await asyncio.to_thread(count)
