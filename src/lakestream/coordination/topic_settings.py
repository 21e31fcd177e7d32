"""The settings of a topic that clients and tools may read and set: every one of them is obeyed, or refused.

`Topic.settings` holds what was set, as text, under Kafka's names; what was not set has its default here.

Some that stock tools, Connect and Streams set speak of replicas or of files per partition, which do not exist here:
whatever is set, what they are meant to protect or to save holds. They are checked and kept, and their description says
that they are without meaning. One that promises something which does not happen here is not known, and so refused.
"""

import difflib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from lakestream.catalog.names import Namespace, check_namespace
from lakestream.catalog.table_properties import properties_of
from lakestream.catalog.topic_layout import COLUMNS, STREAM, VALUE, iceberg_schema
from lakestream.coordination.schemas.names import DEFAULT, check_context
from lakestream.errors import Misconfigured, Rejected
from lakestream.schemas.columns import columns_of
from lakestream.schemas.terms import SortTerm, Term, found_in, partition_terms, sort_terms
from lakestream.schemas.typing import Mode, OnInvalid
from lakestream.settings import Profile

LONG_MAX: Final = 2**63 - 1
_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]{1,19}\s*")


class Kind(Enum):
    """As Kafka numbers them in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Setting(NamedTuple):
    name: str
    kind: Kind
    default: str
    read: Callable[[str], Any]
    doc: str


def _number(low: int, high: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise ValueError(f"{text!r} is not a whole number")
        value = int(text)
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


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None
    if not 0 <= value <= 1:
        raise ValueError(f"{text} is not between 0 and 1")
    return value


def _boolean(text: str) -> bool:
    return _one_of("true", "false")(text.lower()) == "true"


def words(text: str) -> tuple[str, ...]:
    """Of a list, as Kafka writes them."""
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _policies(text: str) -> frozenset[str]:
    return frozenset(_one_of("delete", "compact")(word) for word in words(text))


def _formats(text: str) -> frozenset[str]:
    chosen = frozenset(_one_of("iceberg", "delta")(word) for word in words(text))
    if "iceberg" not in chosen:
        raise ValueError(f"{text!r} leaves out iceberg, which every topic's table is: write iceberg or iceberg,delta")
    return chosen


def _namespace(text: str) -> Namespace:
    try:
        return check_namespace(text.split("."))
    except Rejected as error:
        raise ValueError(str(error)) from error


class SchemaChoice(NamedTuple):
    """What the values, or the keys, of a topic are written with."""

    mode: Mode
    subject: str = ""
    """Of LATEST and FIXED; empty: the one that is named after the topic."""
    version: int = 0
    """Of FIXED."""


def _schema(text: str) -> SchemaChoice:
    """`subject@3`, `subject@latest`, or one of the words."""
    subject, at, version = text.rpartition("@")
    if not at:
        return SchemaChoice(Mode(_one_of(*(mode.value for mode in Mode if mode is not Mode.FIXED))(text)))
    if not subject:
        raise ValueError(f"{text!r} names no subject: write subject@version")
    if version == "latest":
        return SchemaChoice(Mode.LATEST, subject)
    return SchemaChoice(Mode.FIXED, subject, _number(1, 2**31 - 1)(version))


def _context(text: str) -> str:
    """`.prod`, as the registry's paths have it; also `prod` and `:.prod:`."""
    if not text:
        return DEFAULT
    try:
        return check_context(text)
    except Rejected as error:
        raise ValueError(str(error)) from error


def _partitioned(text: str) -> tuple[Term, ...]:
    terms = partition_terms(text)
    _check_own(terms)
    return terms


def _sorted(text: str) -> tuple[SortTerm, ...]:
    terms = sort_terms(text)
    _check_own([one.term for one in terms])
    return terms


def _check_own(terms: Sequence[Term]) -> None:
    """Columns of values may come with the first of them; those of the stream are the same in every table."""
    for term in terms:
        if term.column.split(".")[0] == STREAM and found_in(term, _COLUMNS) is None:
            raise ValueError(f"column {_unknown(term.column, _STREAM_NAMES)}")


_COLUMNS: Final = columns_of(iceberg_schema())
_STREAM_NAMES: Final = tuple(f"{STREAM}.{field.name}" for field in COLUMNS[-1].fields)
_long = _number(-1, LONG_MAX)
_int = _number(0, 2**31 - 1)
_from_zero = _number(0, LONG_MAX)
_from_one = _number(1, LONG_MAX)


def _meaningless(name: str, kind: Kind, default: str, read: Callable[[str], Any], why: str) -> Setting:
    return Setting(name, kind, default, read, f"without meaning here: {why}")


_NO_FILES: Final = "a partition has no files of its own"
_SYNCED: Final = "a record is acknowledged when the storage has it, never before"
_NO_REPLICAS: Final = "every broker serves every partition, and nothing is replicated between brokers"

