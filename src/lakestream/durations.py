"""Times as people write them: 500ms, 5s, 1m, 2h, 7d."""

import re
from typing import Final

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DIGITS_MAX: Final = 12


def milliseconds(text: str) -> int:
    """A plain number is seconds. ValueError: it is no time, or none at all."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d)?", text.strip()[: _DIGITS_MAX + 3], re.ASCII)
    if found is None or not (wanted := round(float(found[1]) * _UNITS_MS[found[2] or "s"])):
        raise ValueError(f"{text[:40]!r} is no time: write it as 500ms, 5s, 1m, 2h or 7d")
    return wanted


def seconds(time_ms: int) -> str:
    return f"{time_ms / 1000:g} s"
