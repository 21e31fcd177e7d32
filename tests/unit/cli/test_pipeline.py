"""Settings and output of `lakestream pipeline`."""

from pathlib import Path

import pytest

from lakestream.cli import pipeline
from lakestream.cli.pipeline import work_settings
from lakestream.config.settings import Settings
from lakestream.errors import LakestreamError
from lakestream.pipeline.topic_status import MicroBatchResult


def test_workers_get_absolute_paths() -> None:
    found = work_settings(Settings(data_dir=Path("d")))
    assert found.segments_dir == str(Path("d/wal").absolute())
    assert found.storage_url == Path("d/storage").absolute().as_uri()
    assert work_settings(Settings(metadata="oxia://h:1/n", storage="s3://b")).segments_dir is None


class OnceDriver:
    """Returns the given results from `run_once`, and then the last one again and again."""

    def __init__(self, *results: MicroBatchResult) -> None:
        self._results = list(results)
        self.runs = 0

    async def run_once(self) -> MicroBatchResult:
        self.runs += 1
        return self._results.pop(0) if len(self._results) > 1 else self._results[0]


async def once(driver: OnceDriver) -> int:
    return await pipeline._move_once(driver)  # type: ignore[arg-type]


async def test_once_prints_totals_of_all_runs(capsys: pytest.CaptureFixture[str]) -> None:
    first = MicroBatchResult(moves=1, records=1000, bytes=2048, files=2, lag_records=3000, seconds={"job": 1.0})
    last = MicroBatchResult(moves=1, records=3000, bytes=0, files=1, lag_records=0, seconds={"job": 0.25})
    driver = OnceDriver(first, last)
    assert await once(driver) == 0
    assert driver.runs == 2
    assert capsys.readouterr().out == "moved 4,000 records (2.0 KiB) into 3 files in 1.2 s\n"


async def test_once_fails_when_records_are_left_after_its_retries(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "RETRY_S", (0.0, 0.0))
    driver = OnceDriver(MicroBatchResult(moves=1, records=1, lag_records=5), MicroBatchResult(lag_records=5))
    with pytest.raises(LakestreamError, match=r"^5 records could not be moved; the log lines above have the errors$"):
        await once(driver)
    assert driver.runs == 4, "one that moved, one that did not, and two retries"
    assert capsys.readouterr().out.startswith("moved 1 record ")


async def test_once_fails_without_retry_when_a_topic_is_stalled() -> None:
    driver = OnceDriver(MicroBatchResult(lag_records=5, stalled=["orders: its file is damaged"]))
    with pytest.raises(LakestreamError, match=r"^1 topic could not be moved: orders: its file is damaged$"):
        await once(driver)
    assert driver.runs == 1
