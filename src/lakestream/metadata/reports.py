"""What the pipeline says of itself, for those who cannot ask it: brokers, for their metrics, and `doctor`.

Written by: pipeline/driver.py, every few seconds while it works.  One record; the last one counts.
"""

import msgspec

from lakestream.errors import Corrupt
from lakestream.metadata import keys
from lakestream.metadata.store import ANY, MetadataStore, put_one

TOPICS_MAX = 2_000
"""Of one report: those that wait come first."""


class TopicReport(msgspec.Struct, frozen=True, kw_only=True):
    lag_records: int = 0
    lag_ms: int = 0
    stuck: str = ""
    moved_ms: int = 0
    files: int = 0
    records: int = 0
    bytes: int = 0


class PipelineReport(msgspec.Struct, frozen=True):
    at_ms: int
    topics: dict[str, TopicReport] = {}


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(PipelineReport).decode


class Reports:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store

    async def put(self, report: PipelineReport) -> None:
        most = sorted(report.topics.items(), key=lambda item: (not item[1].stuck, -item[1].lag_ms, item[0]))
        kept = PipelineReport(report.at_ms, dict(most[:TOPICS_MAX]))
        await put_one(self._store, keys.PIPELINE_REPORT, _encode(kept), ANY)

    async def get(self) -> PipelineReport | None:
        """None: no pipeline has run yet."""
        record = await self._store.get(keys.PIPELINE_REPORT)
        if record is None:
            return None
        try:
            return _decode(record.value)
        except msgspec.MsgspecError as error:
            raise Corrupt(f"metadata record {record.path} is no report of a pipeline ({error}); remove it") from error
