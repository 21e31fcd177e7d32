"""How to reach Oxia, and how long to wait for it."""

from dataclasses import dataclass

from lakestream.errors import Misconfigured

_SCHEME = "oxia://"
_EXAMPLE = "write it as oxia://host:port[,host:port]/namespace"


@dataclass(frozen=True, slots=True, kw_only=True)
class OxiaSettings:
    addresses: tuple[str, ...]
    """Some nodes to start from; the others are learnt from them."""
    namespace: str = "default"
    request_timeout_ms: int = 2_000
    """One request to one node. A frozen node never says no, so this is how long it can hold us up."""
    retry_budget_ms: int = 10_000
    """All tries of one call together. A call ends at most one request later than this."""
    start_timeout_ms: int = 10_000
    group_count_max: int = 1_000
    group_bytes_max: int = 2 * 1024 * 1024
    waiting_count_max: int = 10_000
    """Calls that wait for one shard; more of them wait at the door."""

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
