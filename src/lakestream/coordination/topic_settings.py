"""The settings of a topic that clients and tools may read and set: every one of them is obeyed, or refused.

`Topic.settings` holds what was set, as text, under Kafka's names; what was not set has its default here.
"""

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from lakestream.errors import Misconfigured
from lakestream.settings import Profile

LONG_MAX: Final = 2**63 - 1


class Kind(Enum):
    """As Kafka numbers them in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    LIST = 7


class Setting(NamedTuple):
    name: str
    kind: Kind
    default: str
    read: Callable[[str], Any]
    doc: str


def _number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise ValueError(f"{text!r} is not a whole number") from None
        if not low <= value <= high:
            raise ValueError(f"{value} is not between {low} and {high}")
        return value

    return read


def _one_of(*known: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in known:
            raise ValueError(_unknown(text, known))
        return text

    return read


def _policies(text: str) -> frozenset[str]:
    return frozenset(_one_of("delete", "compact")(word.strip()) for word in text.split(",") if word.strip())


_long = _number(-1, LONG_MAX)
_int = _number(0, 2**31 - 1)

SETTINGS: Final[Mapping[str, Setting]] = {
    setting.name: setting
    for setting in (
        Setting("cleanup.policy", Kind.LIST, "delete", _policies, "delete, compact, or both"),
        Setting(
            "compression.type",
            Kind.STRING,
            "producer",
            _one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
            "producer: batches stay as they were sent; else they are rewritten whole",
        ),
        Setting("max.message.bytes", Kind.INT, "1048588", _int, "the largest record batch that is taken"),
        Setting(
            "message.timestamp.type",
            Kind.STRING,
            "CreateTime",
            _one_of("CreateTime", "LogAppendTime"),
            "whose time a record has: its producer's, or the broker's",
        ),
        Setting(
            "message.timestamp.before.max.ms",
            Kind.LONG,
            str(LONG_MAX),
            _number(0, LONG_MAX),
            "how much older than now a record's timestamp may be",
        ),
        Setting(
            "message.timestamp.after.max.ms",
            Kind.LONG,
            "3600000",
            _number(0, LONG_MAX),
            "how much later than now a record's timestamp may be",
        ),
        Setting("retention.ms", Kind.LONG, "604800000", _long, "how long records stay in the stream; -1: for ever"),
        Setting("retention.bytes", Kind.LONG, "-1", _long, "how much of a partition stays in the stream; -1: all"),
        Setting(
            "min.insync.replicas",
            Kind.INT,
            "1",
            _number(1, 2**31 - 1),
            "without meaning here: a record is acknowledged when the storage has it, which has its own copies",
        ),
        Setting(
            "lakestream.profile",
            Kind.STRING,
            "",
            lambda text: Profile(_one_of("", "cost", "latency")(text)) if text else None,
            "cost (objects in the bucket) or latency (segments); empty: the broker's default",
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """What the write and read paths ask of a topic."""

    compression: str
    batch_bytes_max: int
    log_append_time: bool
    timestamp_before_ms_max: int
    timestamp_after_ms_max: int
    retention_ms: int
    retention_bytes: int
    compacted: bool
    profile: Profile | None


def check(settings: Mapping[str, str]) -> None:
    """Misconfigured: a name is unknown or a value is wrong."""
    for name, text in settings.items():
        value_of(name, text)


def value_of(name: str, text: str) -> Any:
    setting = SETTINGS.get(name)
    if setting is None:
        raise Misconfigured(f"topic setting {_unknown(name, SETTINGS)}")
    try:
        return setting.read(text)
    except ValueError as error:
        raise Misconfigured(f"topic setting {name}: {error}") from error


def read(settings: Mapping[str, str]) -> TopicSettings:
    return _read(tuple(sorted(settings.items())))


@lru_cache(maxsize=4_096)
def _read(chosen: tuple[tuple[str, str], ...]) -> TopicSettings:
    texts = {name: setting.default for name, setting in SETTINGS.items()} | dict(chosen)
    values = {name: value_of(name, text) for name, text in texts.items()}
    return TopicSettings(
        compression=values["compression.type"],
        batch_bytes_max=values["max.message.bytes"],
        log_append_time=values["message.timestamp.type"] == "LogAppendTime",
        timestamp_before_ms_max=values["message.timestamp.before.max.ms"],
        timestamp_after_ms_max=values["message.timestamp.after.max.ms"],
        retention_ms=values["retention.ms"],
        retention_bytes=values["retention.bytes"],
        compacted="compact" in values["cleanup.policy"],
        profile=values["lakestream.profile"],
    )


def _unknown(word: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.4)
    return f"{word!r} is not known; " + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}")
