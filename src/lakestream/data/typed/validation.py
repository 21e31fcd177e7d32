"""Validates the values and keys of a batch, for `lakestream.invalid.record.action=reject`, while a producer waits.

Called by coordination/validation/schema_validation.py, which looks up schemas. Uses the wire format and codecs of the
pipeline: a value that is valid here gets columns there, unless the table has other columns. (Plain JSON may be of any
type: a number is valid, and has no column only if the table is one of objects.) Runs in a thread of a broker.

Rules of a JSON Schema beyond types (`required`, `minimum`, …) do not affect columns. The caller has decoded values
validated against these by coordination/validation/validator_process.py.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from lakestream.aio.cache import weighted_cache
from lakestream.catalog.topic_table.columns import STREAM, VALUE
from lakestream.data.table.arrow.byte_spans import ByteSpans
from lakestream.data.table.kernels.compile import Longs
from lakestream.data.table.write.batch_decoder import decode
from lakestream.data.table.write.batch_headers import BatchSource
from lakestream.data.typed import wire_format
from lakestream.data.typed.codec import TOO_MANY, Codec
from lakestream.data.typed.format_codecs import codec_of
from lakestream.data.typed.json_schema.messages import ValidatorSchema
from lakestream.data.typed.values_to_columns import TOO_LARGE
from lakestream.errors import LakestreamError
from lakestream.model import Buffer
from lakestream.schemas.model import Format
from lakestream.schemas.value_format import FieldConversion, MissingSchema, SchemaMode, ValuePart
from lakestream.schemas.writer_schema import CODECS_WEIGHT_MAX, WriterSchema, weight_of

ROWS_MAX: Final = 32_768
JSON: Final = Format.JSON.value
PLACES_MAX: Final = 20
"""Values for which the error response contains the place of the error; for more values, only the reason."""


class InvalidRecordSet(NamedTuple):
    """Records that are rejected for one reason."""

    numbers: tuple[int, ...]
    """Their indexes in the batch."""
    reason: str


@dataclass(frozen=True, slots=True)
class ValuesToValidate:
    """Decoded values that are still to be validated against their JSON Schema."""

    schema: ValidatorSchema
    part: ValuePart
    numbers: list[int] = field(default_factory=list)
    """Their indexes in the batch."""
    values: list[bytes] = field(default_factory=list)
    misfits: dict[int, str] = field(default_factory=dict)
    """By index, the reason of a value that would have no column; it is rejected even if its schema allows it."""


class CheckedBatch(NamedTuple):
    invalid: list[InvalidRecordSet]
    missing: list[MissingSchema]
    """Schemas that the caller has to look up; then the other results are incomplete."""
    to_validate: list[ValuesToValidate]


def check(batch: Buffer, value: FieldConversion, key: FieldConversion) -> CheckedBatch:
    """Decodes all values and keys of a batch. Corrupt: its records cannot be read."""
    checked = CheckedBatch([], [], [])
    before = 0
    for rows in decode([BatchSource.single("the batch", batch, 0)], 0):
        for part, typed in ((ValuePart.VALUE, value), (ValuePart.KEY, key)):
            column = rows.column(VALUE) if part is ValuePart.VALUE else rows.column(STREAM).field("key")
            if typed.mode is not SchemaMode.NONE:
                _check_column(part, typed, ByteSpans.of(column), before, checked)
        before += rows.num_rows
    return checked


def reason_of(part: ValuePart, reason: str) -> str:
    return f"key: {reason}" if part is ValuePart.KEY else reason


def _check_column(
    part: ValuePart, typed: FieldConversion, values: ByteSpans, before: int, checked: CheckedBatch
) -> None:
    """Validates one column in chunks, to bound memory. Values too large for columns are rejected without decoding."""
    is_large = values.size > wire_format.VALUE_BYTES_MAX
    _add_invalid(checked, part, np.flatnonzero(is_large) + before, TOO_LARGE)
    size = np.where(is_large, -1, values.size)
    for start, end in pairwise(wire_format.chunk_bounds(size, ROWS_MAX, wire_format.BYTES_MAX)):
        some = ByteSpans(values.address[start:end], size[start:end], values.held)
        _check(part, typed, some, before + start, checked)


def _check(part: ValuePart, typed: FieldConversion, values: ByteSpans, before: int, checked: CheckedBatch) -> None:
    if typed.mode is SchemaMode.JSON:
        _check_json(part, values, before, checked)
        return
    split = (
        wire_format.split_by_schema_id(values, typed.writers)
        if typed.mode is SchemaMode.REGISTRY
        else _whole(typed, values)
    )
    checked.missing.extend(MissingSchema(part, one.schema_id, one.message) for one in split.missing)
    for unconvertible in split.unconvertible:
        _add_invalid(checked, part, unconvertible.places + before, unconvertible.reason)
    for group in split.groups:
        codec = _codec(group.writer)
        if isinstance(codec, str):
            _add_invalid(checked, part, group.places + before, codec)
        elif group.writer.format == JSON:
            _check_json_with_schema(part, group, codec, before, checked)
        else:
            problems = codec.problems(group.payload)
            for problem in np.unique(problems[problems != 0]).tolist():
                _add_invalid(checked, part, group.places[problems == problem] + before, codec.reason(problem))


def _whole(typed: FieldConversion, values: ByteSpans) -> wire_format.SplitValues:
    return wire_format.single_group(values, typed.writers[0])


def _add_invalid(checked: CheckedBatch, part: ValuePart, places: Longs, reason: str) -> None:
    if places.size:
        checked.invalid.append(InvalidRecordSet(tuple(places.tolist()), reason_of(part, reason)))


@weighted_cache(CODECS_WEIGHT_MAX, weight_of)
def _codec(writer: WriterSchema) -> Codec | str:
    """Returns the codec, or the reason why the schema has none."""
    if not writer.format:
        return writer.text
    try:
        return codec_of(writer)
    except LakestreamError as error:
        return str(error)


# JSON. Its modules are imported late, because only JSON needs their kernels.


@weighted_cache(CODECS_WEIGHT_MAX, weight_of)
def _validator_schema(writer: WriterSchema) -> ValidatorSchema:
    from lakestream.data.typed.json_schema.validator_input import validator_schema

    return validator_schema(writer.text, writer.references)


def _check_json_with_schema(
    part: ValuePart, group: wire_format.WriterGroup, codec: Codec, before: int, checked: CheckedBatch
) -> None:
    """Rejects invalid JSON; adds all other values to `to_validate`: the validator describes wrong types better."""
    from lakestream.data.typed.json.read_kernels import WRONG_TYPE

    problems, numbers = codec.problems(group.payload), group.places + before
    too_many, is_json = problems == TOO_MANY, (problems == 0) | (problems >= WRONG_TYPE)
    _add_invalid(checked, part, numbers[too_many], codec.reason(TOO_MANY))
    for problem in np.unique(problems[~is_json & ~too_many]).tolist():
        places = np.flatnonzero(problems == problem)
        _add_json_invalid(checked, part, codec.reason(problem), group.payload, numbers, places)
    to_validate = ValuesToValidate(_validator_schema(group.writer), part)
    for place in np.flatnonzero(is_json).tolist():
        number, problem = int(numbers[place]), int(problems[place])
        to_validate.numbers.append(number)
        to_validate.values.append(wire_format.bytes_at(group.payload, place, wire_format.VALUE_BYTES_MAX))
        if problem:
            to_validate.misfits[number] = codec.reason(problem)
    if to_validate.numbers:
        checked.to_validate.append(to_validate)


def _check_json(part: ValuePart, values: ByteSpans, before: int, checked: CheckedBatch) -> None:
    """Validates JSON without a schema. Duplicate keys and unpaired surrogates are invalid: they have no column."""
    from lakestream.data.typed.json import key_kernels as keys
    from lakestream.data.typed.json.codec import JsonCodec
    from lakestream.data.typed.json.read_kernels import UNPAIRED_SURROGATE, WRONG_TYPE
    from lakestream.data.typed.json_schema.error_location import invalid_content
    from lakestream.schemas.json.json_types import NOTHING

    codec, numbers = JsonCodec(NOTHING), np.arange(values.size.size) + before
    problems = codec.problems(values)
    for problem in np.unique(problems[(problems > 0) & (problems < WRONG_TYPE)]).tolist():
        _add_json_invalid(checked, part, codec.reason(problem), values, numbers, np.flatnonzero(problems == problem))
    fine = np.flatnonzero((values.size >= 0) & ((problems == 0) | (problems >= WRONG_TYPE)))
    if not fine.size:
        return
    some, found = values.picked(fine), np.zeros(fine.size, np.uint8)
    room = keys.table_size(int(some.size.max()))
    keys.check_keys(some.address, some.size, np.full(room, -1, np.int64), np.zeros(room, np.uint64), found)
    unpaired = fine[found == keys.UNPAIRED_SURROGATE]
    _add_json_invalid(checked, part, codec.reason(UNPAIRED_SURROGATE), values, numbers, unpaired)
    for place in fine[found == keys.SUSPECT].tolist():
        reason = invalid_content(wire_format.bytes_at(values, place, wire_format.VALUE_BYTES_MAX))
        if reason is not None:
            _add_invalid(checked, part, numbers[place : place + 1], reason)


def _add_json_invalid(
    checked: CheckedBatch, part: ValuePart, reason: str, values: ByteSpans, numbers: Longs, places: Longs
) -> None:
    """Adds invalid values, the first ones with the place of the error."""
    from lakestream.data.typed.json_schema.error_location import located

    for place in places[:PLACES_MAX].tolist():
        text = wire_format.bytes_at(values, place, wire_format.VALUE_BYTES_MAX)
        _add_invalid(checked, part, numbers[place : place + 1], located(reason, text))
    _add_invalid(checked, part, numbers[places[PLACES_MAX:]], reason)


def first_reasons(invalid: Sequence[InvalidRecordSet]) -> dict[int, str]:
    """Returns the first reason of each invalid record, by index in the batch."""
    reasons: dict[int, str] = {}
    for one in invalid:
        for number in one.numbers:
            reasons.setdefault(number, one.reason)
    return dict(sorted(reasons.items()))
