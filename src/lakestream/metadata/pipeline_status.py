"""Status records of pipelines, for the metrics of brokers and for `doctor`.

Written by pipeline/driver.py, every few seconds while it works. One record per driver. The statuses that several
drivers have of a topic are merged here.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from lakestream.metadata import keys
from lakestream.metadata.codec import decode_record
from lakestream.metadata.store import ANY, MetadataStore, Record, put_one

TOPICS_MAX: Final = 2_000
"""Topics per report: stalled topics first, then those with the highest lag."""
LIVE_MS: Final = 3 * 60 * 1000
"""A live driver writes at least once a minute. Reports that are older than the newest by this are ignored."""
KEPT_MS: Final = 60 * 60 * 1000
"""Reports of drivers that have ended are deleted after this time, by the next driver that starts."""


# `name` is the key in stored JSON, which must not change.


class TopicReport(msgspec.Struct, frozen=True, kw_only=True):
    lag_records: int = 0
    lag_ms: int = 0
    stalled: str = msgspec.field(default="", name="stuck")
    """Reason why the topic is stalled until an operator fixes it."""
    error: str = msgspec.field(default="", name="trouble")
    """Error of its last move, which is retried."""
    error_since_ms: int = msgspec.field(default=0, name="trouble_ms")
    """Time of the first such error."""
    moved_ms: int = 0
    files: int = 0
    records: int = 0
    bytes: int = 0
    converted: int = msgspec.field(default=0, name="typed")
    """Values that were converted to columns from which they can be restored."""
    unconverted: int = msgspec.field(default=0, name="raw")
    """All other values of topics with schemas: their bytes are stored, with columns or instead of them."""
    conversion_error: str = msgspec.field(default="", name="misfit")
    """Conversion error of the most values in the last micro-batch that had any."""
    pending_layout: str = msgspec.field(default="", name="unmet")
    """Table settings that cannot be applied now, and the reason."""
    delta: bool = False
    """Whether it also has a Delta table."""
    delta_lagging: str = msgspec.field(default="", name="delta_behind")
    """Reason why the Delta table is lagging behind the Iceberg table; empty if it is not."""
    delta_lagging_since_ms: int = msgspec.field(default=0, name="delta_behind_ms")
    """Time since which it is lagging."""


class PipelineReport(msgspec.Struct, frozen=True):
    at_ms: int
    topics: dict[str, TopicReport] = {}
    error: str = msgspec.field(default="", name="trouble")
    """Error of its last micro-batch as a whole."""
    driver: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PipelineReport).decode


class PipelineStatusStore:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def put(self, report: PipelineReport) -> None:
        most = sorted(report.topics.items(), key=lambda item: (not item[1].stalled, -item[1].lag_ms, item[0]))
        kept = msgspec.structs.replace(report, topics=dict(most[:TOPICS_MAX]))
        await put_one(self._store, keys.PIPELINE_REPORTS.key(report.driver or "unnamed"), _encode(kept), ANY)

    async def remove_old(self, now_ms: int) -> None:
        for record in (await self._store.scan(keys.PIPELINE_REPORTS)).records:
            if _decode_report(record).at_ms < now_ms - KEPT_MS:
                await self._store.delete(keys.PIPELINE_REPORTS.key(record.name), record.version)

    async def all(self) -> list[PipelineReport]:
        """Returns the reports of all drivers, the newest first."""
        records = (await self._store.scan(keys.PIPELINE_REPORTS)).records
        return sorted(map(_decode_report, records), key=lambda report: -report.at_ms)

    async def get(self) -> PipelineReport | None:
        """Returns the merged report. None if no pipeline has run yet."""
        return merge_statuses(await self.all())


def merge_statuses(reports: Sequence[PipelineReport]) -> PipelineReport | None:
    """Merges reports, which must be sorted with the newest first (pure).

    Counts are added. A topic is stalled if one report has it as stalled, unless another driver has moved it since.
    """
    if not reports:
        return None
    live = [report for report in reports if report.at_ms >= reports[0].at_ms - LIVE_MS]
    topics: dict[str, TopicReport] = {}
    for report in live:
        for name, topic in report.topics.items():
            topics[name] = _merged(topics[name], topic) if name in topics else topic
    for report in live:
        for name, topic in report.topics.items():
            if (topic.stalled or topic.error) and topics[name].moved_ms <= report.at_ms:
                merged = topics[name]
                topics[name] = msgspec.structs.replace(
                    merged,
                    stalled=merged.stalled or topic.stalled,
                    error=merged.error or topic.error,
                    error_since_ms=merged.error_since_ms or topic.error_since_ms,
                )
    error = next((report.error for report in live if report.error), "")
    return PipelineReport(reports[0].at_ms, topics, error)


def _merged(newer: TopicReport, older: TopicReport) -> TopicReport:
    return msgspec.structs.replace(
        newer,
        moved_ms=max(newer.moved_ms, older.moved_ms),
        files=newer.files + older.files,
        records=newer.records + older.records,
        bytes=newer.bytes + older.bytes,
        converted=newer.converted + older.converted,
        unconverted=newer.unconverted + older.unconverted,
        conversion_error=newer.conversion_error or older.conversion_error,
    )


def _decode_report(record: Record) -> PipelineReport:
    return decode_record(record, _decode, "a pipeline report", "delete it")
