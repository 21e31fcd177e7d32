"""A table with the partition spec and sort order of its topic, end to end.

Engines skip files, the layout changes later, engines delete and rewrite rows, and a consumer reads every produced value
by offset.
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
from tests.harness.clients.kafka_clients import Confluent, Record
from tests.harness.clients.moved_records import move
from tests.harness.clients.programs import SOAK, running_cluster
from tests.harness.engines.delta_tables import BOTH, delta_rows, maintain_tables
from tests.harness.engines.engines import duckdb_of, pyiceberg_of, spark_of

from lakestream.cli.main import main
from lakestream.testing.brokers import BrokerProcesses

COUNTRIES: Final = ("de", "fr", None, "us")
DAY_MS: Final = 86_400_000
PARTITION, SORT, PROPERTIES = (f"lakestream.table.{name}" for name in ("partition", "sort", "properties"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-sqlite", tmp_path_factory)


class Topic:
    def __init__(self, cluster: BrokerProcesses, name: str, settings: dict[str, str]) -> None:
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
        # Some timestamps are a millisecond after 1970.
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
        for future in admin.incremental_alter_configs([resource]).values():
            future.result(30)

    def consumed(self, count: int) -> list[bytes | None]:
        return [record.value for record in self.client.read(self.name, "earliest", count)]

    def file_count(self, condition: str) -> int:
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
    """Returns the numbers of the records that have these fields."""
    records = [json.loads(value) for value in topic.sent]
    return [record["n"] for record in records if all(record[name] == value for name, value in fields.items())]


def test_consumer_reads_all_records_of_a_table_whose_partitioning_changes(
    cluster: BrokerProcesses, tmp_path: Path
) -> None:
    topic = Topic(
        cluster,
        "laid_out",
        {
            **BOTH,
            PARTITION: "day(_stream.timestamp), country, bucket(2, user)",
            SORT: "user desc nulls last, n",
            PROPERTIES: "write.parquet.compression-codec=gzip,read.split.target-size=1000000",
        },
    )
    topic.send(60)
    table = pyiceberg_of(cluster).load_table("default.laid_out")
    assert [field.name for field in table.spec().fields] == ["_stream_timestamp_day", "country", "user_bucket_2"]
    assert [(field.source_id, field.direction.name) for field in table.sort_order().fields] == [
        (table.schema().find_field("user").field_id, "DESC"),
        (table.schema().find_field("n").field_id, "ASC"),
    ]
    assert table.properties["read.split.target-size"] == "1000000"
    all_files, german_files = topic.file_count("n >= 0"), topic.file_count("country = 'de'")
    assert all_files >= 16
    assert 0 < german_files <= all_files / 3
    assert 0 < topic.file_count("country = 'de' and user = 'u3'") < german_files
    assert topic.file_count("_stream.timestamp < '1971-01-01T00:00:00+00:00'") < all_files / 2
    assert topic.by_duckdb("country = 'de'") == numbers(topic, country="de")
    assert topic.by_duckdb("country IS NULL AND \"user\" = 'u4'") == numbers(topic, country=None, user="u4")
    assert topic.consumed(60) == topic.sent
    with pytest.raises(KafkaException, match=r"n is long: use identity, bucket, truncate"):
        topic.alter({PARTITION: "day(n)"})
    topic.alter({PARTITION: "truncate(50, n)", SORT: "", PROPERTIES: ""})
    topic.send(60)
    assert "read.split.target-size" not in pyiceberg_of(cluster).load_table("default.laid_out").properties
    assert topic.file_count("n >= 100") == 1
    assert topic.by_duckdb("country = 'fr'") == numbers(topic, country="fr")
    assert topic.consumed(120) == topic.sent
    # Files are merged within their partitions, and a Delta table is written for the same files.
    before = topic.file_count("n >= 0")
    topic.send(60)
    assert maintain_tables(cluster).files_merged > 0
    assert topic.file_count("n >= 0") < before + 2
    assert topic.file_count("n < 60 and country = 'de'") < 9
    assert topic.by_duckdb("country = 'us'") == numbers(topic, country="us")
    assert sorted(row["value"] for row in delta_rows(cluster, "laid_out", "n")) == list(range(180))
    assert topic.consumed(180) == topic.sent
    assert topic.doctor() == 0
    if SOAK:
        assert_reads_after_changes_by_spark(topic, cluster, tmp_path)


def assert_reads_after_changes_by_spark(topic: Topic, cluster: BrokerProcesses, folder: Path) -> None:
    """Spark reads the same rows, deletes and rewrites some, and consumers continue to read."""
    with spark_of(cluster, folder) as spark:
        name = "lake.default.laid_out"
        rows = spark.rows(f"SELECT n FROM {name} WHERE country = 'us'")
        assert [row[0] for row in rows] == numbers(topic, country="us")
        countries = spark.rows(f"SELECT DISTINCT coalesce(partition.country, '-') FROM {name}.files WHERE spec_id = 1")
        assert [row[0] for row in countries] == ["-", "de", "fr", "us"]
        spark.sql(f"DELETE FROM {name} WHERE country = 'de' AND n < 100")
        remaining = [value for value in topic.sent if (one := json.loads(value))["country"] != "de" or one["n"] >= 100]
        assert topic.consumed(len(remaining)) == remaining
        spark.sql(
            "CALL lake.system.rewrite_data_files(table => 'default.laid_out', options => map('rewrite-all','true'))"
        )
        assert topic.consumed(len(remaining)) == remaining
        move(cluster)
        assert topic.doctor() == 0
