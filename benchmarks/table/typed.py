"""Values of 15 fields on their way into the table's Parquet files, one core, nothing read or stored:
`python -m benchmarks.table.typed` for the steps one by one.

Record batches → rows → columns, encoded back and compared → Parquet, which is what a worker of the pipeline does. The
records are orders: numbers, texts, an enum, a decimal, a date, times, a UUID, a third of the optional fields null.
Asked: at least 300,000 records per second of CPU, whatever the format; and every value comes back from its columns, so
that none keeps its bytes.
"""

import asyncio
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from benchmarks.common.measure import measured
from benchmarks.common.report import Row, row
from benchmarks.kafka.rounds import Bench
from benchmarks.table.orders import FORMATS, Made, order
from lakestream.batch import build
from lakestream.catalog.topic_layout import FIRST_FREE_ID
from lakestream.data.table.arrow import PLAIN_COLUMNS
from lakestream.data.table.decode import decode
from lakestream.data.table.heads import Source
from lakestream.data.table.parquet import write_parquet
from lakestream.data.typed.codecs import codec_of
from lakestream.data.typed.typing import Typist
from lakestream.schemas.columns import Column
from lakestream.schemas.growing import grown
from lakestream.schemas.typing import Mode, Typed, Typing

RECORDS: Final = 500_000
KINDS: Final = 20_000
"""Records that differ; they come again and again."""
BATCH: Final = 1_000
PASSES: Final = 5
ASKED: Final = 300_000


class Load(NamedTuple):
    source: Source
    records: int
    columns: tuple[Column, ...]
    typing: Typing


async def run(bench: Bench) -> list[Row]:
    return [await asyncio.to_thread(_row, name, bench.scaled(RECORDS)) for name in FORMATS]


def _row(name: str, count: int) -> Row:
    load = _load(FORMATS[name], count)
    typist = Typist(load.columns, load.typing)
    with measured() as cost:
        seconds = _best(lambda: _written(load, typist))
    raw = typist.tally.raw / (typist.tally.typed + typist.tally.raw)
    return row(
        "typed",
        f"{name} values of 15 fields into Parquet, per second of CPU",
        load.records / seconds,
        "records/s",
        at_least=ASKED,
        quiet=cost.is_quiet,
        note=f"{raw:.1%} keep their bytes",
    )


def _written(load: Load, typist: Typist) -> int:
    files = write_parquet(typist.typed(_rows(load)), str, columns=typist.columns)
    return sum(len(file.body) for file in files)


def _rows(load: Load) -> Iterator[Any]:
    return decode([load.source], 0)


def _load(make: Callable[[list[dict[str, Any]]], Made], count: int) -> Load:
    luck = random.Random(7)
    made = make([order(luck, number) for number in range(min(count, KINDS))])
    shape = codec_of(made.writer).shape
    table = grown((PLAIN_COLUMNS[-1],), shape, FIRST_FREE_ID)
    assert not table.reasons, table.reasons
    writer = msgspec.structs.replace(made.writer, columns=table.bounds)
    batches = [_batch(made.values[start : start + BATCH]) for start in range(0, len(made.values), BATCH)]
    whole = [batches[number % len(batches)] for number in range(count // BATCH)]
    source = Source.back_to_back("values", b"".join(whole), [number * BATCH for number in range(len(whole))])
    mode = Mode.REGISTRY if writer.framed else Mode.JSON
    return Load(source, len(whole) * BATCH, table.columns, Typing(Typed(mode, (writer,), writer.number)))


def _batch(values: list[bytes]) -> bytes:
    records = b"".join(_record(delta, value) for delta, value in enumerate(values))
    return build(
        records,
        len(values),
        attributes=0,
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_000 + len(values),
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )


def _record(delta: int, value: bytes) -> bytes:
    body = b"\0" + _varint(delta) + _varint(delta) + _varint(-1) + _varint(len(value)) + value + _varint(0)
    return _varint(len(body)) + body


def _varint(number: int) -> bytes:
    rest, out = (number << 1) ^ (number >> 63), bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*out, rest))


def _best(work: Callable[[], object]) -> float:
    """CPU of this process, all threads, in the fastest pass: the machine is rarely quiet, and never too fast."""
    taken = []
    for _ in range(PASSES):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def main() -> None:
    print(f"{'records per second of CPU':28}{'rows':>12}{'+ columns':>12}{'+ Parquet':>12}{'keep bytes':>12}")
    for name in sys.argv[1:] or FORMATS:
        load = _load(FORMATS[name], RECORDS // 4)
        typist = Typist(load.columns, load.typing)
        steps: list[Callable[[], object]] = [
            lambda load=load: list(_rows(load)),  # type: ignore[misc]
            lambda load=load, typist=typist: list(typist.typed(_rows(load))),  # type: ignore[misc]
            partial(_written, load, typist),
        ]
        speeds = "".join(f"{load.records / _best(step):12,.0f}" for step in steps)
        raw = typist.tally.raw / (typist.tally.typed + typist.tally.raw)
        print(f"{name:28}{speeds}{raw:12.1%}", flush=True)


if __name__ == "__main__":
    main()
