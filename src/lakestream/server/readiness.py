"""Checks of the readiness probe that brokers and HTTP processes share."""

from collections.abc import Mapping
from typing import Final

from lakestream.errors import Missing, Unavailable
from lakestream.protocol.rest.health import Check
from lakestream.server.node import Stores

READY_OBJECT: Final = "probe/ready"
"""Object that every start writes and /readyz checks: a storage without it was lost, emptied or replaced."""


async def store_checks(stores: Stores) -> Mapping[str, Check]:
    """Writes the object that the check of the storage reads, and returns the checks of both stores."""
    await stores.objects.put(READY_OBJECT, [b"lakestream"])

    async def metadata() -> None:
        await stores.metadata.now_ms()

    async def storage() -> None:
        try:
            await stores.objects.head(READY_OBJECT)
        except Missing as error:
            raise Unavailable(
                f"storage: object {READY_OBJECT} is missing: check the mount and the storage URL"
            ) from error

    return {"metadata": metadata, "storage": storage}
