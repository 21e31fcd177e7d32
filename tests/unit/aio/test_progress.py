import time

import pytest

from lakestream.aio.progress import reported


def test_only_a_step_that_takes_longer_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with reported("reading", after_s=60):
        pass
    with reported("starting Spark", after_s=0.01):
        time.sleep(0.2)
    assert [record.getMessage() for record in caplog.records] == ["process.step_started step='starting Spark'"]
