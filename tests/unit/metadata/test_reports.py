"""Several pipelines, told apart and put together."""

from lakestream.clock import Clock
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.reports import KEPT_MS, LIVE_MS, PipelineReport, Reports, TopicReport, together_of

NOW = 1_800_000_000_000


class Still(Clock):
    def now_ms(self) -> int:
        return NOW


async def test_two_pipelines_do_not_write_over_one_another() -> None:
    reports = Reports(MemoryServer(Still()).client())
    assert await reports.get() is None
    await reports.put(PipelineReport(NOW - 1_000, {"t": TopicReport(records=3, files=1, bytes=30)}, "", "one"))
    await reports.put(PipelineReport(NOW, {"t": TopicReport(records=5, files=2, bytes=50)}, "", "two"))
    assert [report.driver for report in await reports.all()] == ["two", "one"]
    said = await reports.get()
    assert said is not None
    assert (said.at_ms, said.topics) == (NOW, {"t": TopicReport(records=8, files=3, bytes=80)})


async def test_what_has_ended_long_ago_is_removed() -> None:
    reports = Reports(MemoryServer(Still()).client())
    await reports.put(PipelineReport(NOW - KEPT_MS - 1, {}, "", "old"))
    await reports.put(PipelineReport(NOW - KEPT_MS, {}, "", "young"))
    await reports.remove_old(NOW)
    assert [report.driver for report in await reports.all()] == ["young"]


def stuck_as(*reports: PipelineReport) -> str:
    said = together_of(sorted(reports, key=lambda report: -report.at_ms))
    assert said is not None
    return said.topics["t"].stuck


def test_a_topic_is_stuck_if_one_says_so_unless_another_has_moved_it_since() -> None:
    stuck = PipelineReport(NOW - 1_000, {"t": TopicReport(stuck="damaged")}, "", "one")
    silent = PipelineReport(NOW, {"t": TopicReport(moved_ms=NOW - 2_000)}, "", "two")
    moved = PipelineReport(NOW, {"t": TopicReport(moved_ms=NOW - 500)}, "", "two")
    assert stuck_as(stuck, silent) == "damaged"
    assert stuck_as(stuck, moved) == ""
    dead = PipelineReport(NOW - LIVE_MS - 1, stuck.topics, "", "one")
    assert stuck_as(dead, silent) == ""
    assert stuck_as(dead) == "damaged"


def test_trouble_of_a_whole_pipeline_and_of_a_topic_is_kept() -> None:
    one = PipelineReport(NOW - 1, {"t": TopicReport(trouble="disk full", trouble_ms=5)}, "", "one")
    two = PipelineReport(NOW, {"t": TopicReport()}, "no topics", "two")
    said = together_of([two, one])
    assert said is not None
    assert said.trouble == "no topics"
    assert (said.topics["t"].trouble, said.topics["t"].trouble_ms) == ("disk full", 5)
