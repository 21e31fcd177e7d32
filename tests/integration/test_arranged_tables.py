"""A table that is partitioned and sorted as its topic says, end to end: engines see it and skip files by it, another
layout comes later, engines delete and rewrite, and a consumer gets every byte that was produced, by offset.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from tests.integration.delta_tables import BOTH, delta_rows, maintained
from tests.integration.engines import duckdb_of, pyiceberg_of, spark_of
from tests.integration.kafka_clients import Confluent, Record
from tests.integration.programs import SOAK, cluster_of
from tests.integration.test_history_clients import move

from lakestream.cli.main import main
from lakestream.testing.brokers import Brokers

COUNTRIES: Final = ("de", "fr", None, "us")
DAY_MS: Final = 86_400_000
PARTITION, SORT, PROPERTIES = (f"lakestream.table.{name}" for name in ("partition", "sort", "properties"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Brokers]:
    yield from cluster_of("one-sqlite", tmp_path_factory)


class Topic:
    def __init__(self, cluster: Brokers, name: str, settings: dict[str, str]) -> None:
        self.cluster, self.name = cluster, name
        self.client = Confluent(cluster.bootstrap)
        self.client.create_topic(name, configs={"lakestream.value.schema": "json", **settings})
        self.sent: list[bytes] = []

    def send(self, count: int) -> None:
        start = len(self.sent)
        values = [
            json.dumps({"n": at, "user": f"u{at * 7 % 10}", "country": COUNTRIES[at % 4]}).encode()
            for at in range(start, start + count)
        ]
        # Some are older than time itself.
        times = [1_700_000_000_000 + (at % 3 - 1) * DAY_MS if at % 5 else 1 for at in range(start, start + count)]
        self.client.produce(
            self.name, [Record(value, b"k", timestamp_ms=time) for value, time in zip(values, times, strict=True)]
        )
        self.sent += values
        move(self.cluster)

    def alter(self, settings: dict[str, str]) -> None:
        entries = [
            ConfigEntry(name, text, incremental_operation=AlterConfigOpType.SET) for name, text in settings.items()
        ]
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        resource = ConfigResource(ResourceType.TOPIC, self.name, incremental_configs=entries)
        for done in admin.incremental_alter_configs([resource]).values():
            done.result(30)

    def served(self, count: int) -> list[bytes | None]:
        return [record.value for record in self.client.read(self.name, "earliest", count)]

    def files(self, condition: str) -> int:
        table = pyiceberg_of(self.cluster).load_table(f"default.{self.name}")
        return len(list(table.scan(row_filter=condition).plan_files()))

    def by_duckdb(self, condition: str) -> list[int]:
        with duckdb_of(self.cluster) as connection:
            query = f'SELECT n FROM lake.default."{self.name}" WHERE {condition} ORDER BY n'
            return [row[0] for row in connection.execute(query).fetchall()]

    def doctor(self) -> int:
        data = str(self.cluster[0]._log.parent / "data")
        stores = ["--data-dir", data, "--metadata", self.cluster.metadata, "--storage", self.cluster.storage]
        return main(["doctor", *stores, "--topic", self.name])


def numbers(topic: Topic, **fields: Any) -> list[int]:
    """Of the records that have these fields."""
    found = [json.loads(value) for value in topic.sent]
    return [one["n"] for one in found if all(one[name] == value for name, value in fields.items())]


def test_a_table_in_partitions_that_change(cluster: Brokers, tmp_path: Path) -> None:
    topic = Topic(
        cluster,
        "arranged",
        {
            **BOTH,
            PARTITION: "day(_stream.timestamp), country, bucket(2, user)",
            SORT: "user desc nulls last, n",
            PROPERTIES: "write.parquet.compression-codec=gzip,read.split.target-size=1000000",
        },
    )
    topic.send(60)
    table = pyiceberg_of(cluster).load_table("default.arranged")
    assert [field.name for field in table.spec().fields] == ["_stream_timestamp_day", "country", "user_bucket_2"]
    assert [(field.source_id, field.direction.name) for field in table.sort_order().fields] == [
        (table.schema().find_field("user").field_id, "DESC"),
        (table.schema().find_field("n").field_id, "ASC"),
    ]
    assert table.properties["read.split.target-size"] == "1000000"
    every, german = topic.files("n >= 0"), topic.files("country = 'de'")
    assert every >= 16
    assert 0 < german <= every / 3
    assert 0 < topic.files("country = 'de' and user = 'u3'") < german
    assert topic.files("_stream.timestamp < '1971-01-01T00:00:00+00:00'") < every / 2
    assert topic.by_duckdb("country = 'de'") == numbers(topic, country="de")
    assert topic.by_duckdb("country IS NULL AND \"user\" = 'u4'") == numbers(topic, country=None, user="u4")
    assert topic.served(60) == topic.sent
    with pytest.raises(KafkaException, match=r"n is long, which takes identity, bucket, truncate"):
        topic.alter({PARTITION: "day(n)"})
    topic.alter({PARTITION: "truncate(50, n)", SORT: "", PROPERTIES: ""})
    topic.send(60)
    assert "read.split.target-size" not in pyiceberg_of(cluster).load_table("default.arranged").properties
    assert topic.files("n >= 100") == 1
    assert topic.by_duckdb("country = 'fr'") == numbers(topic, country="fr")
    assert topic.served(120) == topic.sent
    # Merged within their partitions, and a Delta table over the same files.
    before = topic.files("n >= 0")
    topic.send(60)
    assert maintained(cluster).files_merged > 0
    assert topic.files("n >= 0") < before + 2
    assert topic.files("n < 60 and country = 'de'") < 9
    assert topic.by_duckdb("country = 'us'") == numbers(topic, country="us")
    assert sorted(row["value"] for row in delta_rows(cluster, "arranged", "n")) == list(range(180))
    assert topic.served(180) == topic.sent
    assert topic.doctor() == 0
    if SOAK:
        engines_change_it(topic, cluster, tmp_path)


def engines_change_it(topic: Topic, cluster: Brokers, folder: Path) -> None:
    """Spark sees what we see, deletes, rewrites in its own way, and the stream goes on."""
    with spark_of(cluster, folder) as spark:
        name = "lake.default.arranged"
        found = spark.rows(f"SELECT n FROM {name} WHERE country = 'us'")
        assert [row[0] for row in found] == numbers(topic, country="us")
        seen = spark.rows(f"SELECT DISTINCT coalesce(partition.country, '-') FROM {name}.files WHERE spec_id = 1")
        assert [row[0] for row in seen] == ["-", "de", "fr", "us"]
        spark.sql(f"DELETE FROM {name} WHERE country = 'de' AND n < 100")
        left = [value for value in topic.sent if (one := json.loads(value))["country"] != "de" or one["n"] >= 100]
        assert topic.served(len(left)) == left
        spark.sql(
            "CALL lake.system.rewrite_data_files(table => 'default.arranged', options => map('rewrite-all','true'))"
        )
        assert topic.served(len(left)) == left
        move(cluster)
        assert topic.doctor() == 0
