"""Key compaction, what to do now: pure. The last record of each key stays, at its offset.

A partition has a clean part, in which each key is once, and a dirty one behind it. A run takes the newest offset of
each key of the dirty part, and removes from both parts what they supersede. Records without a value are deletions: they
stay for `delete.retention.ms` after they became part of the clean part, so that every consumer can see them.

    lakestream.compacted-to   a property: {"0": 123, …}, where the dirty part begins
    lakestream.compacted-at   a property: {"0": [100, [[123, 1700000000000], …]], …}, from where on there may still be
                              deletions, and when which offsets became clean

They are set in the commit that removes the records. Whoever removes them has everything looked at again, no more. The
same is done after a rollback that an operator has accepted: what was removed since may be back.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from lakestream.catalog.listing import LiveFile
from lakestream.catalog.next_offsets import ACCEPT_ROLLBACK
from lakestream.catalog.shapes import Json

COMPACTED_TO: Final = "lakestream.compacted-to"
COMPACTED_AT: Final = "lakestream.compacted-at"
COMPACTED_SINCE: Final = "lakestream.compacted-since"
"""Which accepted rollback the two above were said after."""
HORIZONS_MAX: Final = 16
PAUSE_MS: Final = 60_000
"""Between two runs over one partition."""


class Horizon(NamedTuple):
    """What lies before `offset` was clean at this time."""

    offset: int
    clean_ms: int


class Cleaned(NamedTuple):
    to: int = 0
    horizons: tuple[Horizon, ...] = ()
    purged: int = 0
    """Deletions before this offset are gone."""

    def tombstones_before(self, now_ms: int, delete_retention_ms: int) -> int:
        """Deletions before this offset have been there for long enough."""
        over = (one.offset for one in self.horizons if one.clean_ms + delete_retention_ms <= now_ms)
        return max(over, default=self.purged)

    def after(self, reached: int, tombstones_before: int, now_ms: int) -> "Cleaned":
        """A run has cleaned up to `reached`, and removed the deletions before the other offset."""
        left = [one for one in self.horizons if one.offset > tombstones_before]
        if reached > self.to:
            left.append(Horizon(reached, now_ms))
        return Cleaned(max(reached, self.to), tuple(_few(left)), max(tombstones_before, self.purged))


def _few(horizons: Sequence[Horizon]) -> list[Horizon]:
    """Of too many, those go that are nearest to others: deletions wait for the next that is kept, at most a little
    longer. The oldest stays, or with frequent runs none would ever be old enough."""
    kept = list(horizons)
    while len(kept) > HORIZONS_MAX:
        del kept[min(range(1, len(kept) - 1), key=lambda i: kept[i + 1].clean_ms - kept[i - 1].clean_ms)]
    return kept


_decode_reached = msgspec.json.Decoder(dict[int, int]).decode
_decode_horizons = msgspec.json.Decoder(dict[int, tuple[int, tuple[Horizon, ...]]]).decode


class CompactionSettings(NamedTuple):
    """Of a topic, in Kafka's words."""

    delete_retention_ms: int
    min_lag_ms: int
    max_lag_ms: int
    dirty_ratio_min: float


class Due(NamedTuple):
    """Look at `files`: newest offsets are those of `[dirty_from, end)`."""

    files: tuple[LiveFile, ...]
    dirty_from: int
    end: int
    tombstones_before: int
    newest: int
    """The last row of all: it stays, whatever it is."""


def cleaned_of(metadata: Json) -> dict[int, Cleaned]:
    """By partition. What cannot be read was never said: then more is looked at than needed."""
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
    """What to set after a run over the partition; what is said of others stays."""
    known = {**cleaned_of(metadata), partition: cleaned}
    since = metadata["properties"].get(ACCEPT_ROLLBACK)
    return _properties_of(known) | ({COMPACTED_SINCE: since} if since is not None else {})


def _properties_of(cleaned: Mapping[int, Cleaned]) -> dict[str, str]:
    reached = {str(partition): cleaned[partition].to for partition in sorted(cleaned)}
    horizons = {
        str(partition): (cleaned[partition].purged, cleaned[partition].horizons) for partition in sorted(cleaned)
    }
    return {COMPACTED_TO: _text(reached), COMPACTED_AT: _text(horizons)}


def due(
    files: Sequence[LiveFile], cleaned: Cleaned, settings: CompactionSettings, now_ms: int, ages_ms: Mapping[int, int]
) -> Due | None:
    """Whether to clean a partition now. `files`: all of it, by offset. `ages_ms`: of young ones, by sequence number."""
    if any(one.clean_ms + PAUSE_MS > now_ms for one in cleaned.horizons):
        return None
    settled, end = _settled(files, settings.min_lag_ms, now_ms, ages_ms)
    if not settled:
        return None
    newest = max(_last(file) for file in files)
    tombstones_before = min(cleaned.tombstones_before(now_ms, settings.delete_retention_ms), newest)
    has_tombstones = tombstones_before > cleaned.purged and any(
        _first(file) < tombstones_before and file.tombstones != 0 for file in settled
    )
    if not has_tombstones and not _is_dirty(settled, cleaned.to, end, settings, now_ms):
        return None
    return Due(tuple(settled), min(cleaned.to, end), end, tombstones_before, newest)


def _settled(
    files: Sequence[LiveFile], min_lag_ms: int, now_ms: int, ages_ms: Mapping[int, int]
) -> tuple[list[LiveFile], int]:
    """Files that may be compacted, and up to which offset: what is younger than the lag stays as it is."""
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
    """Of a file that is clean at its start and dirty at its end."""
    first, last = _first(file), _last(file)
    return (last + 1 - max(first, offset)) / (last + 1 - first)


def _first(file: LiveFile) -> int:
    return file.offset_first or 0


def _last(file: LiveFile) -> int:
    return file.offset_last or 0


def _text(values: object) -> str:
    return msgspec.json.encode(values).decode()
