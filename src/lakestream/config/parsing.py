"""Parses and formats addresses (`host:port`) and durations (500ms, 5s, 1m, 2h, 7d) of settings."""

import os
import re
from typing import Final

from lakestream.errors import Misconfigured

PORT_MAX = 65_535


def parse_address(text: str, flag: str, default_port: int | None = None) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(default_port or ""))
    if not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise Misconfigured(f"{flag} {text!r}: write it as host:port")
    return host.strip("[]"), int(port)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shift_port(address: str, flag: str, worker: int) -> str:
    """Returns the address of a worker: its number is added to the port. Port 0, any free port, stays 0."""
    host, port = parse_address(address, flag)
    if port + worker > PORT_MAX:
        raise Misconfigured(f"{flag} {address}: there is no port {port + worker} for worker {worker}")
    return format_address(host, port + worker if port else 0)


def cannot_listen(address: str, error: OSError, advice: str) -> Misconfigured:
    # The event loop's own text repeats the address at length. Failed name lookups have negative numbers.
    number = error.errno or 0
    reason = os.strerror(number) if number > 0 else error.strerror or str(error)
    return Misconfigured(f"cannot listen on {address} ({reason.lower()}): {advice}")


_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DIGITS_MAX: Final = 12


def parse_milliseconds(text: str) -> int:
    """Returns a duration. A plain number is in seconds. Raises ValueError if it is invalid or zero."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(ms|s|m|h|d)?", text.strip()[: _DIGITS_MAX + 3], re.ASCII)
    if match is None or not (duration_ms := round(float(match[1]) * _UNITS_MS[match[2] or "s"])):
        raise ValueError(f"invalid duration {text[:40]!r}: write it as 500ms, 5s, 1m, 2h or 7d")
    return duration_ms


def format_seconds(time_ms: int) -> str:
    return f"{time_ms / 1000:g} s"
