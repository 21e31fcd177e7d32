"""Where in a JSON text something is wrong, in words: for the few that a producer is told of (checking.py)."""

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

_WORDS: Final = {"Input data was truncated": "it ends too early"}


def said(reason: str, text: bytes) -> str:
    """What a codec minds about a value, and where it is, as far as that can be told."""
    return _no_text(text) or _no_json(text) or suspicion(text) or reason


def suspicion(text: bytes) -> str | None:
    """Of what is JSON: a key that is there twice, half of a pair. None: neither."""
    return _half_a_pair(text) or _key_twice(text)


def _key_twice(text: bytes) -> str | None:
    try:
        json.loads(text.decode(), object_pairs_hook=_unique)
    except _Twice as twice:
        return f"the key {_shown(twice.key)} is there twice"
    except (ValueError, RecursionError):
        return None
    return None


class _Twice(Exception):
    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise _Twice(key)
        made[key] = value
    return made


def _no_text(text: bytes) -> str | None:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return f"a text in it is no UTF-8 (byte {error.start})"
    return None


def _no_json(text: bytes) -> str | None:
    """In the words of a parser that tells the byte. What only this one minds is said by others."""
    if not text.strip():
        return "it is no JSON: there is nothing in it"
    try:
        json.loads(text.decode(), parse_constant=_no_number)
    except RecursionError:
        return None
    except ValueError as error:
        if isinstance(error, json.JSONDecodeError) and error.msg == "Extra data":
            return f"it is no JSON: something stands behind it (byte {len(error.doc[: error.pos].encode())})"
        try:
            msgspec.json.decode(text)
        except msgspec.DecodeError as other:
            words = str(other).removeprefix("JSON is malformed: ")
            return f"it is no JSON: {_WORDS.get(words, words)}"
        except (ValueError, RecursionError):
            pass
        return f"it is no JSON: {error}"
    return None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number")


def _half_a_pair(text: bytes) -> str | None:
    try:
        found = next(_halves(json.loads(text.decode()), ""), None)
    except (ValueError, RecursionError):
        return None
    return None if found is None else f"{found}: the text has half of a surrogate pair".removeprefix(": ")


def _halves(value: Any, where: str) -> Iterator[str]:
    match value:
        case str():
            if any(0xD800 <= ord(letter) < 0xE000 for letter in value):
                yield where
        case dict():
            for key, below in value.items():
                yield from _halves(key, where)
                yield from _halves(below, f"{where}/{key.replace('~', '~0').replace('/', '~1')}")
        case list():
            for place, below in enumerate(value):
                yield from _halves(below, f"{where}/{place}")


def _shown(key: str) -> str:
    text = json.dumps(key)
    return text if len(text) <= 60 else f"{text[:60]}…"
