"""Plans key compaction. Pure. The last record of each key stays, at its offset.

A partition has a clean range, in which each key occurs once, and a dirty range behind it. A run takes the newest offset
of each key of the dirty range, and removes the superseded records from both. Records without a value are tombstones:
they stay for `delete.retention.ms` after they became clean, so that every consumer can read them.

    lakestream.compacted-to   a property: {"0": 123, …}, where the dirty range begins
    lakestream.compacted-at   a property: {"0": [100, [[123, 1700000000000], …]], …}, the offset from which there may
                              still be tombstones, and when which offsets became clean

They are set in the commit that removes the records. If they are removed, all files are checked again, without other
effects. The same happens after a rollback that an operator has accepted: removed records may be back.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from lakestream.catalog.table_metadata.json_model import Json
from lakestream.catalog.topic_table.live_file import LiveFile
from lakestream.catalog.topic_table.offsets import ACCEPT_ROLLBACK

COMPACTED_TO: Final = "lakestream.compacted-to"
COMPACTED_AT: Final = "lakestream.compacted-at"
COMPACTED_SINCE: Final = "lakestream.compacted-since"
"""The accepted rollback after which the two properties above were set."""
HORIZONS_MAX: Final = 16
PAUSE_MS: Final = 60_000
"""Between two runs over one partition."""


class TombstoneHorizon(NamedTuple):
    """The records before `offset` were clean at this time."""

    offset: int
    clean_ms: int


class Cleaned(NamedTuple):
    to: int = 0
    horizons: tuple[TombstoneHorizon, ...] = ()
    purged: int = 0
    """Tombstones before this offset are removed."""

    def tombstones_before(self, now_ms: int, delete_retention_ms: int) -> int:
        """Returns the offset before which tombstones are older than the retention time."""
        over = (one.offset for one in self.horizons if one.clean_ms + delete_retention_ms <= now_ms)
        return max(over, default=self.purged)

    def after(self, reached: int, tombstones_before: int, now_ms: int) -> "Cleaned":
        """Returns the state after a run up to `reached` that removed the tombstones before the other offset."""
        left = [one for one in self.horizons if one.offset > tombstones_before]
        if reached > self.to:
            left.append(TombstoneHorizon(reached, now_ms))
        return Cleaned(max(reached, self.to), tuple(_few(left)), max(tombstones_before, self.purged))


def _few(horizons: Sequence[TombstoneHorizon]) -> list[TombstoneHorizon]:
    """Limits the number of horizons; removes those nearest to others.

    Tombstones then wait for the next horizon, a little longer. The oldest stays: with frequent runs no horizon would
    become old enough otherwise.
    """
    kept = list(horizons)
    while len(kept) > HORIZONS_MAX:
        del kept[min(range(1, len(kept) - 1), key=lambda i: kept[i + 1].clean_ms - kept[i - 1].clean_ms)]
    return kept


_decode_reached = msgspec.json.Decoder(dict[int, int]).decode
_decode_horizons = msgspec.json.Decoder(dict[int, tuple[int, tuple[TombstoneHorizon, ...]]]).decode


class CompactionSettings(NamedTuple):
    """The compaction settings of a topic, as in Kafka."""

    delete_retention_ms: int
    min_lag_ms: int
    max_lag_ms: int
    dirty_ratio_min: float


class Due(NamedTuple):
    """A compaction of `files`, with the newest offsets of keys in `[dirty_from, end)`."""

    files: tuple[LiveFile, ...]
    dirty_from: int
    end: int
    tombstones_before: int
    newest: int
    """The last row of the partition, which always stays."""


def cleaned_of(metadata: Json) -> dict[int, Cleaned]:
    """Returns the state by partition. Properties that cannot be parsed count as missing: more files are checked."""
    properties = metadata["properties"]
    if properties.get(COMPACTED_SINCE, "") != properties.get(ACCEPT_ROLLBACK, ""):
        return {}
    try:
        reached = _decode_reached(properties.get(COMPACTED_TO, "{}"))
        horizons = _decode_horizons(properties.get(COMPACTED_AT, "{}"))
    except (msgspec.DecodeError, ValueError):
        return {}
    found = {}
    for partition, to in reached.items():
        purged, times = horizons.get(partition, (0, ()))
        found[partition] = Cleaned(to, times, purged)
    return found


def properties_with(metadata: Json, partition: int, cleaned: Cleaned) -> dict[str, str]:
    """Returns the properties to set after a run over a partition; other partitions keep their state."""
    known = {**cleaned_of(metadata), partition: cleaned}
    since = metadata["properties"].get(ACCEPT_ROLLBACK)
    return _properties_of(known) | ({COMPACTED_SINCE: since} if since is not None else {})


def _properties_of(cleaned: Mapping[int, Cleaned]) -> dict[str, str]:
    reached = {str(partition): cleaned[partition].to for partition in sorted(cleaned)}
    horizons = {
        str(partition): (cleaned[partition].purged, cleaned[partition].horizons) for partition in sorted(cleaned)
    }
    return {COMPACTED_TO: _text(reached), COMPACTED_AT: _text(horizons)}


def plan_compaction(
    files: Sequence[LiveFile], cleaned: Cleaned, settings: CompactionSettings, now_ms: int, ages_ms: Mapping[int, int]
) -> Due | None:
    """Returns the compaction of a partition, or None if it is not due.

    `files`: all files of the partition, by offset. `ages_ms`: of young files, by sequence number.
    """
    if any(one.clean_ms + PAUSE_MS > now_ms for one in cleaned.horizons):
        return None
    compactable, end = _compactable(files, settings.min_lag_ms, now_ms, ages_ms)
    if not compactable:
        return None
    newest = max(_last(file) for file in files)
    tombstones_before = min(cleaned.tombstones_before(now_ms, settings.delete_retention_ms), newest)
    has_tombstones = tombstones_before > cleaned.purged and any(
        _first(file) < tombstones_before and file.tombstones != 0 for file in compactable
    )
    if not has_tombstones and not _is_dirty(compactable, cleaned.to, end, settings, now_ms):
        return None
    return Due(tuple(compactable), min(cleaned.to, end), end, tombstones_before, newest)


def _compactable(
    files: Sequence[LiveFile], min_lag_ms: int, now_ms: int, ages_ms: Mapping[int, int]
) -> tuple[list[LiveFile], int]:
    """Returns the files that may be compacted, and the end offset: younger records than the lag are not touched."""
    end = max((_last(file) + 1 for file in files), default=0)
    if min_lag_ms > 0:
        young = [_first(file) for file in files if _newest_ms(file, now_ms, ages_ms) > now_ms - min_lag_ms]
        end = min([end, *young])
    return [file for file in files if _first(file) < end], end


def _newest_ms(file: LiveFile, now_ms: int, ages_ms: Mapping[int, int]) -> int:
    if file.newest_ms is not None:
        return file.newest_ms
    age_ms = ages_ms.get(file.sequence_number)
    return 0 if age_ms is None else now_ms - age_ms


def _is_dirty(files: Sequence[LiveFile], clean_to: int, end: int, settings: CompactionSettings, now_ms: int) -> bool:
    dirty = [file for file in files if _last(file) >= clean_to]
    if clean_to >= end or not dirty:
        return False
    dirty_size = sum(file.size * _share_behind(file, clean_to) for file in dirty)
    if dirty_size > settings.dirty_ratio_min * sum(file.size for file in files):
        return True
    oldest_ms = min((file.oldest_ms for file in dirty if file.oldest_ms is not None), default=now_ms)
    return oldest_ms < now_ms - settings.max_lag_ms


def _share_behind(file: LiveFile, offset: int) -> float:
    """Returns the dirty share of a file that is clean at its start and dirty at its end."""
    first, last = _first(file), _last(file)
    return (last + 1 - max(first, offset)) / (last + 1 - first)


def _first(file: LiveFile) -> int:
    return file.offset_first or 0


def _last(file: LiveFile) -> int:
    return file.offset_last or 0


def _text(values: object) -> str:
    return msgspec.json.encode(values).decode()
