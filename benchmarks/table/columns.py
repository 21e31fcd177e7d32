"""Conversion of record batches to columns and back, on one core, without I/O: `python -m benchmarks.table.columns`.

Values are JSON-like (about 4:1), keys have 16 bytes. MB are those of keys and values, seconds are CPU seconds.
"""

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from lakestream.data.table.arrow.batch_encoder import encode
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.model import KiB, MiB
from lakestream.records.batch import CODECS, build
from lakestream.records.compression import compressed

BATCH_BYTES = 256 * KiB
PASSES = 5


class Load(NamedTuple):
    name: str
    source: BatchSource
    records: int
    payload: int


def main() -> None:
    print(f"{'load':38}{'decode':>11}{'':>11}{'encode':>12}{'':>11}")
    print(f"{'':38}{'M rec/s':>11}{'MB/s':>11}{'M rec/s':>12}{'MB/s':>11}")
    for value_size in (100, 1024):
        for codec in CODECS:
            _measure(load(f"{value_size} B, {codec}", value_size, codec, BATCH_BYTES // (value_size + 26)))
    _measure(load("100 B, none, three headers", 100, "none", 1800, headers=3))
    for codec in ("none", "lz4", "zstd"):
        _measure(load(f"100 B, {codec}, one record a batch", 100, codec, 1, bytes_all=10 * MiB))


def _measure(load: Load) -> None:
    def decoded() -> list[Any]:
        return list(decode([load.source], 0))

    reading = best(decoded)
    table = pa.Table.from_batches(decoded())
    assert table.num_rows == load.records
    writing = best(lambda: encode(table))
    print(f"{load.name:38}{_speeds(load, reading)} {_speeds(load, writing)}")


def _speeds(load: Load, seconds: float) -> str:
    return f"{load.records / seconds / 1e6:11.2f}{load.payload / seconds / 1e6:11.0f}"


def best(run: Callable[[], object]) -> float:
    """Returns the CPU seconds of this thread in the fastest pass, because other load can only slow a pass down."""
    taken = []
    for _ in range(PASSES):
        start = time.thread_time()
        run()
        taken.append(time.thread_time() - start)
    return min(taken)


def load(
    name: str, value_size: int, codec: str, batch_records: int, *, headers: int = 0, bytes_all: int = 64 * MiB
) -> Load:
    """Returns one buffer of batches, in which a few different batches are repeated."""
    count = max(1, bytes_all // ((value_size + 26) * batch_records))
    kinds = [_batch(random.Random(seed), value_size, codec, batch_records, headers) for seed in range(min(count, 16))]
    data = b"".join(kinds[number % len(kinds)] for number in range(count))
    records = count * batch_records
    offsets = np.arange(count, dtype=np.int64) * batch_records
    return Load(name, BatchSource.back_to_back(name, data, offsets), records, records * (value_size + 16))


def _batch(rng: random.Random, value_size: int, codec: str, count: int, headers: int) -> bytes:
    records = b"".join(_record(rng, delta, value_size, headers) for delta in range(count))
    return build(
        compressed(records, codec),
        count,
        attributes=CODECS.index(codec),
        base_timestamp=1_700_000_000_000,
        max_timestamp=1_700_000_000_000 + count,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
    )


def _record(rng: random.Random, delta: int, value_size: int, headers: int) -> bytes:
    entries = b"".join(_sized(b"header-%d" % number) + _sized(rng.randbytes(8)) for number in range(headers))
    body = b"\0" + _varint(delta) + _varint(delta) + _sized(rng.randbytes(16)) + _sized(_value(rng, value_size))
    body += _varint(headers) + entries
    return _varint(len(body)) + body


def _value(rng: random.Random, size: int) -> bytes:
    text = b""
    while len(text) < size:
        city = rng.choice([b"Berlin", b"Lisbon", b"Nairobi", b"Quito"])
        text += b'{"id":%d,"city":"%s","amount":%d.%02d},' % (
            rng.randrange(10**6),
            city,
            rng.randrange(999),
            rng.randrange(99),
        )
    return text[:size]


def _sized(field: bytes) -> bytes:
    return _varint(len(field)) + field


def _varint(number: int) -> bytes:
    rest, out = number << 1, bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes((*out, rest))


if __name__ == "__main__":
    main()
