"""Settings of topics: obeyed, without meaning and saying so, or refused."""

import pytest

from lakestream.coordination import topic_settings
from lakestream.coordination.topic_settings import SETTINGS, SchemaChoice
from lakestream.errors import Misconfigured
from lakestream.schemas.terms import partition_terms
from lakestream.schemas.typing import Mode, OnInvalid


@pytest.mark.parametrize("name", list(SETTINGS))
def test_every_default_is_a_value(name: str) -> None:
    topic_settings.value_of(name, SETTINGS[name].default)
    assert SETTINGS[name].doc


def test_what_streams_and_connect_set_is_taken() -> None:
    topic_settings.check(
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
    ("name", "text", "why"),
    [
        ("retention.ms", "soon", "'soon' is not a whole number"),
        ("retention.ms", "1_000", "'1_000' is not a whole number"),
        ("retention.ms", "-2", "-2 is not between -1 and"),
        ("retention.ms", "9" * 30, "is not a whole number"),
        ("cleanup.policy", "burn", "'burn' is not known"),
        ("compression.type", "zst", "did you mean 'zstd'"),
        ("preallocate", "maybe", "'maybe' is not known"),
        ("min.cleanable.dirty.ratio", "2", "2 is not between 0 and 1"),
        ("min.cleanable.dirty.ratio", "nan", "nan is not between 0 and 1"),
        ("min.cleanable.dirty.ratio", "half", "'half' is not a number"),
        ("lakestream.profile", "slow", "'slow' is not known"),
        ("lakestream.table.on.delete", "burn", "'burn' is not known"),
        ("lakestream.table.namespace", "shop..raw", "a namespace's level is ''"),
        ("lakestream.table.namespace", "", "a namespace's level is ''"),
        ("lakestream.table.retention.ms", "-2", "-2 is not between -1 and"),
        ("lakestream.value.schema", "avro", "'avro' is not known; known are none, registry, latest, json"),
        ("lakestream.value.schema", "fixed", "'fixed' is not known"),
        ("lakestream.value.schema", "@3", "names no subject"),
        ("lakestream.value.schema", "orders@", "'' is not a whole number"),
        ("lakestream.key.schema", "orders@0", "0 is not between 1 and"),
        ("lakestream.on.invalid", "drop", "'drop' is not known"),
        ("lakestream.schema.context", ".a:b", "has a colon inside"),
        ("lakestream.schema.context", ":*:", "no context that schemas can be registered in"),
        ("lakestream.schema.context", ".__GLOBAL", "no context that schemas can be registered in"),
        ("lakestream.schema.context", ".a\n", "control character"),
        ("lakestream.schema.context", "x" * 2_000, "at most 1000 characters"),
        ("message.format.version", "3.0", "'message.format.version' is not known"),
        ("remote.storage.enable", "true", "'remote.storage.enable' is not known"),
        ("max.compaction.lag.ms", "0", "0 is not between 1 and"),
        ("lakestream.table.partition", "week(at)", "'week' is no transform"),
        ("lakestream.table.partition", "day(_stream.partition)", "is int, which takes identity, bucket, truncate"),
        ("lakestream.table.partition", "_stream.tiemstamp", "did you mean '_stream.timestamp'?"),
        ("lakestream.table.partition", "a, a", "a is there twice"),
        ("lakestream.table.sort", "a down", "no name of a column"),
        ("lakestream.table.sort", "_stream", "not of one value"),
        ("lakestream.table.properties", "a", "'a' is no property"),
        ("lakestream.table.properties", "a=1,a=2", "a is there twice"),
        ("lakestream.table.properties", "lakestream.next-offsets={}", "belongs to Lakestream itself"),
        ("lakestream.table.properties", "format-version=3", "the table's metadata says it"),
        ("lakestream.table.properties", "write.data.path=s3://x", "where Lakestream does not look"),
        ("lakestream.table.properties", "write.format.default=orc", "choose parquet"),
        ("lakestream.table.properties", "write.parquet.compression-codec=zst", "choose zstd or snappy"),
        ("lakestream.table.properties", "write.target-file-size-bytes=1MB", "a whole number above 0"),
    ],
)
def test_what_cannot_be_obeyed_is_refused(name: str, text: str, why: str) -> None:
    with pytest.raises(Misconfigured) as refused:
        topic_settings.check({name: text})
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("text", "choice"),
    [
        ("none", SchemaChoice(Mode.NONE)),
        ("registry", SchemaChoice(Mode.REGISTRY)),
        ("json", SchemaChoice(Mode.JSON)),
        ("latest", SchemaChoice(Mode.LATEST)),
        ("a@b@latest", SchemaChoice(Mode.LATEST, "a@b")),
        (":.trial:orders-value@12", SchemaChoice(Mode.FIXED, ":.trial:orders-value", 12)),
    ],
)
def test_what_values_are_written_with(text: str, choice: SchemaChoice) -> None:
    settings = topic_settings.read({"lakestream.value.schema": text})
    assert settings.value_schema == choice
    assert settings.key_schema == SchemaChoice(Mode.NONE)
    assert settings.on_invalid is OnInvalid.KEEP
    assert settings.schema_context == "."
    for text in (".prod", "prod", ":.prod:"):
        assert topic_settings.read({"lakestream.schema.context": text}).schema_context == ".prod"


