"""Topic settings: each has an effect, is documented as having none, or is rejected."""

import pytest

from lakestream.coordination import topic_config
from lakestream.coordination.config_values import SchemaChoice
from lakestream.coordination.topic_config import SETTINGS
from lakestream.errors import Misconfigured
from lakestream.schemas.layout_terms import partition_terms
from lakestream.schemas.value_format import OnInvalid, SchemaMode


@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_default_can_be_parsed(name: str) -> None:
    topic_config.value_of(name, SETTINGS[name].default)
    assert SETTINGS[name].doc


def test_settings_of_streams_and_connect_are_accepted() -> None:
    topic_config.check(
        {
            "cleanup.policy": "compact,delete",
            "retention.ms": "-1",
            "segment.bytes": "52428800",
            "message.timestamp.type": "CreateTime",
            "min.insync.replicas": "2",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "100",
            "file.delete.delay.ms": "1000",
            "flush.ms": "12345678",
        }
    )


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("retention.ms", "soon", "'soon' is not a whole number"),
        ("retention.ms", "1_000", "'1_000' is not a whole number"),
        ("retention.ms", "-2", "-2 is not between -1 and"),
        ("retention.ms", "9" * 30, "is not a whole number"),
        ("cleanup.policy", "burn", "'burn' is unknown"),
        ("compression.type", "zst", "'zst' is unknown: use one of producer, uncompressed, gzip, snappy, lz4, zstd"),
        ("preallocate", "maybe", "'maybe' is unknown"),
        ("min.cleanable.dirty.ratio", "2", "2 is not between 0 and 1"),
        ("min.cleanable.dirty.ratio", "nan", "nan is not between 0 and 1"),
        ("min.cleanable.dirty.ratio", "half", "'half' is not a number"),
        ("lakestream.profile", "slow", "'slow' is unknown"),
        ("lakestream.table.on.delete", "burn", "'burn' is unknown"),
        ("lakestream.table.namespace", "shop..raw", "invalid namespace level ''"),
        ("lakestream.table.namespace", "", "invalid namespace level ''"),
        ("lakestream.table.retention.ms", "-2", "-2 is not between -1 and"),
        ("lakestream.value.schema", "avro", "'avro' is unknown: use one of none, registry, latest, json"),
        ("lakestream.value.schema", "fixed", "'fixed' is unknown"),
        ("lakestream.value.schema", "@3", "has no subject"),
        ("lakestream.value.schema", "orders@", "'' is not a whole number"),
        ("lakestream.key.schema", "orders@0", "0 is not between 1 and"),
        ("lakestream.invalid.record.action", "drop", "'drop' is unknown"),
        ("lakestream.schema.context", ".a:b", "has a colon inside"),
        ("lakestream.schema.context", ":*:", "is reserved: schemas cannot be registered in it"),
        ("lakestream.schema.context", ".__GLOBAL", "is reserved: schemas cannot be registered in it"),
        ("lakestream.schema.context", ".a\n", "control character"),
        ("lakestream.schema.context", "x" * 2_000, "at most 1000 Unicode characters"),
        ("message.format.version", "3.0", "'message.format.version' is unknown"),
        ("remote.storage.enable", "true", "'remote.storage.enable' is unknown"),
        ("max.compaction.lag.ms", "0", "0 is not between 1 and"),
        ("lakestream.table.partition", "week(at)", "unknown transform 'week'"),
        ("lakestream.table.partition", "day(_stream.partition)", "is int: use identity, bucket, truncate"),
        ("lakestream.table.partition", "_stream.tiemstamp", "did you mean '_stream.timestamp'?"),
        ("lakestream.table.partition", "a, a", "a appears twice"),
        ("lakestream.table.sort", "a down", "invalid column name"),
        ("lakestream.table.sort", "_stream", "not of a primitive type"),
        ("lakestream.table.properties", "a", "'a' is not a property"),
        ("lakestream.table.properties", "a=1,a=2", "a is set twice"),
        ("lakestream.table.properties", "lakestream.next-offsets={}", "is reserved for Lakestream"),
        ("lakestream.table.properties", "format-version=3", "is a field of the table's metadata"),
        ("lakestream.table.properties", "write.data.path=s3://x", "where Lakestream does not read them"),
        ("lakestream.table.properties", "write.format.default=orc", "choose parquet"),
        ("lakestream.table.properties", "write.parquet.compression-codec=zst", "choose zstd or snappy"),
        ("lakestream.table.properties", "write.target-file-size-bytes=1MB", "a positive integer"),
    ],
)
def test_unknown_settings_and_invalid_values_are_rejected(name: str, text: str, reason: str) -> None:
    with pytest.raises(Misconfigured) as raised:
        topic_config.check({name: text})
    assert reason in str(raised.value)


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("none", SchemaChoice(SchemaMode.NONE)),
        ("registry", SchemaChoice(SchemaMode.REGISTRY)),
        ("json", SchemaChoice(SchemaMode.JSON)),
        ("latest", SchemaChoice(SchemaMode.LATEST)),
        ("a@b@latest", SchemaChoice(SchemaMode.LATEST, "a@b")),
        (":.trial:orders-value@12", SchemaChoice(SchemaMode.FIXED, ":.trial:orders-value", 12)),
    ],
)
def test_value_schema_is_parsed(text: str, choice: SchemaChoice) -> None:
    settings = topic_config.read({"lakestream.value.schema": text})
    assert settings.value_schema == choice
    assert settings.key_schema == SchemaChoice(SchemaMode.NONE)
    assert settings.on_invalid is OnInvalid.KEEP
    assert settings.schema_context == "."
    for text in (".prod", "prod", ":.prod:"):
        assert topic_config.read({"lakestream.schema.context": text}).schema_context == ".prod"


