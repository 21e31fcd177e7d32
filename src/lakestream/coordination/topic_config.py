"""Topic settings that clients and tools can read and set. Every setting has an effect, or is rejected.

`Topic.settings` contains the values that were set, as text, under Kafka's names. All others have the defaults of this
table. config_values.py has the parsers.

Some settings of stock tools, Connect and Streams are about replicas or files of a partition, which do not exist here:
with any value, their purpose is fulfilled. They are validated and stored, and their description says
that they have no effect. Settings for features that Lakestream does not have are unknown, and therefore rejected.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final, NamedTuple

from lakestream.catalog.identifiers import Namespace
from lakestream.catalog.topic_table.columns import STREAM, VALUE
from lakestream.catalog.topic_table.properties import properties_of
from lakestream.config.settings import Profile
from lakestream.coordination.config_values import (
    LONG_MAX,
    SchemaChoice,
    boolean,
    from_one,
    from_zero,
    integer,
    long,
    namespace,
    one_of,
    policies,
    ratio,
    schema_choice,
    schema_context,
    table_formats,
    table_partition,
    table_sort,
    unknown_name,
    whole_number,
    words,
)
from lakestream.errors import Misconfigured
from lakestream.schemas.layout_terms import SortTerm, Term
from lakestream.schemas.value_format import OnInvalid, SchemaMode


class ConfigType(Enum):
    """As Kafka numbers them in DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class Setting(NamedTuple):
    name: str
    kind: ConfigType
    default: str
    read: Callable[[str], Any]
    doc: str


def _without_effect(name: str, kind: ConfigType, default: str, read: Callable[[str], Any], why: str) -> Setting:
    return Setting(name, kind, default, read, f"has no effect: {why}")


_NO_FILES: Final = "a partition has no files of its own"
_SYNCED: Final = "a record is acknowledged after it is stored, never before"
_NO_REPLICAS: Final = "every broker serves every partition, and nothing is replicated between brokers"

_WITHOUT_EFFECT: Final = (
    _without_effect(
        "min.insync.replicas",
        ConfigType.INT,
        "1",
        whole_number(1, 2**31 - 1),
        "a record is acknowledged after it is stored, and the storage keeps its own copies",
    ),
    _without_effect(
        "unclean.leader.election.enable", ConfigType.BOOLEAN, "false", boolean, "there are no leaders to elect"
    ),
    _without_effect("leader.replication.throttled.replicas", ConfigType.LIST, "", words, _NO_REPLICAS),
    _without_effect("follower.replication.throttled.replicas", ConfigType.LIST, "", words, _NO_REPLICAS),
    _without_effect("flush.messages", ConfigType.LONG, str(LONG_MAX), from_one, _SYNCED),
    _without_effect("flush.ms", ConfigType.LONG, str(LONG_MAX), from_zero, _SYNCED),
    _without_effect("segment.bytes", ConfigType.INT, "1073741824", whole_number(14, 2**31 - 1), _NO_FILES),
    _without_effect("segment.ms", ConfigType.LONG, "604800000", from_one, _NO_FILES),
    _without_effect("segment.jitter.ms", ConfigType.LONG, "0", from_zero, _NO_FILES),
    _without_effect("segment.index.bytes", ConfigType.INT, "10485760", whole_number(4, 2**31 - 1), _NO_FILES),
    _without_effect("index.interval.bytes", ConfigType.INT, "4096", integer, _NO_FILES),
    _without_effect("file.delete.delay.ms", ConfigType.LONG, "60000", from_zero, _NO_FILES),
    _without_effect("preallocate", ConfigType.BOOLEAN, "false", boolean, _NO_FILES),
)

WITHOUT_EFFECT: Final = frozenset(setting.name for setting in _WITHOUT_EFFECT)

