"""Describes where a JSON text is invalid, for the few records whose error contains the place (validation.py)."""

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

_WORDS: Final = {"Input data was truncated": "the value is truncated"}


def located(reason: str, text: bytes) -> str:
    """Returns a codec's reason for a value with its place, if another parser can determine the place."""
    return _invalid_utf8(text) or _invalid_json(text) or invalid_content(text) or reason


def invalid_content(text: bytes) -> str | None:
    """Returns an unpaired surrogate or a duplicate key of a syntactically valid text, or None."""
    return _unpaired_surrogate(text) or _duplicate_key(text)


def _duplicate_key(text: bytes) -> str | None:
    try:
        json.loads(text.decode(), object_pairs_hook=_unique)
    except _DuplicateKey as duplicate:
        return f"duplicate key {_shortened(duplicate.key)}"
    except (ValueError, RecursionError):
        return None
    return None


class _DuplicateKey(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique: dict[str, Any] = {}
    for key, value in pairs:
        if key in unique:
            raise _DuplicateKey(key)
        unique[key] = value
    return unique


def _invalid_utf8(text: bytes) -> str | None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"a string in it is not UTF-8 (byte {error.start})"
    return None


def _invalid_json(text: bytes) -> str | None:
    """Returns the message of a parser that reports the byte; errors that only this parser finds are the codec's."""
    if not text.strip():
        return "invalid JSON: the value is empty"
    try:
        json.loads(text.decode(), parse_constant=_no_number)
    except RecursionError:
        return None
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            return f"invalid JSON: extra data (byte {len(error.doc[: error.pos].encode())})"
        try:
            msgspec.json.decode(text)
        except msgspec.DecodeError as other:
            words = str(other).removeprefix("JSON is malformed: ")
            return f"invalid JSON: {_WORDS.get(words, words)}"
        except (ValueError, RecursionError):
            pass
        return f"invalid JSON: {error}"
    return None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is not a number")


def _unpaired_surrogate(text: bytes) -> str | None:
    try:
        place = next(_unpaired(json.loads(text.decode()), ""), None)
    except (ValueError, RecursionError):
        return None
    return None if place is None else f"{place}: the string has an unpaired surrogate".removeprefix(": ")


def _unpaired(value: Any, where: str) -> Iterator[str]:
    match value:
        case str():
            if any(0xD800 <= ord(letter) < 0xE000 for letter in value):
                yield where
        case dict():
            for key, below in value.items():
                yield from _unpaired(key, where)
                yield from _unpaired(below, f"{where}/{key.replace('~', '~0').replace('/', '~1')}")
        case list():
            for place, below in enumerate(value):
                yield from _unpaired(below, f"{where}/{place}")


def _shortened(key: str) -> str:
    text = json.dumps(key)
    return text if len(text) <= 60 else f"{text[:60]}…"
