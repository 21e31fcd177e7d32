"""Records that compress like events: about a third is random, the rest are repeated words."""

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.kafka.load.tasks import Values

SIZE: Final = 1024
_SIZE: Final = struct.Struct(">I")


def records(kind: Values = Values(), seed: int = 1) -> list[bytes]:  # noqa: B008 -- frozen
    rng = random.Random(seed)
    words = [rng.randbytes(rng.randrange(2, 5)).hex() for _ in range(64)]
    return [_record(rng, words, kind.random_bytes) for _ in range(kind.count)]


def write_values(values: Sequence[bytes], path: Path) -> None:
    """Writes values to a file for load generators, each after its size."""
    path.write_bytes(b"".join(_SIZE.pack(len(value)) + value for value in values))


def read_values(path: Path) -> list[bytes]:
    data, at, values = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size + size
        values.append(data[at - size : at])
    return values


def _record(rng: random.Random, words: list[str], random_bytes: int) -> bytes:
    fields = [f'"{rng.choice(words)}":"{rng.choice(words)} {rng.choice(words)}"' for _ in range(28)]
    text = f'{{"id":"{rng.randbytes(random_bytes).hex()}",{",".join(fields)}}}'.encode()
    return text[:SIZE].ljust(SIZE, b" ")
