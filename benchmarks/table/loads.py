"""Runs a load generator on a side, and measures its processes until the sent records are in the table."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.measure import Run, evict, measured, warm_memory
from benchmarks.kafka.load.client import LoadFailed
from benchmarks.kafka.load.tasks import Produce
from benchmarks.kafka.loads import generator
from benchmarks.table.servers import PARTITIONS, TOPIC, VALUES, Side


@dataclass(frozen=True, slots=True)
class MoveRun(Run):
    """A run whose amount is in bytes of records."""

    commits: int


def prepare(side: Side, folder: Path, size: int) -> None:
    """Empties the page cache, and requests memory that the machine has returned to its host."""
    evict(side.folder)
    warm_memory(folder, size)


async def move_records(side: Side, records: int, values_from: str = "") -> MoveRun:
    """Produces records as fast as the broker accepts them, and waits until all are rows of the table.

    `values_from` is a file with other values."""
    task = Produce(
        bootstrap=side.broker.bootstrap,
        topic=TOPIC,
        partitions=PARTITIONS,
        records=records,
        codec="none",
        values=VALUES,
        values_from=values_from,
    )
    try:
        async with generator(task) as producing:
            side.commits.refresh()
            before, commits = side.commits.records, len(side.commits.all)
            with measured(*side.pids) as cost:
                producing.go()
                result = await producing.result()
                await side.commits.reach(before + records)
    except (LoadFailed, TimeoutError) as error:
        raise LoadFailed(f"{error}; end of the log of {side.name}: {side.log_tail()}") from error
    return MoveRun(result.size, cost, len(side.commits.all) - commits)
