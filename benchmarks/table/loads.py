"""Runs a load generator against a side, and measures all that works for it until what was sent is in the table."""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.measure import Run, evict, measured, warm_memory
from benchmarks.kafka.load.client import LoadFailed
from benchmarks.kafka.load.tasks import Produce
from benchmarks.kafka.loads import generator
from benchmarks.table.sides import PARTITIONS, TOPIC, VALUES, Side


@dataclass(frozen=True, slots=True)
class Moved(Run):
    """The amount is in bytes of records."""

    commits: int


def prepare(side: Side, folder: Path, size: int) -> None:
    """No run inherits another's pages, and none pays for memory that the machine has given back to its host."""
    evict(side.folder)
    warm_memory(folder, size)


async def moved(side: Side, records: int, values_from: str = "") -> Moved:
    """So many records, as fast as the broker takes them; it ends when the last of them is a row. `values_from`: a file
    of them, for values that are not of the usual kind."""
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
            side.commits.look()
            before, commits = side.commits.records, len(side.commits.all)
            with measured(*side.pids) as cost:
                producing.go()
                told = await producing.told()
                await side.commits.reach(before + records)
    except (LoadFailed, TimeoutError) as error:
        raise LoadFailed(f"{error}; the last that {side.name} said: {side.last_words()}") from error
    return Moved(told.size, cost, len(side.commits.all) - commits)
