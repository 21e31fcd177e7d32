"""Start of a broker."""

import asyncio
from pathlib import Path

import pytest

from lakestream.clock import RandomIds, SystemClock
from lakestream.config.settings import Settings
from lakestream.coordination.validation.record_validator import RecordValidator
from lakestream.metadata.brokers import Brokers
from lakestream.server.broker import open_broker
from lakestream.server.node import open_stores


async def test_broker_is_not_registered_while_it_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients would be directed to it, and could not connect."""
    loaded, load = asyncio.Event(), RecordValidator.load

    async def load_slowly(validator: RecordValidator) -> None:
        await loaded.wait()
        await load(validator)

    monkeypatch.setattr(RecordValidator, "load", load_slowly)
    settings = Settings(data_dir=tmp_path, kafka="127.0.0.1:0")
    async with open_stores(settings, SystemClock(), RandomIds()) as stores:
        registered = Brokers(stores.metadata)

        async def allow_load() -> None:
            await asyncio.sleep(1)
            assert await registered.all() == []
            loaded.set()

        allowing = asyncio.create_task(allow_load())
        async with asyncio.timeout(60), open_broker(settings) as broker:
            await allowing
            assert [one.address for one in await registered.all()] == [broker.kafka]
