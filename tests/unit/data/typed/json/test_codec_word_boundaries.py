"""JSON codec with special content at every place of a word, because kernels read and write words of eight bytes.

Also at the end of the readable memory.
"""

import random
import uuid
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from tests.unit.data.typed.json.test_codec import INTEGER, NUMBER, STRING, codec_for, record, rows, through

from lakestream.data.typed.json.text_style import MomentForm, NumberAndDateFormat, Style
from lakestream.data.typed.json.write_kernels import AS_Z

DAY, TIME, MOMENT, ID = ({"type": "string", "format": name} for name in ("date", "time", "date-time", "uuid"))
RAW = Style(escapes=frozenset())
IN_UTC = Style(root=NumberAndDateFormat(moment=MomentForm(zone=AS_Z)))


@pytest.mark.parametrize("odd", ["\\u001f", '\\"', "\\\\", "\\n", "é", "ࠀ", "𐀀", "\x80ࠀ𐀀\\u001f", "é\\té"])
def test_strings_are_restored_with_special_characters_at_any_place(odd: str) -> None:
    texts = [f'"{"x" * before}{odd}{"y" * behind}"' for before in range(18) for behind in range(18)]
    values = [text.encode() for text in texts]
    _, back = through(codec_for(STRING, RAW), values)
    assert back == values


def test_strings_of_characters_of_any_width_are_restored() -> None:
    luck = random.Random(3)
    letters = ["a", "é", "ࠀ", "𐀀", "\\u0001", '\\"', "\x7f"]
    values = [f'"{"".join(luck.choices(letters, k=luck.randrange(14)))}"'.encode() for _ in range(5_000)]
    _, back = through(codec_for(STRING, RAW), values)
    assert back == values


def test_integers_of_every_length_are_restored() -> None:
    luck = random.Random(4)
    ends = [sign * (10**power + one) for power in range(19) for one in (-1, 0, 1) for sign in (1, -1)]
    drawn = [luck.getrandbits(luck.randrange(1, 64)) for _ in range(2_000)]
    numbers = [*ends, *drawn, 2**63 - 1, -(2**63)]
    for form in ('{"a": %d}', '{"a": %d, "and so on": 0}'):
        values = [(form % number).encode() for number in numbers]
        decoded, _ = through(codec_for(record(a=INTEGER)), values)
        assert [row["a"] for row in rows(decoded)] == numbers
    _, back = through(codec_for(INTEGER), [str(number).encode() for number in numbers])
    assert back == [str(number).encode() for number in numbers]


def test_numbers_become_the_nearest_double_with_the_point_at_any_place() -> None:
    luck = random.Random(6)
    texts = ["0." + "0" * zeros + "1234567890123456789"[:count] for zeros in range(12) for count in range(1, 20)]
    for whole in range(1, 22):
        for behind in range(1, 22):
            digits = "".join(luck.choices("0123456789", k=whole + behind))
            texts.append(f"{luck.choice('123456789')}{digits[1:whole]}.{digits[whole:]}")
    for form in ("%s", "[%s]", "[%s, 0.125]", "-%se-3"):
        values = [(form % text).encode() for text in texts]
        schema: Any = {"type": "array", "items": NUMBER} if form[0] == "[" else NUMBER
        found = [row["value"] for row in rows(through(codec_for(schema), values)[0])]
        expected = [float(form.strip("[]").partition(",")[0] % text) for text in texts]
        assert [one[0] if form[0] == "[" else one for one in found] == expected


def test_doubles_with_few_decimals_are_written_like_python() -> None:
    luck = random.Random(8)
    drawn = [round(luck.random() * 10 ** luck.randrange(-7, 17), luck.randrange(9)) for _ in range(20_000)]
    eighths = [number / 8 for number in range(-2_000, 2_000)]
    edges = [1e-6, 1.5e-6, 2e-6, 0.000123, 999999999.999999, 1e9, 1e9 + 0.5, 1e9 - 1e-6, 0.1 + 0.2, 1 / 3, 4.35, 2.675]
    values = [repr(number).encode() for number in [*drawn, *eighths, *edges]]
    _, back = through(codec_for(NUMBER), values)
    assert back == values


