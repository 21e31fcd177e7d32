"""Addresses, timeouts and limits of the Oxia client."""

from dataclasses import dataclass, replace

from lakestream.errors import Misconfigured

_SCHEME = "oxia://"
_EXAMPLE = "write it as oxia://host:port[,host:port]/namespace"


@dataclass(frozen=True, slots=True, kw_only=True)
class OxiaSettings:
    addresses: tuple[str, ...]
    """Bootstrap nodes, which return the addresses of the others."""
    namespace: str = "default"
    request_timeout_ms: int = 2_000
    """For one request to one node. A frozen node delays a call by this time."""
    retry_budget_ms: int = 10_000
    """For all attempts of a call. A call ends at most one request later."""
    start_timeout_ms: int = 10_000
    group_count_max: int = 1_000
    group_bytes_max: int = 2 * 1024 * 1024
    waiting_count_max: int = 10_000
    """Operations in the queue of a shard. More operations wait before they are queued."""

    def patient(self) -> "OxiaSettings":
        """Returns settings for work for which no client waits."""
        return replace(self, request_timeout_ms=5_000, retry_budget_ms=60_000)

    @classmethod
    def from_url(cls, url: str) -> "OxiaSettings":
        if not url.startswith(_SCHEME):
            raise Misconfigured(f"metadata URL {url!r} does not start with {_SCHEME}: {_EXAMPLE}")
        hosts, _, namespace = url.removeprefix(_SCHEME).partition("/")
        addresses = tuple(hosts.split(","))
        for address in addresses:
            _check_address(url, address)
        if "/" in namespace:
            raise Misconfigured(f"metadata URL {url!r} names more than one namespace: {_EXAMPLE}")
        return cls(addresses=addresses, namespace=namespace or "default")

    def __str__(self) -> str:
        return f"oxia://{','.join(self.addresses)}/{self.namespace}"


def _check_address(url: str, address: str) -> None:
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
        raise Misconfigured(f"metadata URL {url!r} has no host and port in {address!r}: {_EXAMPLE}")
