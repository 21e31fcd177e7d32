"""Startup fails for invalid settings before any request is accepted."""

from pathlib import Path

import pytest

from lakestream.clock import RandomIds, SystemClock
from lakestream.config.settings import Profile, Settings
from lakestream.errors import LakestreamError, Misconfigured, Unavailable
from lakestream.server.node import open_node, open_stores
from lakestream.storage.metered import MeteredStore
from lakestream.storage.retrying import PATIENT, RetryingStore, RetrySettings


async def test_start_fails_when_the_wal_folder_is_not_writable(tmp_path: Path) -> None:
    with pytest.raises(LakestreamError):
        async with open_stores(Settings(data_dir=tmp_path, wal_dir=Path("/proc/1")), SystemClock(), RandomIds()):
            pass


async def test_calls_are_patient_only_when_no_client_waits(tmp_path: Path) -> None:
    for patient, settings in ((False, RetrySettings()), (True, PATIENT)):
        async with open_stores(Settings(data_dir=tmp_path), SystemClock(), RandomIds(), patient=patient) as stores:
            assert isinstance(stores.objects, MeteredStore)
            retrying = stores.objects._store
            assert isinstance(retrying, RetryingStore)
            assert retrying._settings == settings


def test_default_profile_is_cost_without_a_shared_folder(tmp_path: Path) -> None:
    storage = tmp_path.as_uri()
    assert Settings(metadata="oxia://127.0.0.1:1/x", storage=storage).default_profile is Profile.COST
    assert Settings(storage=storage).default_profile is Profile.LATENCY


async def test_start_fails_for_the_latency_profile_without_a_wal_folder(tmp_path: Path) -> None:
    settings = Settings(metadata="oxia://127.0.0.1:1/x", storage=tmp_path.as_uri(), profile=Profile.LATENCY)
    with pytest.raises(Misconfigured, match="--wal-dir"):
        async with open_node(settings):
            pass


async def test_start_fails_when_the_clock_of_the_metadata_store_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def far_ahead(store: object) -> int:
        return SystemClock().now_ms() + 120_000

    monkeypatch.setattr("lakestream.metadata.sqlite.store.SqliteStore.now_ms", far_ahead)
    with pytest.raises(Unavailable, match="clock"):
        async with open_stores(Settings(data_dir=tmp_path), SystemClock(), RandomIds()):
            pass
