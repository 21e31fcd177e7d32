"""Findings of `lakestream doctor`, each a line of text or JSON."""

import json
from enum import Enum
from typing import NamedTuple


class Severity(Enum):
    OK = "ok"
    NOTE = "note"
    """Not an error, but of interest to an operator."""
    BAD = "BAD"


class Finding(NamedTuple):
    what: str
    text: str
    level: Severity = Severity.OK

    def line(self) -> str:
        return f"{self.level.value:<4} {self.what:<24} {self.text}"

    def json(self) -> str:
        return json.dumps({"level": self.level.value.lower(), "what": self.what, "said": self.text}, ensure_ascii=False)


def bad(what: str, text: str) -> Finding:
    return Finding(what, text, Severity.BAD)


def note(what: str, text: str) -> Finding:
    return Finding(what, text, Severity.NOTE)
