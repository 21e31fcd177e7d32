"""Names as Kafka has them: which a topic may have, and what a client says of itself in its id."""

import re
from functools import lru_cache
from typing import Final

_LEGAL: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_ZONE: Final = re.compile(r"(?:^|[,;\s])(?:zone_id|diskless_az)=([^,;\s]+)")


def is_legal(topic: str) -> bool:
    return _LEGAL.fullmatch(topic) is not None and topic not in (".", "..")


@lru_cache(maxsize=10_000)
def zone_of(client_id: str | None) -> str:
    """The zone that a client names in its id (`zone_id=a` or `diskless_az=a`), or none."""
    found = _ZONE.search(client_id or "")
    return found[1] if found else ""