_MEANINGLESS: Final = (
    _meaningless(
        "min.insync.replicas",
        Kind.INT,
        "1",
        _number(1, 2**31 - 1),
        "a record is acknowledged when the storage has it, which has its own copies",
    ),
    _meaningless("unclean.leader.election.enable", Kind.BOOLEAN, "false", _boolean, "there are no leaders to elect"),
    _meaningless("leader.replication.throttled.replicas", Kind.LIST, "", words, _NO_REPLICAS),
    _meaningless("follower.replication.throttled.replicas", Kind.LIST, "", words, _NO_REPLICAS),
    _meaningless("flush.messages", Kind.LONG, str(LONG_MAX), _from_one, _SYNCED),
    _meaningless("flush.ms", Kind.LONG, str(LONG_MAX), _from_zero, _SYNCED),
    _meaningless("segment.bytes", Kind.INT, "1073741824", _number(14, 2**31 - 1), _NO_FILES),
    _meaningless("segment.ms", Kind.LONG, "604800000", _from_one, _NO_FILES),
    _meaningless("segment.jitter.ms", Kind.LONG, "0", _from_zero, _NO_FILES),
    _meaningless("segment.index.bytes", Kind.INT, "10485760", _number(4, 2**31 - 1), _NO_FILES),
    _meaningless("index.interval.bytes", Kind.INT, "4096", _int, _NO_FILES),
    _meaningless("file.delete.delay.ms", Kind.LONG, "60000", _from_zero, _NO_FILES),
    _meaningless("preallocate", Kind.BOOLEAN, "false", _boolean, _NO_FILES),
)

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
            _from_zero,
            "how much older than now a record's timestamp may be",
        ),
        Setting(
            "message.timestamp.after.max.ms",
            Kind.LONG,
            "3600000",
            _from_zero,
            "how much later than now a record's timestamp may be",
        ),
        Setting("retention.ms", Kind.LONG, "604800000", _long, "how long records stay in the stream; -1: for ever"),
        Setting("retention.bytes", Kind.LONG, "-1", _long, "how much of a partition stays in the stream; -1: all"),
        Setting(
            "delete.retention.ms",
            Kind.LONG,
            "86400000",
            _from_zero,
            "how long the deletion of a key can still be read in a compacted topic",
        ),
        Setting(
            "min.compaction.lag.ms", Kind.LONG, "0", _from_zero, "how long a record stays as it is in a compacted topic"
        ),
        Setting(
            "max.compaction.lag.ms",
            Kind.LONG,
            str(LONG_MAX),
            _from_one,
            "how long a record may stay in a compacted topic after a newer one of its key, once it is in the table",
        ),
        Setting(
            "min.cleanable.dirty.ratio",
            Kind.DOUBLE,
            "0.5",
            _ratio,
            "how much of a partition's table must be new before it is compacted again, as a share of all of it",
        ),
        Setting(
            "lakestream.profile",
            Kind.STRING,
            "",
            lambda text: Profile(_one_of("", "cost", "latency")(text)) if text else None,
            "cost (objects in the bucket) or latency (segments); empty: the broker's default",
        ),
        Setting(
            "lakestream.table.namespace",
            Kind.STRING,
            "default",
            _namespace,
            "where the topic's table is made, levels divided by dots; one that is there already stays where it is",
        ),
        Setting(
            "lakestream.table.formats",
            Kind.LIST,
            "iceberg",
            _formats,
            "iceberg, or iceberg,delta: then the files of the table are a Delta table too, in its folder data",
        ),
        Setting(
            "lakestream.table.partition",
            Kind.STRING,
            "_stream.partition",
            _partitioned,
            "what the table is partitioned by: a list of columns and of Iceberg's transforms of columns, as"
            " day(_stream.timestamp), bucket(16, user_id), truncate(4, name), country; empty: by nothing. Files"
            " that are there stay as they are",
        ),
        Setting(
            "lakestream.table.sort",
            Kind.STRING,
            "",
            _sorted,
            "what rows are sorted by inside of a file, as user_id desc nulls last, _stream.timestamp; empty: by offset."
            " The stream is served by offset whatever it is",
        ),
        Setting(
            "lakestream.table.properties",
            Kind.STRING,
            "",
            properties_of,
            "Iceberg's properties of the table, as write.parquet.compression-codec=snappy,commit.retry.num-retries=9;"
            " one that is left out later is removed, or is again what every table has",
        ),
        Setting(
            "lakestream.table.on.delete",
            Kind.STRING,
            "keep",
            _one_of("keep", "drop"),
            "what becomes of the table when the topic is deleted: it stays, or it goes with its files",
        ),
        Setting(
            "lakestream.table.retention.ms",
            Kind.LONG,
            "-1",
            _long,
            "how long rows stay in the table that the stream has forgotten; -1: for ever",
        ),
        Setting(
            "lakestream.value.schema",
            Kind.STRING,
            Mode.NONE.value,
            _schema,
            "what values are, for the columns of the table. none: bytes; registry: each has the id of its schema in"
            " front; latest: they have none, and are of the latest schema of the subject <topic>-value;"
            " <subject>@<version>: they are of this one (version: a number, or latest); json: JSON without a schema,"
            " whose columns are found in it",
        ),
        Setting(
            "lakestream.key.schema",
            Kind.STRING,
            Mode.NONE.value,
            _schema,
            "what keys are, for the column _key of the table: as for values; latest is that of <topic>-key",
        ),
        Setting(
            "lakestream.schema.context",
            Kind.STRING,
            "",
            _context,
            "the context of the schema registry in which ids and subjects of values and keys are looked up, as .prod;"
            " a subject that names its own (:.prod:orders-value@3) is looked up there; empty: the default context",
        ),
        Setting(
            "lakestream.on.invalid",
            Kind.STRING,
            OnInvalid.KEEP.value,
            lambda text: OnInvalid(_one_of(*(choice.value for choice in OnInvalid))(text)),
            "what becomes of a record whose value or key is not what its topic says. keep: its row has the bytes, and"
            " no columns; reject: the producer hears of it, with the record and the reason; stop: nothing more of its"
            " partition enters the table until somebody decides",
        ),
        *_MEANINGLESS,
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
    expires: bool
    """Retention applies: `cleanup.policy` has delete in it."""
    profile: Profile | None
    table_namespace: Namespace
    delta: bool
    """The table's files are a Delta table too."""
    table_dropped: bool
    """With the topic."""
    table_retention_ms: int
    """Of rows that the stream has forgotten; -1: for ever."""
    table_partition: tuple[Term, ...]
    table_sort: tuple[SortTerm, ...]
    """Empty: by offset."""
    table_properties: tuple[tuple[str, str], ...]
    delete_retention_ms: int
    compaction_lag_ms_min: int
    compaction_lag_ms_max: int
    dirty_ratio_min: float
    value_schema: SchemaChoice
    key_schema: SchemaChoice
    schema_context: str
    on_invalid: OnInvalid