def test_settings_are_read_by_former_names_when_current_names_are_absent() -> None:
    for former, name in topic_config.FORMER_NAMES.items():
        assert former not in SETTINGS
        assert topic_config.current_name(former) == topic_config.current_name(name) == name
    topic_config.check({"lakestream.on.invalid": "reject"})
    assert topic_config.read({"lakestream.on.invalid": "reject"}).on_invalid is OnInvalid.REJECT
    both = {"lakestream.on.invalid": "reject", "lakestream.invalid.record.action": "stop"}
    for config in (both, dict(reversed(both.items()))):
        assert topic_config.with_current_names(config) == {"lakestream.invalid.record.action": "stop"}
        assert topic_config.read(config).on_invalid is OnInvalid.STOP
    with pytest.raises(Misconfigured, match=r"topic setting lakestream.invalid.record.action: 'drop' is unknown"):
        topic_config.check({"lakestream.on.invalid": "drop"})


def test_max_compaction_lag_below_the_minimum_is_rejected() -> None:
    topic_config.check({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(Misconfigured, match=r"max.compaction.lag.ms: 4 is below min.compaction.lag.ms, 5"):
        topic_config.check({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})


def test_cleanup_policy_sets_expiration_and_compaction() -> None:
    assert (topic_config.read({}).expires, topic_config.read({}).compacted) == (True, False)
    both = topic_config.read({"cleanup.policy": "compact, delete"})
    assert (both.expires, both.compacted) == (True, True)
    neither = topic_config.read({"cleanup.policy": ""})
    assert (neither.expires, neither.compacted) == (False, False)


def test_table_settings_are_parsed() -> None:
    default = topic_config.read({})
    assert (default.table_namespace, default.table_dropped, default.table_retention_ms) == (("default",), False, -1)
    config = topic_config.read({"lakestream.table.namespace": "shop.raw", "lakestream.table.on.delete": "drop"})
    assert (config.table_namespace, config.table_dropped) == (("shop", "raw"), True)


def test_table_formats_are_parsed() -> None:
    name = "lakestream.table.formats"
    assert not topic_config.read({}).delta
    assert topic_config.read({name: "iceberg, delta"}).delta
    for text, reason in (("delta", "leaves out iceberg"), ("iceberg,hudi", "'hudi' is unknown"), ("", "leaves out")):
        with pytest.raises(Misconfigured, match=reason):
            topic_config.check({name: text})


def test_table_layout_settings_are_parsed() -> None:
    default = topic_config.read({})
    assert default.table_partition == partition_terms("_stream.partition")
    assert (default.table_sort, default.table_properties) == ((), ())
    config = topic_config.read(
        {
            "lakestream.table.partition": "",
            "lakestream.table.sort": "user_id desc",
            "lakestream.table.properties": r"b=x\,y=z, a = 1 ,",
        }
    )
    assert (config.table_partition, len(config.table_sort)) == ((), 1)
    assert config.table_properties == (("a", "1"), ("b", "x,y=z"))


def test_columns_are_rejected_when_values_are_bytes() -> None:
    for name in ("lakestream.table.partition", "lakestream.table.sort"):
        topic_config.check({name: "truncate(2, value), _stream.key"}, is_new=True)
        topic_config.check({name: "country", "lakestream.value.schema": "json"}, is_new=True)
        topic_config.check({name: "_key.id", "lakestream.key.schema": "json"}, is_new=True)
        topic_config.check({name: "country"})  # its table may already have the column
        with pytest.raises(Misconfigured, match=r"there is no column country .* set lakestream.value.schema too"):
            topic_config.check({name: "country"}, is_new=True)
