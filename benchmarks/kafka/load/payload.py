"""Records that compress as events do: about a third of them is chance, the rest are words that return."""

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.kafka.load.tasks import Values

SIZE: Final = 1024
_SIZE: Final = struct.Struct(">I")


def records(wanted: Values = Values(), seed: int = 1) -> list[bytes]:  # noqa: B008 -- frozen
    luck = random.Random(seed)
    words = [luck.randbytes(luck.randrange(2, 5)).hex() for _ in range(64)]
    return [_record(luck, words, wanted.chance) for _ in range(wanted.count)]


def keep(values: Sequence[bytes], path: Path) -> None:
    """For generators that are told of them: each behind its size."""
    path.write_bytes(b"".join(_SIZE.pack(len(value)) + value for value in values))


def kept(path: Path) -> list[bytes]:
    data, at, values = path.read_bytes(), 0, []
    while at < len(data):
        (size,) = _SIZE.unpack_from(data, at)
        at += _SIZE.size + size
        values.append(data[at - size : at])
    return values


def _record(luck: random.Random, words: list[str], chance: int) -> bytes:
    fields = [f'"{luck.choice(words)}":"{luck.choice(words)} {luck.choice(words)}"' for _ in range(28)]
    text = f'{{"id":"{luck.randbytes(chance).hex()}",{",".join(fields)}}}'.encode()
    return text[:SIZE].ljust(SIZE, b" ")
