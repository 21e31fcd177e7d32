"""Are the values and keys of a batch what their topic says? For `lakestream.on.invalid=reject`, while a producer waits.

Below coordination/admission.py, which looks schemas up. The same framing and codecs as in the pipeline: what is let in
here has columns there, unless the table contradicts. (Plain JSON may be of any kind: a number is one, and only a table
of objects has no column for it.) Runs in a thread of a broker.

What a JSON Schema demands beyond types (`required`, `minimum`, …) is no matter of columns. Values that could be read
are handed on, with these demands, to a judge: coordination/judging.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from lakestream.catalog.topic_layout import STREAM, VALUE
from lakestream.data.table.compiled import Longs
from lakestream.data.table.decode import decode
from lakestream.data.table.heads import Source
from lakestream.data.table.located import Located
from lakestream.data.typed import framing
from lakestream.data.typed.codec import Codec
from lakestream.data.typed.codecs import codec_of
from lakestream.data.typed.judged import Rules
from lakestream.data.typed.typing import TOO_LARGE
from lakestream.errors import LakestreamError
from lakestream.model import Buffer
from lakestream.schemas.model import Format
from lakestream.schemas.typing import Mode, Part, Typed, WantedSchema
from lakestream.schemas.writers import Writer

CODECS_MAX: Final = 256
ROWS_MAX: Final = 32_768
JSON: Final = Format.JSON.value
PLACES_MAX: Final = 20
"""Values of which a producer is told also where in them something is wrong: of others only what."""


class Wrong(NamedTuple):
    """Some records, and why they are refused."""

    numbers: tuple[int, ...]
    """Their places in the batch."""
    reason: str


@dataclass(frozen=True, slots=True)
class Unjudged:
    """Values that could be read, and are still to be held against their schema."""

    rules: Rules
    part: Part
    numbers: list[int] = field(default_factory=list)
    """Their places in the batch."""
    values: list[bytes] = field(default_factory=list)
    misfits: dict[int, str] = field(default_factory=dict)
    """By these: what has no column, which is refused also where the schema would have it."""


class Checked(NamedTuple):
    wrong: list[Wrong]
    wanted: list[WantedSchema]
    """Schemas that have to be looked up first; then nothing is known yet."""
    unjudged: list[Unjudged]


def check(batch: Buffer, value: Typed, key: Typed) -> Checked:
    """Corrupt: its records cannot be read."""
    checked = Checked([], [], [])
    before = 0
    for rows in decode([Source.single("the batch", batch, 0)], 0):
        for part, typed in ((Part.VALUE, value), (Part.KEY, key)):
            column = rows.column(VALUE) if part is Part.VALUE else rows.column(STREAM).field("key")
            if typed.mode is not Mode.NONE:
                _check_parts(part, typed, Located.of(column), before, checked)
        before += rows.num_rows
    return checked


def noted(part: Part, reason: str) -> str:
    return f"key: {reason}" if part is Part.KEY else reason


def _check_parts(part: Part, typed: Typed, values: Located, before: int, checked: Checked) -> None:
    """Some at a time: a broker has other things to do. One that would have no columns for being too large is refused
    before anybody reads it."""
    is_large = values.size > framing.VALUE_BYTES_MAX
    _note(checked, part, np.flatnonzero(is_large) + before, TOO_LARGE)
    size = np.where(is_large, -1, values.size)
    for start, end in pairwise(framing.cuts(size, ROWS_MAX, framing.BYTES_MAX)):
        some = Located(values.address[start:end], size[start:end], values.held)
        _check(part, typed, some, before + start, checked)


def _check(part: Part, typed: Typed, values: Located, before: int, checked: Checked) -> None:
    if typed.mode is Mode.JSON:
        _check_json(part, values, before, checked)
        return
    split = framing.split(values, typed.writers) if typed.mode is Mode.REGISTRY else _whole(typed, values)
    checked.wanted.extend(WantedSchema(part, one.schema_id, one.message) for one in split.wanted)
    for unknown in split.unknown:
        _note(checked, part, unknown.places + before, unknown.reason)
    for group in split.groups:
        codec = _codec(group.writer)
        if isinstance(codec, str):
            _note(checked, part, group.places + before, codec)
        elif group.writer.format == JSON:
            _check_with_rules(part, group, codec, before, checked)
        else:
            problems = codec.decode(group.payload).problems
            for problem in np.unique(problems[problems != 0]).tolist():
                _note(checked, part, group.places[problems == problem] + before, codec.reason(problem))


def _whole(typed: Typed, values: Located) -> framing.Split:
    return framing.whole(values, typed.writers[0])


def _note(checked: Checked, part: Part, places: Longs, reason: str) -> None:
    if places.size:
        checked.wrong.append(Wrong(tuple(places.tolist()), noted(part, reason)))


@lru_cache(maxsize=CODECS_MAX)
def _codec(writer: Writer) -> Codec | str:
    """Or why there is none."""
    if not writer.format:
        return writer.text
    try:
        return codec_of(writer)
    except LakestreamError as error:
        return str(error)


# JSON. Its modules are imported here and not above: only JSON needs the kernels of it.


@lru_cache(maxsize=CODECS_MAX)
def _rules(writer: Writer) -> Rules:
    from lakestream.data.typed.json_rules import rules_of

    return rules_of(writer.text, writer.references)


def _check_with_rules(part: Part, group: framing.Group, codec: Codec, before: int, checked: Checked) -> None:
    """What is no JSON is refused here; all else goes to the judge, who knows better words for a type that is wrong."""
    from lakestream.data.typed.kernels_json_read import MISFIT

    problems, numbers = codec.decode(group.payload).problems, group.places + before
    is_json = (problems == 0) | (problems >= MISFIT)
    for problem in np.unique(problems[~is_json]).tolist():
        places = np.flatnonzero(problems == problem)
        _note_json(checked, part, codec.reason(problem), group.payload, numbers, places)
    unjudged = Unjudged(_rules(group.writer), part)
    for place in np.flatnonzero(is_json).tolist():
        number, problem = int(numbers[place]), int(problems[place])
        unjudged.numbers.append(number)
        unjudged.values.append(framing.bytes_at(group.payload, place, framing.VALUE_BYTES_MAX))
        if problem:
            unjudged.misfits[number] = codec.reason(problem)
    if unjudged.numbers:
        checked.unjudged.append(unjudged)


def _check_json(part: Part, values: Located, before: int, checked: Checked) -> None:
    """JSON without a schema. A key that is there twice, or half of a character, would have no column."""
    from lakestream.data.typed import kernels_json_keys as keys
    from lakestream.data.typed.json_codec import JsonCodec
    from lakestream.data.typed.json_places import suspicion
    from lakestream.data.typed.kernels_json_read import HALF_A_PAIR, MISFIT
    from lakestream.schemas.json.parts import NOTHING

    codec, numbers = JsonCodec(NOTHING), np.arange(values.size.size) + before
    problems = codec.decode(values).problems
    for problem in np.unique(problems[(problems > 0) & (problems < MISFIT)]).tolist():
        _note_json(checked, part, codec.reason(problem), values, numbers, np.flatnonzero(problems == problem))
    fine = np.flatnonzero((values.size >= 0) & ((problems == 0) | (problems >= MISFIT)))
    if not fine.size:
        return
    some, found = values.picked(fine), np.zeros(fine.size, np.uint8)
    room = keys.table_size(int(some.size.max()))
    keys.look_at_keys(some.address, some.size, np.full(room, -1, np.int64), np.zeros(room, np.uint64), found)
    halves = fine[found == keys.HALF_A_PAIR]
    _note_json(checked, part, codec.reason(HALF_A_PAIR), values, numbers, halves)
    for place in fine[found == keys.SUSPECT].tolist():
        reason = suspicion(framing.bytes_at(values, place, framing.VALUE_BYTES_MAX))
        if reason is not None:
            _note(checked, part, numbers[place : place + 1], reason)


def _note_json(checked: Checked, part: Part, reason: str, values: Located, numbers: Longs, places: Longs) -> None:
    """The first ones with where it is."""
    from lakestream.data.typed.json_places import said

    for place in places[:PLACES_MAX].tolist():
        text = framing.bytes_at(values, place, framing.VALUE_BYTES_MAX)
        _note(checked, part, numbers[place : place + 1], said(reason, text))
    _note(checked, part, numbers[places[PLACES_MAX:]], reason)


def first_of(wrong: Sequence[Wrong]) -> dict[int, str]:
    """By number of the record what is wrong with it first."""
    reasons: dict[int, str] = {}
    for one in wrong:
        for number in one.numbers:
            reasons.setdefault(number, one.reason)
    return dict(sorted(reasons.items()))