SETTINGS: Final[Mapping[str, Setting]] = {
    setting.name: setting
    for setting in (
        Setting("cleanup.policy", ConfigType.LIST, "delete", policies, "delete, compact, or both"),
        Setting(
            "compression.type",
            ConfigType.STRING,
            "producer",
            one_of("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
            "producer: batches are stored as they were sent; any other codec: batches are recompressed",
        ),
        Setting("max.message.bytes", ConfigType.INT, "1048588", integer, "the largest record batch that is accepted"),
        Setting(
            "message.timestamp.type",
            ConfigType.STRING,
            "CreateTime",
            one_of("CreateTime", "LogAppendTime"),
            "the timestamp of a record: set by the producer, or by the broker",
        ),
        Setting(
            "message.timestamp.before.max.ms",
            ConfigType.LONG,
            str(LONG_MAX),
            from_zero,
            "how far in the past a record's timestamp may be",
        ),
        Setting(
            "message.timestamp.after.max.ms",
            ConfigType.LONG,
            "3600000",
            from_zero,
            "how far in the future a record's timestamp may be",
        ),
        Setting(
            "retention.ms", ConfigType.LONG, "604800000", long, "how long records stay in the stream; -1: no limit"
        ),
        Setting(
            "retention.bytes",
            ConfigType.LONG,
            "-1",
            long,
            "how many bytes of a partition stay in the stream; -1: no limit",
        ),
        Setting(
            "delete.retention.ms",
            ConfigType.LONG,
            "86400000",
            from_zero,
            "how long tombstones can be read in a compacted topic",
        ),
        Setting("min.compaction.lag.ms", ConfigType.LONG, "0", from_zero, "how long a record is not compacted"),
        Setting(
            "max.compaction.lag.ms",
            ConfigType.LONG,
            str(LONG_MAX),
            from_one,
            "how long a record may stay in a compacted topic after a newer one with its key, once it is in the table",
        ),
        Setting(
            "min.cleanable.dirty.ratio",
            ConfigType.DOUBLE,
            "0.5",
            ratio,
            "the share of new bytes in a partition's table files at which it is compacted again",
        ),
        Setting(
            "lakestream.profile",
            ConfigType.STRING,
            "",
            lambda text: Profile(one_of("", "cost", "latency")(text)) if text else None,
            "cost (objects in the bucket) or latency (segments); empty: the broker's default",
        ),
        Setting(
            "lakestream.table.namespace",
            ConfigType.STRING,
            "default",
            namespace,
            "the namespace in which the topic's table is created, levels separated by dots; an existing table does not"
            " move",
        ),
        Setting(
            "lakestream.table.formats",
            ConfigType.LIST,
            "iceberg",
            table_formats,
            "iceberg, or iceberg,delta: the table's folder data is also a Delta table, with the same files",
        ),
        Setting(
            "lakestream.table.partition",
            ConfigType.STRING,
            "_stream.partition",
            table_partition,
            "the partition spec of the table: a list of columns and of Iceberg transforms of columns, as"
            " day(_stream.timestamp), bucket(16, user_id), truncate(4, name), country; empty: unpartitioned. Existing"
            " files do not change",
        ),
        Setting(
            "lakestream.table.sort",
            ConfigType.STRING,
            "",
            table_sort,
            "the sort order of rows within a file, as user_id desc nulls last, _stream.timestamp; empty: by offset."
            " Consumers always read in offset order",
        ),
        Setting(
            "lakestream.table.properties",
            ConfigType.STRING,
            "",
            properties_of,
            "Iceberg table properties, as write.parquet.compression-codec=snappy,commit.retry.num-retries=9; a property"
            " that is left out later is removed, or gets its default for all tables",
        ),
        Setting(
            "lakestream.table.on.delete",
            ConfigType.STRING,
            "keep",
            one_of("keep", "drop"),
            "what happens to the table when the topic is deleted: keep it, or drop it with its files",
        ),
        Setting(
            "lakestream.table.retention.ms",
            ConfigType.LONG,
            "-1",
            long,
            "how long rows stay in the table after their records expired from the stream; -1: no limit",
        ),
        Setting(
            "lakestream.value.schema",
            ConfigType.STRING,
            SchemaMode.NONE.value,
            schema_choice,
            "the format of values, from which the table gets its columns. none: bytes; registry: each value begins with"
            " its schema id; latest: no schema id, the latest schema of the subject <topic>-value;"
            " <subject>@<version>: this schema (version: a number, or latest); json: JSON without a schema, whose"
            " columns are inferred",
        ),
        Setting(
            "lakestream.key.schema",
            ConfigType.STRING,
            SchemaMode.NONE.value,
            schema_choice,
            "the format of keys, for the table's column _key: as for values; latest is the schema of <topic>-key",
        ),
        Setting(
            "lakestream.schema.context",
            ConfigType.STRING,
            "",
            schema_context,
            "the schema registry context of the ids and subjects of values and keys, as .prod; a subject with a context"
            " of its own (:.prod:orders-value@3) uses that; empty: the default context",
        ),
        Setting(
            "lakestream.invalid.record.action",
            ConfigType.STRING,
            OnInvalid.KEEP.value,
            lambda text: OnInvalid(one_of(*(choice.value for choice in OnInvalid))(text)),
            "what happens to a record whose value or key does not match the topic's format. keep: its row has the bytes"
            " and no columns; reject: the producer gets an error with the record and the reason; stop: no further"
            " records of its partition enter the table until an operator decides",
        ),
        *_WITHOUT_EFFECT,
    )
}

FORMER_NAMES: Final[Mapping[str, str]] = {"lakestream.on.invalid": "lakestream.invalid.record.action"}
"""Current names by former names, which clients may use and stored topics contain. Responses have only current names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    """The parsed settings of a topic, for the write and read paths."""

    compression: str
    batch_bytes_max: int
    log_append_time: bool
    timestamp_before_ms_max: int
    timestamp_after_ms_max: int
    retention_ms: int
    retention_bytes: int
    compacted: bool
    expires: bool
    """Retention applies: `cleanup.policy` contains delete."""
    profile: Profile | None
    table_namespace: Namespace
    delta: bool
    """The table is also a Delta table."""
    table_dropped: bool
    """The table is dropped with the topic."""
    table_retention_ms: int
    """Of rows whose records have expired from the stream; -1: no limit."""
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
    """Raises Misconfigured if a name is unknown, a value is invalid, or this broker does not have the profile.

    `is_new`: the topic has no table yet."""
    values = {name: value_of(name, text) for name, text in with_current_names(settings).items()}
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
    """Checks that the table can have the columns of its partition spec and sort order."""
    if SchemaMode.NONE is not chosen.value_schema.mode or SchemaMode.NONE is not chosen.key_schema.mode:
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


def current_name(name: str) -> str:
    """Returns the current name of a setting. Raises Misconfigured if the setting does not exist."""
    name = FORMER_NAMES.get(name, name)
    if name not in SETTINGS:
        raise Misconfigured(f"topic setting {unknown_name(name, SETTINGS)}")
    return name


def with_current_names(settings: Mapping[str, str]) -> dict[str, str]:
    """Returns the settings under their current names. A value under the current name takes precedence."""
    renamed = {FORMER_NAMES[name]: text for name, text in settings.items() if name in FORMER_NAMES}
    return renamed | {name: text for name, text in settings.items() if name not in FORMER_NAMES}


def value_of(name: str, text: str) -> Any:
    name = current_name(name)
    try:
        return SETTINGS[name].read(text)
    except ValueError as error:
        raise Misconfigured(f"topic setting {name}: {error}") from error


def read(settings: Mapping[str, str]) -> TopicSettings:
    return _read(tuple(sorted(settings.items())))


@lru_cache(maxsize=4_096)
def _read(chosen: tuple[tuple[str, str], ...]) -> TopicSettings:
    texts = {name: setting.default for name, setting in SETTINGS.items()} | with_current_names(dict(chosen))
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
        on_invalid=values["lakestream.invalid.record.action"],
    )
