"""Which of a table's writers of plain JSON each value is of, and what the table should know besides.

Before: `typing.py`, for topics with `lakestream.value.schema=json`.  After: the codec of each writer.

A table has several such writers: its shape grew, or several programs write to the topic, each in its style. A value
goes with the newest one that gives it back. All values are looked at for keys and types that are new; whether a style
still fits is seen in some of them, as long as there is only one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from lakestream.data.table.compiled import Longs
from lakestream.data.table.located import Located
from lakestream.data.typed import kernels_json_read as read
from lakestream.data.typed.framing import Group, Split
from lakestream.data.typed.json_codec import JsonCodec, json_codec
from lakestream.data.typed.json_infer import Learnt, given_back, wanted
from lakestream.schemas.model import Format
from lakestream.schemas.writers import Writer

SAMPLE_STEP: Final = 16
CODECS_MAX: Final = 64


@dataclass(frozen=True, slots=True, eq=False)
class Plain:
    split: Split
    learnt: Learnt | None = None
    """Not in the table yet: a writer of this would have columns for more, or need fewer bytes."""


def split_plain(values: Located, writers: Sequence[Writer]) -> Plain:
    """Values of JSON without a schema. Null values are in no group."""
    known = [one for one in sorted(writers, key=_age) if one.format == Format.JSON.value and not one.schema_id]
    places = np.flatnonzero(values.size >= 0)
    if not known:
        return Plain(Split(), wanted(values, places.size, ()))
    if len(known) == 1:
        return Plain(_split([(known[0], places)], values), _of_one(values, places, known[0]))
    found, left = _given_back(values, places, known)
    learnt = wanted(values.picked(left), places.size, known) if left.size else None
    newest = known[-1]
    return Plain(_split([*found, (newest, left)], values), learnt)


def _age(writer: Writer) -> int:
    """Numbers go down: the newest is last."""
    return -writer.number


def _split(found: Sequence[tuple[Writer, Longs]], values: Located) -> Split:
    whole: dict[int, Longs] = {}
    by_number = {writer.number: writer for writer, _ in found}
    for writer, places in found:
        whole[writer.number] = np.concatenate([whole.get(writer.number, places[:0]), places])
    return Split([Group(by_number[number], one, values.picked(one)) for number, one in whole.items() if one.size])


def _of_one(values: Located, places: Longs, writer: Writer) -> Learnt | None:
    codec = _codec(writer)
    decoded = codec.decode(values)
    odd = np.flatnonzero(decoded.strange | (decoded.problems >= read.MISFIT))
    if odd.size:
        learnt = wanted(values.picked(odd), places.size, (writer,))
        if learnt is not None:
            return learnt
    some = places[::SAMPLE_STEP]
    left = some[~given_back(values.picked(some), codec)]
    return wanted(values.picked(left), some.size, (writer,)) if left.size else None


def _given_back(values: Located, places: Longs, writers: Sequence[Writer]) -> tuple[list[tuple[Writer, Longs]], Longs]:
    """The values that each writer gives back, the newest asked first; and those that none does."""
    found = []
    for writer in reversed(writers):
        if not places.size:
            break
        is_back = given_back(values.picked(places), _codec(writer))
        found.append((writer, places[is_back]))
        places = places[~is_back]
    return found, places


@lru_cache(maxsize=CODECS_MAX)
def _codec(writer: Writer) -> JsonCodec:
    return json_codec(writer)
