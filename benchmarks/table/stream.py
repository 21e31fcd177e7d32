"""The peer's Spark job, from a Kafka topic to an Iceberg table: `python -m benchmarks.table.stream JOB`.

Tuned as the documentation of Spark and Iceberg advises: no shuffle before the write, one open writer per partition,
zstd at the level of Lakestream, large fetches. It writes no headers, because no record has any.

Spark's `from_avro` converts values with a schema to columns, and fails at the first invalid value. The five bytes
before a value are cut off without a check. The values themselves are not stored."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CATALOG: Final = "lake"
TABLE: Final = f"{CATALOG}.bench.records"
READY: Final = "the query is running"

_PROPERTIES: Final = {
    "format-version": "2",
    "write.distribution-mode": "none",
    "write.spark.fanout.enabled": "true",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.compression-level": "1",
}
_SELECTED: Final = ["partition", "offset", "timestamp", "timestampType AS timestamp_type", "key"]
_FRAME_SIZE: Final = 5


class Job(msgspec.Struct, frozen=True, kw_only=True):
    bootstrap: str
    topic: str
    folder: str
    """Folder of the table, the checkpoints and Spark's spill files."""
    jars: str
    interval_s: int
    schema: str = ""
    """Avro schema of values that begin with a schema id; empty if values are bytes."""

    @property
    def warehouse(self) -> Path:
        return Path(self.folder, "warehouse")

    @property
    def checkpoints(self) -> Path:
        return Path(self.folder, "checkpoints")


def main() -> int:
    from pyspark.sql import SparkSession

    job = msgspec.json.decode(sys.argv[1], type=Job)
    builder = SparkSession.builder.appName("bench").master("local[*]")
    for name, value in _conf(job).items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("WARN")
    records = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", job.bootstrap)
        .option("subscribe", job.topic)
        .option("startingOffsets", "earliest")
        .option("kafka.max.partition.fetch.bytes", str(8 << 20))
        .load()
    )
    rows = _typed(records, job.schema) if job.schema else records.selectExpr(*_SELECTED, "value")
    properties = ", ".join(f"'{name}'='{value}'" for name, value in _PROPERTIES.items())
    columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in rows.schema)
    spark.sql(f"CREATE TABLE {TABLE} ({columns}) USING iceberg PARTITIONED BY (partition) TBLPROPERTIES ({properties})")
    query = (
        rows.writeStream.format("iceberg")
        .outputMode("append")
        .trigger(processingTime=f"{job.interval_s} seconds")
        .option("fanout-enabled", "true")
        .option("checkpointLocation", str(job.checkpoints))
        .toTable(TABLE)
    )
    print(READY, flush=True)
    query.awaitTermination()
    return 0


def _typed(records: "DataFrame", schema: str) -> "DataFrame":
    from pyspark.sql.avro.functions import from_avro
    from pyspark.sql.functions import expr

    payload = expr(f"substring(value, {_FRAME_SIZE + 1})")
    return records.withColumn("value", from_avro(payload, schema)).selectExpr(*_SELECTED, "value.*")


def _conf(job: Job) -> dict[str, str]:
    return {
        "spark.jars": job.jars,
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.local.dir": str(Path(job.folder, "spark")),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        f"spark.sql.catalog.{CATALOG}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark.sql.catalog.{CATALOG}.type": "hadoop",
        f"spark.sql.catalog.{CATALOG}.warehouse": str(job.warehouse),
        f"spark.sql.catalog.{CATALOG}.cache-enabled": "false",
    }


if __name__ == "__main__":
    sys.exit(main())
