"""What is wrong with the settings is found before anything is accepted."""

from pathlib import Path

import pytest

from lakestream.clock import RandomIds, SystemClock
from lakestream.errors import LakestreamError, Misconfigured, Unavailable
from lakestream.node import open_node, open_stores
from lakestream.settings import Profile, Settings


async def test_a_wal_folder_that_cannot_be_written_is_found_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(LakestreamError):
        async with open_stores(Settings(data_dir=tmp_path, wal_dir=Path("/proc/1")), SystemClock(), RandomIds()):
            pass


def test_without_a_shared_folder_the_default_is_cost(tmp_path: Path) -> None:
    storage = tmp_path.as_uri()
    assert Settings(metadata="oxia://127.0.0.1:1/x", storage=storage).default_profile is Profile.COST
    assert Settings(storage=storage).default_profile is Profile.LATENCY


async def test_a_profile_without_its_folder_is_refused(tmp_path: Path) -> None:
    settings = Settings(metadata="oxia://127.0.0.1:1/x", storage=tmp_path.as_uri(), profile=Profile.LATENCY)
    with pytest.raises(Misconfigured, match="--wal-dir"):
        async with open_node(settings):
            pass


async def test_a_metadata_store_with_another_clock_is_found_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def far_ahead(store: object) -> int:
        return SystemClock().now_ms() + 120_000

    monkeypatch.setattr("lakestream.metadata.sqlite.store.SqliteStore.now_ms", far_ahead)
    with pytest.raises(Unavailable, match="clock"):
        async with open_stores(Settings(data_dir=tmp_path), SystemClock(), RandomIds()):
            pass
