"""Records that compress as events do: about a third of them is chance, the rest are words that return."""

import random
from typing import Final

from benchmarks.kafka.load.tasks import Values

SIZE: Final = 1024


def records(wanted: Values = Values(), seed: int = 1) -> list[bytes]:  # noqa: B008 -- frozen
    luck = random.Random(seed)
    words = [luck.randbytes(luck.randrange(2, 5)).hex() for _ in range(64)]
    return [_record(luck, words, wanted.chance) for _ in range(wanted.count)]


def _record(luck: random.Random, words: list[str], chance: int) -> bytes:
    fields = [f'"{luck.choice(words)}":"{luck.choice(words)} {luck.choice(words)}"' for _ in range(28)]
    text = f'{{"id":"{luck.randbytes(chance).hex()}",{",".join(fields)}}}'.encode()
    return text[:SIZE].ljust(SIZE, b" ")
