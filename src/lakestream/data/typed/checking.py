"""Are the values and keys of a batch what their topic says? For `lakestream.on.invalid=reject`, while a producer waits.

Below coordination/admission.py, which looks schemas up. The same framing and codecs as in the pipeline: what is let in
here has columns there, unless the table contradicts. Runs in a thread of a broker.
"""

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
from lakestream.errors import LakestreamError
from lakestream.model import Buffer
from lakestream.schemas.typing import Mode, Part, Typed, WantedSchema
from lakestream.schemas.writers import Writer

CODECS_MAX: Final = 256
ROWS_MAX: Final = 32_768
NOT_JSON: Final = "it is no JSON"


class Wrong(NamedTuple):
    """Some records, and why they are refused."""

    numbers: tuple[int, ...]
    """Their places in the batch."""
    reason: str


class Checked(NamedTuple):
    wrong: list[Wrong]
    wanted: list[WantedSchema]
    """Schemas that have to be looked up first; then nothing is known yet."""


def check(batch: Buffer, value: Typed, key: Typed) -> Checked:
    """Corrupt: its records cannot be read."""
    checked = Checked([], [])
    before = 0
    for rows in decode([Source.single("the batch", batch, 0)], 0):
        for part, typed in ((Part.VALUE, value), (Part.KEY, key)):
            column = rows.column(VALUE) if part is Part.VALUE else rows.column(STREAM).field("key")
            if typed.mode is not Mode.NONE:
                _check_parts(part, typed, Located.of(column), before, checked)
        before += rows.num_rows
    return checked


def _check_parts(part: Part, typed: Typed, values: Located, before: int, checked: Checked) -> None:
    """Some at a time, and none that would have no columns for being too large: a broker has other things to do."""
    size = np.where(values.size > framing.VALUE_BYTES_MAX, -1, values.size)
    for start, end in pairwise(framing.cuts(size, ROWS_MAX, framing.BYTES_MAX)):
        some = Located(values.address[start:end], size[start:end], values.held)
        _check(part, typed, some, before + start, checked)


def _check(part: Part, typed: Typed, values: Located, before: int, checked: Checked) -> None:
    split = _split(typed, values)
    checked.wanted.extend(WantedSchema(part, one.schema_id, one.message) for one in split.wanted)
    for unknown in split.unknown:
        _note(checked, part, unknown.places + before, unknown.reason)
    for group in split.groups:
        codec = _codec(group.writer)
        if isinstance(codec, str):
            _note(checked, part, group.places + before, codec)
            continue
        problems = codec.decode(group.payload).problems
        for problem in np.unique(problems[problems != 0]).tolist():
            _note(checked, part, group.places[problems == problem] + before, codec.reason(problem))


def _split(typed: Typed, values: Located) -> framing.Split:
    match typed.mode:
        case Mode.REGISTRY:
            return framing.split(values, typed.writers)
        case Mode.JSON:
            return framing.Split(unknown=_not_json(values))
        case _:
            return framing.whole(values, typed.writers[0])


def _not_json(values: Located) -> list[framing.Unknown]:
    # Here and not above: only JSON needs the kernels of it.
    from lakestream.data.typed import kernels_json_read as read
    from lakestream.data.typed.json_codec import JsonCodec
    from lakestream.schemas.json.parts import NOTHING

    problems = JsonCodec(NOTHING).decode(values).problems
    places = np.flatnonzero((problems > 0) & (problems < read.MISFIT))
    return [framing.Unknown(NOT_JSON, 0, places)] if places.size else []


def _note(checked: Checked, part: Part, places: Longs, reason: str) -> None:
    said = f"key: {reason}" if part is Part.KEY else reason
    checked.wrong.append(Wrong(tuple(places.tolist()), said))


@lru_cache(maxsize=CODECS_MAX)
def _codec(writer: Writer) -> Codec | str:
    """Or why there is none."""
    if not writer.format:
        return writer.text
    try:
        return codec_of(writer)
    except LakestreamError as error:
        return str(error)
