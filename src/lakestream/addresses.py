"""Where something listens: `host:port`, as users write it and as we show it."""

import os

from lakestream.errors import Misconfigured

PORT_MAX = 65_535


def parse_address(text: str, flag: str, default_port: int | None = None) -> tuple[str, int]:
    host, _, port = text.rpartition(":") if ":" in text else (text, "", str(default_port or ""))
    if not host or not port.isdecimal() or int(port) > PORT_MAX:
        raise Misconfigured(f"{flag} {text!r}: write it as host:port")
    return host.strip("[]"), int(port)


def shown_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def shifted_address(address: str, flag: str, by: int) -> str:
    """The same host, so many ports on; port 0 stays what it is, any free one."""
    host, port = parse_address(address, flag)
    if port + by > PORT_MAX:
        raise Misconfigured(f"{flag} {address}: there is no port {port + by} for worker {by}")
    return shown_address(host, port + by if port else 0)


def cannot_listen(address: str, error: OSError, advice: str) -> Misconfigured:
    # The event loop's own text repeats the address at length; names that are not known have numbers below zero.
    number = error.errno or 0
    why = os.strerror(number) if number > 0 else error.strerror or str(error)
    return Misconfigured(f"cannot listen on {address} ({why.lower()}): {advice}")