def check(
    settings: Mapping[str, str], profiles: Collection[Profile] = frozenset(Profile), *, is_new: bool = False
) -> None:
    """Misconfigured: a name is unknown, a value is wrong, or the profile is none of those that this broker has.
    `is_new`: of a topic that has no table yet."""
    values = {name: value_of(name, text) for name, text in settings.items()}
    shortest, longest = values.get("min.compaction.lag.ms", 0), values.get("max.compaction.lag.ms", LONG_MAX)
    if shortest > longest:
        raise Misconfigured(
            f"topic setting max.compaction.lag.ms: {longest} is below min.compaction.lag.ms, {shortest}"
        )
    profile = values.get("lakestream.profile")
    if profile is not None and profile not in profiles:
        raise Misconfigured(
            f"topic setting lakestream.profile: {profile.value} needs a folder that every broker mounts, and this"
            f" broker has none: start it with --wal-dir, or choose another profile"
        )
    if is_new:
        _check_has_columns(read(settings))


def _check_has_columns(chosen: TopicSettings) -> None:
    """Whether there may ever be what the table is to be partitioned and sorted by."""
    if Mode.NONE is not chosen.value_schema.mode or Mode.NONE is not chosen.key_schema.mode:
        return
    for setting, terms in (
        ("lakestream.table.partition", chosen.table_partition),
        ("lakestream.table.sort", [one.term for one in chosen.table_sort]),
    ):
        for term in terms:
            if term.column != VALUE and term.column.split(".")[0] != STREAM:
                raise Misconfigured(
                    f"topic setting {setting}: there is no column {term.column} in the table of a topic whose values"
                    f" are bytes, only {VALUE} and {STREAM}.…: set lakestream.value.schema too"
                )


def check_name(name: str) -> None:
    if name not in SETTINGS:
        raise Misconfigured(f"topic setting {_unknown(name, SETTINGS)}")


def value_of(name: str, text: str) -> Any:
    check_name(name)
    try:
        return SETTINGS[name].read(text)
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
        expires="delete" in values["cleanup.policy"],
        delete_retention_ms=values["delete.retention.ms"],
        compaction_lag_ms_min=values["min.compaction.lag.ms"],
        compaction_lag_ms_max=values["max.compaction.lag.ms"],
        dirty_ratio_min=values["min.cleanable.dirty.ratio"],
        profile=values["lakestream.profile"],
        table_namespace=values["lakestream.table.namespace"],
        delta="delta" in values["lakestream.table.formats"],
        table_dropped=values["lakestream.table.on.delete"] == "drop",
        table_retention_ms=values["lakestream.table.retention.ms"],
        table_partition=values["lakestream.table.partition"],
        table_sort=values["lakestream.table.sort"],
        table_properties=values["lakestream.table.properties"],
        value_schema=values["lakestream.value.schema"],
        key_schema=values["lakestream.key.schema"],
        schema_context=values["lakestream.schema.context"],
        on_invalid=values["lakestream.on.invalid"],
    )


def _unknown(word: str, known: Mapping[str, object] | tuple[str, ...]) -> str:
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"{word!r} is not known; " + (f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}")
