"""Decides whether an HTTP request may be served, by its Host, its origin and the content type of its body. Pure.

The HTTP port has no authentication, and a browser sends the requests of every page that it shows. So, for all paths:

    Host              must be a name of this server, else 421. To a browser, a page whose DNS name was changed to point
                      here (DNS rebinding) has the same origin as this server, and could read every response.
    Origin            of a request that changes something must be this server, if the header is present, else 403.
    Sec-Fetch-Site    of such a request must not be `cross-site` or `same-site` (another port or sub-domain), else 403.
    Content-Type      of its body must not be one that browsers send to other sites without a preflight, else 415.

No response has CORS headers, so pages of other origins cannot read responses, and every preflight fails.

Before: app.py, which calls this for every request.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from lakestream.config.parsing import PORT_MAX

SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing, on any path of this port."""
PROBES: Final = frozenset({"/healthz", "/readyz"})
"""Paths that accept any Host: load balancers send any or none. The responses contain no stored data."""
OWN_SITES: Final = frozenset({"same-origin", "none"})
FORM_TYPES: Final = frozenset({"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
"""Content types that a browser may send to any site without a preflight."""
OWN_PAGES: Final = "only pages of this server may send requests that change something"
DEFAULT_PORTS: Final = {"http": 80, "https": 443}
HOST_MAX: Final = 255
"""Characters of the longest DNS name; IP addresses are shorter."""
SHOWN_MAX: Final = 100

_NAME: Final = re.compile(r"[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")
_HOST_AND_PORT: Final = re.compile(r"(?P<host>\[[^\[\]]*\]|[^\[\]:]*)(:(?P<port>[0-9]{0,5}))?")


class HostAndPort(NamedTuple):
    """A Host header: a host name in lower case, or an IP address without brackets; and a port."""

    host: str
    port: int | None


class Refusal(NamedTuple):
    status: int
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNames:
    """The names under which clients may reach one listener."""

    is_loopback: bool
    names: frozenset[str] = frozenset()
    """In lower case. A name that begins with `*.` matches all names below it."""

    def contains(self, host: str) -> bool:
        """Returns whether clients may reach the listener by this host.

        An IP address is not looked up in DNS, so rebinding cannot change where it points.
        """
        ip = _ip(host)
        if ip is not None:
            return not self.is_loopback or _is_loopback(ip) or host in self.names
        if host == "localhost" or host.endswith(".localhost"):
            return True
        parents = (host[at:] for at, letter in enumerate(host) if letter == ".")
        return host in self.names or any(f"*{parent}" in self.names for parent in parents)


LOOPBACK: Final = HostNames(is_loopback=True)


def host_names(listens: str, names: Iterable[str], machine: str) -> HostNames:
    """Returns the names of a listener that is bound to the IP address `listens`.

    `names`: from the settings. `machine`: this machine's name, by which no client reaches a loopback listener.
    """
    ip = _ip(listens)
    is_loopback = ip is not None and _is_loopback(ip)
    normal = {_normal(name) for name in (*names, *(() if is_loopback else (machine,)))}
    return HostNames(is_loopback=is_loopback, names=frozenset(normal - {""}))


def check_name(text: str) -> str:
    """Returns the normal form of a host name, an IP address or `*.` with a domain. Raises ValueError."""
    name = _normal(text)
    if _ip(name) is None and not _NAME.fullmatch(name.removeprefix("*.")):
        raise ValueError(f"{text!r} is not a host name: write it without a scheme, a port or a path")
    return name


def refusal(
    method: str, path: str, version: str, headers: Sequence[tuple[bytes, bytes]], allowed: HostNames
) -> Refusal | None:
    """Returns the reason to reject the request, or None if it may be served. `headers`: names are in lower case."""
    is_safe = method in SAFE_METHODS
    if is_safe and path in PROBES:
        return None
    hosts = _values(headers, b"host")
    host = _address(hosts[0]) if len(hosts) == 1 else None
    if host is None and (hosts or version != "1.0"):  # HTTP/1.0 requires no Host, and every browser sends it
        shown = f"{', '.join(hosts)[:SHOWN_MAX]!r} is invalid" if hosts else "the header is missing"
        return Refusal(400, f"Host: {shown}: send one host name or IP address, with or without a port")
    if host is not None and not allowed.contains(host.host):
        text = f"Host: {host.host!r} is not a name of this server: use its IP address, or add the name to --http-hosts"
        return Refusal(421, text)
    return None if is_safe else _origin_refusal(headers, host) or _body_refusal(headers)


def _origin_refusal(headers: Sequence[tuple[bytes, bytes]], host: HostAndPort | None) -> Refusal | None:
    for origin in _values(headers, b"origin"):
        if host is None or not _is_same(origin, host):
            return Refusal(403, f"Origin: {origin[:SHOWN_MAX]!r} is another site: {OWN_PAGES}")
    for site in _values(headers, b"sec-fetch-site"):
        if site.lower() not in OWN_SITES:
            return Refusal(403, f"Sec-Fetch-Site: {site[:SHOWN_MAX]!r} is another site: {OWN_PAGES}")
    return None


def _body_refusal(headers: Sequence[tuple[bytes, bytes]]) -> Refusal | None:
    has_body = _values(headers, b"transfer-encoding") or any(
        size.strip("0") for size in _values(headers, b"content-length")
    )
    for value in _values(headers, b"content-type") if has_body else []:
        kind = value.partition(";")[0].strip().lower()
        if kind in FORM_TYPES:
            return Refusal(415, f"Content-Type: {kind!r} is not accepted: send the body as application/json")
    return None


def _is_same(origin: str, host: HostAndPort) -> bool:
    """Returns whether the origin is the host that the request is sent to. The origin `null` never is."""
    scheme, _, authority = origin.lower().partition("://")
    named, default = _address(authority), DEFAULT_PORTS.get(scheme)
    if named is None or default is None:
        return False
    # Behind a TLS proxy the scheme of the request is unknown, so a Host without a port matches both default ports.
    return named.host == host.host and (named.port or default) == (host.port or default)


def _address(text: str) -> HostAndPort | None:
    """Parses `host[:port]`. Returns None if the text is not of this form."""
    match = _HOST_AND_PORT.fullmatch(text)
    if match is None or len(text) > HOST_MAX or (port := int(match["port"] or 0)) > PORT_MAX:
        return None
    host = _normal(match["host"])
    is_bracketed = text.startswith("[")
    if is_bracketed != isinstance(_ip(host), IPv6Address) or not (is_bracketed or _NAME.fullmatch(host)):
        return None
    return HostAndPort(host, port or None)


def _normal(text: str) -> str:
    """Returns a host in lower case, without brackets and without the dot that ends an absolute name."""
    name = text.strip().lower().removesuffix(".")
    name = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    ip = _ip(name)
    return name if ip is None else str(ip)


def _ip(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def _is_loopback(ip: IPv4Address | IPv6Address) -> bool:
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return ip.is_loopback or (mapped is not None and mapped.is_loopback)


def _values(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1").strip() for key, value in headers if key == name]