def test_dates_of_four_centuries_and_the_range_limits_are_restored() -> None:
    days = [date(1799, 12, 30) + timedelta(days=number) for number in range(0, 146_100, 5)]
    days += [date.min, date(1, 1, 2), date(9999, 12, 30), date.max]
    decoded, back = through(codec_for(DAY), [f'"{day}"'.encode() for day in days])
    assert back == [f'"{day}"'.encode() for day in days]
    assert [row["value"] for row in rows(decoded)] == days


def test_timestamps_are_read_with_any_number_of_digits() -> None:
    whole = datetime(2024, 2, 29, 23, 59, 58, tzinfo=UTC)
    codec = codec_for(MOMENT, IN_UTC)
    for zone in ("Z", "+00:00"):
        texts = [f"2024-02-29T23:59:58.{'987654321098'[:count]}{zone}" for count in range(1, 13)]
        found = rows(through(codec, [f'"{text}"'.encode() for text in texts])[0])
        expected = [whole + timedelta(microseconds=int("987654"[:count].ljust(6, "0"))) for count in range(1, 13)]
        assert [row["value"] for row in found] == expected
    seconds = [whole - timedelta(seconds=number) for number in range(0, 86_400, 7)]
    values = [f'"{moment:%Y-%m-%dT%H:%M:%S}Z"'.encode() for moment in seconds]
    _, back = through(codec, values)
    assert back == values


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        (DAY, "2024-02-29"),
        (TIME, "23:59:58.25"),
        (MOMENT, "2024-02-29T23:59:58.25Z"),
        (MOMENT, "2024-02-29T23:59:58+02:00"),
        (ID, "01234567-89ab-cdef-0123-456789abcdef"),
    ],
)
def test_value_is_null_when_a_time_or_uuid_has_a_wrong_character(schema: Any, text: str) -> None:
    """Does not compare with Python's parsers, which accept more notations."""
    codec = codec_for(schema)
    assert rows(through(codec, [f'"{text}"'.encode()])[0])[0]["value"] is not None
    is_text = [text[:place] + char + text[place + 1 :] for place in range(len(text)) for char in " /:-.@GZg`xé"]
    wrong = [one for one in is_text if one != text and not _is_still_valid(one, text)]
    found = rows(through(codec, [f'"{one}"'.encode() for one in wrong])[0])
    assert [(one, row["value"]) for one, row in zip(wrong, found, strict=True) if row["value"] is not None] == []


def _is_still_valid(text: str, was: str) -> bool:
    """Returns whether the change is valid: a blank instead of the T, a shorter fraction, the other sign."""
    place = next(place for place, (one, other) in enumerate(zip(text, was, strict=False)) if one != other)
    return (
        (was[place] == "T" and text[place] == " ")
        or (was[place] == "+" and text[place] == "-")
        or (was.startswith("23:") and text[-1] == "Z")
    )


def test_uuids_are_restored_in_lower_case_and_read_in_any_case() -> None:
    luck = random.Random(9)
    ids = [uuid.UUID(int=luck.getrandbits(128)) for _ in range(2_000)] + [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)]
    decoded, back = through(codec_for(ID), [f'"{one}"'.encode() for one in ids])
    assert back == [f'"{one}"'.encode() for one in ids]
    assert [row["value"] for row in rows(decoded)] == ids
    large = rows(through(codec_for(ID), [f'"{one}"'.upper().encode() for one in ids])[0])
    assert [row["value"] for row in large] == ids


def test_keys_of_every_length_are_matched_at_any_place() -> None:
    names = ["k" * size for size in range(1, 20)]
    codec = codec_for(record(**dict.fromkeys(names, INTEGER)))
    values = [f'{{"{name}": {number}}}'.encode() for number, name in enumerate(names)]
    values += [f'{{"{name}":{number}}}'.encode() for number, name in enumerate(names)]
    decoded, back = through(codec, values)
    assert back[: len(names)] == values[: len(names)]
    assert not decoded.has_unknown_keys.any()
    others = [f'{{"{name[:-1]}j": 1}}'.encode() for name in names]
    assert through(codec, others)[0].has_unknown_keys.all()
