"""Statuses of several pipelines: stored separately, and merged."""

from lakestream.clock import Clock
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.pipeline_status import (
    KEPT_MS,
    LIVE_MS,
    PipelineReport,
    PipelineStatusStore,
    TopicReport,
    merge_statuses,
)

NOW = 1_800_000_000_000


class FixedClock(Clock):
    def now_ms(self) -> int:
        return NOW


async def test_each_pipeline_has_its_own_report() -> None:
    statuses = PipelineStatusStore(MemoryServer(FixedClock()).client())
    assert await statuses.get() is None
    await statuses.put(PipelineReport(NOW - 1_000, {"t": TopicReport(records=3, files=1, bytes=30)}, "", "one"))
    await statuses.put(PipelineReport(NOW, {"t": TopicReport(records=5, files=2, bytes=50)}, "", "two"))
    assert [report.driver for report in await statuses.all()] == ["two", "one"]
    merged = await statuses.get()
    assert merged is not None
    assert (merged.at_ms, merged.topics) == (NOW, {"t": TopicReport(records=8, files=3, bytes=80)})


async def test_old_reports_are_deleted() -> None:
    statuses = PipelineStatusStore(MemoryServer(FixedClock()).client())
    await statuses.put(PipelineReport(NOW - KEPT_MS - 1, {}, "", "old"))
    await statuses.put(PipelineReport(NOW - KEPT_MS, {}, "", "young"))
    await statuses.remove_old(NOW)
    assert [report.driver for report in await statuses.all()] == ["young"]


def stalled_reason(*reports: PipelineReport) -> str:
    merged = merge_statuses(sorted(reports, key=lambda report: -report.at_ms))
    assert merged is not None
    return merged.topics["t"].stalled


def test_topic_is_stalled_unless_another_pipeline_has_moved_it_since() -> None:
    stalled = PipelineReport(NOW - 1_000, {"t": TopicReport(stalled="damaged")}, "", "one")
    idle = PipelineReport(NOW, {"t": TopicReport(moved_ms=NOW - 2_000)}, "", "two")
    moved = PipelineReport(NOW, {"t": TopicReport(moved_ms=NOW - 500)}, "", "two")
    assert stalled_reason(stalled, idle) == "damaged"
    assert stalled_reason(stalled, moved) == ""
    dead = PipelineReport(NOW - LIVE_MS - 1, stalled.topics, "", "one")
    assert stalled_reason(dead, idle) == ""
    assert stalled_reason(dead) == "damaged"


def test_merge_keeps_errors_of_pipelines_and_topics() -> None:
    one = PipelineReport(NOW - 1, {"t": TopicReport(error="disk full", error_since_ms=5)}, "", "one")
    two = PipelineReport(NOW, {"t": TopicReport()}, "no topics", "two")
    merged = merge_statuses([two, one])
    assert merged is not None
    assert merged.error == "no topics"
    assert (merged.topics["t"].error, merged.topics["t"].error_since_ms) == ("disk full", 5)
