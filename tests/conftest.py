"""For all tests."""

import os
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

ALONE: Final = frozenset(
    {
        *("bad_input", "fresh_reads", "kafka_apps", "kafka_fuzz", "killed_brokers", "killed_kafka", "killed_leader"),
        *("killed_pipeline", "oxia_cluster", "oxia_lost_answers", "pipeline_serve", "rolling_restart", "s3_faults"),
        *("sqlite_processes", "turmoil", "zones"),
    }
)
"""They look at the clock, or need the whole machine. All others run two at a time."""

settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("any"), derandomize=True)
settings.load_profile("repeatable" if os.environ.get("CI") else "any")
"""How busy the machine is says nothing about the code. And what is judged in CI must not be a matter of luck; at home
others are tried."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.stem.removeprefix("test_") in ALONE:
            item.add_marker("alone")