def test_the_longest_lag_of_compaction_is_not_below_the_shortest() -> None:
    topic_settings.check({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"})
    with pytest.raises(Misconfigured, match=r"max.compaction.lag.ms: 4 is below min.compaction.lag.ms, 5"):
        topic_settings.check({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"})


def test_the_words_of_cleanup_policy() -> None:
    assert (topic_settings.read({}).expires, topic_settings.read({}).compacted) == (True, False)
    both = topic_settings.read({"cleanup.policy": "compact, delete"})
    assert (both.expires, both.compacted) == (True, True)
    neither = topic_settings.read({"cleanup.policy": ""})
    assert (neither.expires, neither.compacted) == (False, False)


def test_what_becomes_of_the_table() -> None:
    default = topic_settings.read({})
    assert (default.table_namespace, default.table_dropped, default.table_retention_ms) == (("default",), False, -1)
    chosen = topic_settings.read({"lakestream.table.namespace": "shop.raw", "lakestream.table.on.delete": "drop"})
    assert (chosen.table_namespace, chosen.table_dropped) == (("shop", "raw"), True)


def test_formats_of_the_table() -> None:
    name = "lakestream.table.formats"
    assert not topic_settings.read({}).delta
    assert topic_settings.read({name: "iceberg, delta"}).delta
    for wrong, why in (("delta", "leaves out iceberg"), ("iceberg,hudi", "'hudi' is not known"), ("", "leaves out")):
        with pytest.raises(Misconfigured, match=why):
            topic_settings.check({name: wrong})


def test_how_the_table_is_laid_out() -> None:
    default = topic_settings.read({})
    assert default.table_partition == partition_terms("_stream.partition")
    assert (default.table_sort, default.table_properties) == ((), ())
    chosen = topic_settings.read(
        {
            "lakestream.table.partition": "",
            "lakestream.table.sort": "user_id desc",
            "lakestream.table.properties": r"b=x\,y=z, a = 1 ,",
        }
    )
    assert (chosen.table_partition, len(chosen.table_sort)) == ((), 1)
    assert chosen.table_properties == (("a", "1"), ("b", "x,y=z"))


def test_a_table_of_bytes_never_has_other_columns() -> None:
    for name in ("lakestream.table.partition", "lakestream.table.sort"):
        topic_settings.check({name: "truncate(2, value), _stream.key"}, is_new=True)
        topic_settings.check({name: "country", "lakestream.value.schema": "json"}, is_new=True)
        topic_settings.check({name: "_key.id", "lakestream.key.schema": "json"}, is_new=True)
        topic_settings.check({name: "country"})  # its table may have been typed before
        with pytest.raises(Misconfigured, match=r"there is no column country .* set lakestream.value.schema too"):
            topic_settings.check({name: "country"}, is_new=True)
