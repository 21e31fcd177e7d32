"""The `cost` profile, without a peer: objects in a bucket of an S3 server on the same machine, and SQLite.

Target, at 5,000 records of 1 KiB per second: ack p50 at most 300 ms, and at most 1.2 times as many puts per second with
500 partitions as with 8.
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

from benchmarks.common.measure import run_in_turns
from benchmarks.common.report import Row, row
from benchmarks.kafka.load.tasks import Stamp
from benchmarks.kafka.loads import LoadRun, cores, run_load
from benchmarks.kafka.rounds import Bench
from benchmarks.kafka.servers import Server, lakestream
from lakestream.testing.servers import s3_server

FEW, MANY = 8, 500
PER_S = 5_000
SECONDS = 16
PRODUCERS = 8
"""A client sends one request per partition, which is 5,000 per second with many partitions, and each is in flight for
the duration of a flush: more than a broker accepts from one connection."""


@dataclass(frozen=True, slots=True)
class PutRun(LoadRun):
    puts: float

    @property
    def puts_per_s(self) -> float:
        return self.puts / self.cost.seconds


async def run(bench: Bench) -> list[Row]:
    count, numbers = PER_S * bench.scaled(SECONDS), itertools.count()

    def with_partitions(server: Server, partitions: int) -> Callable[[], Awaitable[PutRun]]:
        async def work() -> PutRun:
            topic = f"cost-{next(numbers)}"
            await server.create_topics([topic], partitions)
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
            run = await run_load(server, task, amount=count)
            puts = await _puts(server) - before
            await server.delete_topic(topic)
            return PutRun(run.amount, run.cost, run.results, puts)

        return work

    async with _on_bucket(bench.stage.new_folder()) as server:
        works = [with_partitions(server, partitions) for partitions in (FEW, MANY)]
        pairs, quiet = await run_in_turns(works, bench.runs, bench.attempts)
    few, many = [run for run, _ in pairs], [run for _, run in pairs]
    ratio = statistics.median(of_many.puts_per_s / of_few.puts_per_s for of_few, of_many in pairs)
    return [
        *_acks(few, FEW, quiet),
        *_acks(many, MANY, quiet),
        row(
            "cost",
            f"puts with {MANY} partitions compared with {FEW}",
            ratio,
            "times",
            at_most=1.2,
            quiet=quiet,
            note=f"{_median(few, _puts_per_s):.1f} and {_median(many, _puts_per_s):.1f} puts/s",
        ),
    ]


def _acks(runs: list[PutRun], partitions: int, quiet: bool) -> list[Row]:
    p99 = _median(runs, lambda run: run.results[0].p99_ms)
    return [
        row(
            "cost",
            f"{PER_S:,} records/s to {partitions} partitions, cost profile on S3, ack",
            _median(runs, lambda run: run.results[0].p50_ms),
            "ms p50",
            at_most=300,
            quiet=quiet,
            note=f"p99 {p99:.0f} ms; {_median(runs, _puts_per_s):.1f} puts/s; {_median(runs, cores):.2f} cores",
        )
    ]


def _median(runs: list[PutRun], figure: Callable[[PutRun], float]) -> float:
    return statistics.median(map(figure, runs))


def _puts_per_s(run: PutRun) -> float:
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
    """Returns the puts so far, from the server's metrics."""

    def count() -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics", timeout=10) as response:
            families = text_string_to_metric_families(response.read().decode())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == "lakestream_storage_operation_seconds_count" and sample.labels["operation"] == "put"
        )

    return await asyncio.to_thread(count)
