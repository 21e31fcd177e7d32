"""Conversion of values with 15 fields to the table's Parquet files, on one core, without I/O.

`python -m benchmarks.table.typed` prints the speed after each step.

Steps as in a worker of the pipeline: record batches → rows → columns, encoded back and compared → Parquet. The
records are orders: numbers, texts, an enum, a decimal, a date, times, a UUID, a third of the optional fields null.
Target: at least 300,000 records per second of CPU in every format; and columns reproduce every value, so that none
keeps its bytes.
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
from benchmarks.table.orders import FORMATS, EncodedOrders, order
from lakestream.catalog.topic_table.columns import FIRST_FREE_ID
from lakestream.data.table.arrow.types import PLAIN_COLUMNS
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.table.write.parquet_writer import write_parquet
from lakestream.data.typed.format_codecs import codec_of
from lakestream.data.typed.values_to_columns import ValueConverter
from lakestream.records.batch import build
from lakestream.schemas.column_evolution import evolve_columns
from lakestream.schemas.columns import Column
from lakestream.schemas.value_format import ConversionSettings, FieldConversion, SchemaMode

RECORDS: Final = 500_000
KINDS: Final = 20_000
"""Number of different records; they are repeated."""
BATCH: Final = 1_000
PASSES: Final = 5
RECORDS_PER_S_MIN: Final = 300_000


class Load(NamedTuple):
    source: BatchSource
    records: int
    columns: tuple[Column, ...]
    typing: ConversionSettings


async def run(bench: Bench) -> list[Row]:
    return [await asyncio.to_thread(_row, name, bench.scaled(RECORDS)) for name in FORMATS]


def _row(name: str, count: int) -> Row:
    load = _load(FORMATS[name], count)
    converter = ValueConverter(load.columns, load.typing)
    with measured() as cost:
        seconds = _best(lambda: _write_parquet(load, converter))
    raw = converter.stats.unconverted / (converter.stats.converted + converter.stats.unconverted)
    return row(
        "typed",
        f"{name} values of 15 fields into Parquet, per second of CPU",
        load.records / seconds,
        "records/s",
        at_least=RECORDS_PER_S_MIN,
        quiet=cost.is_quiet,
        note=f"{raw:.1%} keep their bytes",
    )


def _write_parquet(load: Load, converter: ValueConverter) -> int:
    files = write_parquet(converter.convert(_rows(load)), str, columns=converter.columns)
    return sum(len(file.body) for file in files)


def _rows(load: Load) -> Iterator[Any]:
    return decode([load.source], 0)


def _load(encode: Callable[[list[dict[str, Any]]], EncodedOrders], count: int) -> Load:
    rng = random.Random(7)
    encoded = encode([order(rng, number) for number in range(min(count, KINDS))])
    shape = codec_of(encoded.writer).shape
    table = evolve_columns((PLAIN_COLUMNS[-1],), shape, FIRST_FREE_ID)
    assert not table.reasons, table.reasons
    writer = msgspec.structs.replace(encoded.writer, columns=table.bindings)
    batches = [_batch(encoded.values[start : start + BATCH]) for start in range(0, len(encoded.values), BATCH)]
    whole = [batches[number % len(batches)] for number in range(count // BATCH)]
    source = BatchSource.back_to_back("values", b"".join(whole), [number * BATCH for number in range(len(whole))])
    mode = SchemaMode.REGISTRY if writer.framed else SchemaMode.JSON
    return Load(
        source, len(whole) * BATCH, table.columns, ConversionSettings(FieldConversion(mode, (writer,), writer.number))
    )


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
    """Returns the CPU seconds of this process in the fastest pass, because other load can only slow a pass down."""
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
        converter = ValueConverter(load.columns, load.typing)
        steps: list[Callable[[], object]] = [
            lambda load=load: list(_rows(load)),  # type: ignore[misc]
            lambda load=load, converter=converter: list(converter.convert(_rows(load))),  # type: ignore[misc]
            partial(_write_parquet, load, converter),
        ]
        speeds = "".join(f"{load.records / _best(step):12,.0f}" for step in steps)
        raw = converter.stats.unconverted / (converter.stats.converted + converter.stats.unconverted)
        print(f"{name:28}{speeds}{raw:12.1%}", flush=True)


if __name__ == "__main__":
    main()
