"""What `lakestream doctor` says, a line each, for people or for programs."""

import json
from enum import Enum
from typing import NamedTuple


class Level(Enum):
    OK = "ok"
    NOTE = "note"
    """Nothing is wrong, but somebody may want to know."""
    BAD = "BAD"


class Finding(NamedTuple):
    what: str
    said: str
    level: Level = Level.OK

    def line(self) -> str:
        return f"{self.level.value:<4} {self.what:<24} {self.said}"

    def json(self) -> str:
        return json.dumps({"level": self.level.value.lower(), "what": self.what, "said": self.said}, ensure_ascii=False)


def bad(what: str, said: str) -> Finding:
    return Finding(what, said, Level.BAD)


def note(what: str, said: str) -> Finding:
    return Finding(what, said, Level.NOTE)
