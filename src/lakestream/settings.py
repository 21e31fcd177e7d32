"""Numbers and names, by layer. Components are objects, made of these in `node.py`."""

from dataclasses import dataclass, field
from enum import Enum

from lakestream.model import MiB


class Profile(Enum):
    """What a topic's records are written for; may change at any time, since each claim names its own location."""

    COST = "cost"  # objects in the bucket, few large puts
    LATENCY = "latency"  # an append-only segment on a disk that every broker mounts


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSettings:
    flush_interval_ms: int = 250  # cost profile: the produce latency is about half of this plus one put
    flush_bytes_max: int = 8 * MiB  # one put per 8 MiB: 128 puts per GiB
    uploads_max: int = 4  # cost profile: puts in flight
    buffer_bytes_max: int = 64 * MiB  # placed but not answered; beyond it `append` waits
    segment_bytes_max: int = 256 * MiB
    segment_age_ms_max: int = 15 * 60 * 1000
    read_grace_ms: int = 60 * 1000  # between the last claim on an object and its removal, for readers under way


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    append_timeout_ms: int = 30_000  # from stored bytes to an answer; then the outcome is Uncertain
    retry_interval_ms: int = 50
    fold_every_claims: int = 1_000
    tail_claims_max: int = 32  # newest claims of a log kept in memory; older ones are scanned again when read
    cache_bytes_max: int = 256 * MiB
    wal: WalSettings = field(default_factory=WalSettings)
