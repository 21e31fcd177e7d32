"""Produce in bulk: 1 KiB records over 8 partitions, as fast as the server takes them.

Asked: server CPU per GB of records not above that of an Apache Kafka that syncs nothing, while every ack of ours is
durable.
"""

import itertools

from benchmarks.common.report import Row
from benchmarks.kafka.load.payload import SIZE
from benchmarks.kafka.load.tasks import Produce
from benchmarks.kafka.loads import Loaded, cpu_s_per_gb, loaded, mb_per_s
from benchmarks.kafka.rounds import Bench, peak_memory, prepare, rounds
from benchmarks.kafka.sides import KAFKA, KAFKA_SYNCED, LAKESTREAM, Server, servers

PARTITIONS = 8
RECORDS = 1_000_000
CODECS = ("none", "lz4")


async def run(bench: Bench) -> list[Row]:
    rows: list[Row] = []
    async with servers(bench.of(LAKESTREAM, KAFKA, KAFKA_SYNCED), bench.stage.fresh()) as sides:
        for codec in CODECS:
            rows += await _produced(bench, sides, codec)
        rows.append(peak_memory("produce", "peak memory while producing", sides))
    return rows


async def _produced(bench: Bench, sides: list[Server], codec: str) -> list[Row]:
    count, numbers = bench.scaled(RECORDS), itertools.count()

    async def work(server: Server) -> Loaded:
        topic = f"produce-{codec}-{next(numbers)}"
        await server.make_topics([topic], PARTITIONS)
        prepare(server, bench.stage.folder, count * SIZE)
        task = Produce(bootstrap=server.bootstrap, topic=topic, partitions=PARTITIONS, records=count, codec=codec)
        found = await loaded(server, task, amount=count * SIZE)
        await server.delete_topic(topic)
        return found

    # The client makes its batches as large as the server is slow, up to 1 MB.
    found = await rounds(bench, sides, work, warm_ups=2)
    batches = ", ".join(f"{side.name} {found.median(side.name, _batch_kib):.0f}" for side in sides)
    what = f"produce 1 KiB records, {codec}"
    return [
        found.row("produce", what, mb_per_s, "MB/s", note=f"KiB in a batch: {batches}"),
        found.row("produce", f"server CPU of it, {codec}", cpu_s_per_gb, "s/GB", at_most=1.0),
    ]


def _batch_kib(run: Loaded) -> float:
    return run.told[0].batch_bytes / 1024
