"""What pipelines say of themselves, for those who cannot ask them: brokers, for their metrics, and `doctor`.

Written by: pipeline/driver.py, every few seconds while it works.  One record for each driver: several at once are told
apart, and what they say of a topic is put together here.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from lakestream.errors import Corrupt
from lakestream.metadata import keys
from lakestream.metadata.store import ANY, MetadataStore, Record, put_one

TOPICS_MAX: Final = 2_000
"""Of one report: those that wait come first."""
LIVE_MS: Final = 3 * 60 * 1000
"""One that lives says so every minute. What another said so long before it no longer counts."""
KEPT_MS: Final = 60 * 60 * 1000
"""Of one that has ended, then removed by the next one that starts."""


class TopicReport(msgspec.Struct, frozen=True, kw_only=True):
    lag_records: int = 0
    lag_ms: int = 0
    stuck: str = ""
    """Why it is not moved, until somebody mends it."""
    trouble: str = ""
    """Why its last move came to nothing; it is tried again all the time."""
    trouble_ms: int = 0
    """Since when."""
    moved_ms: int = 0
    files: int = 0
    records: int = 0
    bytes: int = 0
    typed: int = 0
    """Values that became columns, which give them back."""
    raw: int = 0
    """All others of typed topics: they keep their bytes, beside columns or instead of them."""
    misfit: str = ""
    """Why values had no columns, most of them the last time that there were any."""
    unmet: str = ""
    """What its settings say of its table that cannot be had now, and why."""
    delta: bool = False
    """It has a Delta table too."""
    delta_behind: str = ""
    """Why that is not where the table is; empty: it is."""
    delta_behind_ms: int = 0
    """Since when."""


class PipelineReport(msgspec.Struct, frozen=True):
    at_ms: int
    topics: dict[str, TopicReport] = {}
    trouble: str = ""
    """Why its last round failed as a whole."""
    driver: str = ""


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PipelineReport).decode


class Reports:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def put(self, report: PipelineReport) -> None:
        most = sorted(report.topics.items(), key=lambda item: (not item[1].stuck, -item[1].lag_ms, item[0]))
        kept = msgspec.structs.replace(report, topics=dict(most[:TOPICS_MAX]))
        await put_one(self._store, keys.PIPELINE_REPORTS.key(report.driver or "unnamed"), _encode(kept), ANY)

    async def remove_old(self, now_ms: int) -> None:
        for record in (await self._store.scan(keys.PIPELINE_REPORTS)).records:
            if _report(record).at_ms < now_ms - KEPT_MS:
                await self._store.delete(keys.PIPELINE_REPORTS.key(record.name), record.version)

    async def all(self) -> list[PipelineReport]:
        """The newest first."""
        records = (await self._store.scan(keys.PIPELINE_REPORTS)).records
        return sorted(map(_report, records), key=lambda report: -report.at_ms)

    async def get(self) -> PipelineReport | None:
        """What they say together. None: no pipeline has run yet."""
        return together_of(await self.all())


def together_of(reports: Sequence[PipelineReport]) -> PipelineReport | None:
    """As one report; `reports` with the newest first. Pure.

    What each has moved adds up. A topic is stuck if one says so, unless another has moved it since.
    """
    if not reports:
        return None
    live = [report for report in reports if report.at_ms >= reports[0].at_ms - LIVE_MS]
    topics: dict[str, TopicReport] = {}
    for report in live:
        for name, said in report.topics.items():
            topics[name] = _joined(topics[name], said) if name in topics else said
    for report in live:
        for name, said in report.topics.items():
            if (said.stuck or said.trouble) and topics[name].moved_ms <= report.at_ms:
                told = topics[name]
                topics[name] = msgspec.structs.replace(
                    told,
                    stuck=told.stuck or said.stuck,
                    trouble=told.trouble or said.trouble,
                    trouble_ms=told.trouble_ms or said.trouble_ms,
                )
    trouble = next((report.trouble for report in live if report.trouble), "")
    return PipelineReport(reports[0].at_ms, topics, trouble)


def _joined(newer: TopicReport, older: TopicReport) -> TopicReport:
    return msgspec.structs.replace(
        newer,
        moved_ms=max(newer.moved_ms, older.moved_ms),
        files=newer.files + older.files,
        records=newer.records + older.records,
        bytes=newer.bytes + older.bytes,
        typed=newer.typed + older.typed,
        raw=newer.raw + older.raw,
        misfit=newer.misfit or older.misfit,
    )


def _report(record: Record) -> PipelineReport:
    try:
        return _decode(record.value)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"metadata record {record.path} is no report of a pipeline ({error}); remove it") from error
