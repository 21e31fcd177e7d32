"""Spark session in its own process: reads statements as lines of JSON from stdin, prints results as lines of JSON.

    python spark_sql.py http://127.0.0.1:8080 [delta] < statements

The catalog is called `lake`; with Delta, its tables are spark_catalog.delta.`path`. A result is the list of rows, or
`{"error": "…"}`.
"""

import json
import os
import subprocess
import sys
from typing import Any

from pyspark.sql import SparkSession

from lakestream.testing.processes import program

ICEBERG = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
DELTA = "io.delta.sql.DeltaSparkSessionExtension"


def jars(name: str) -> str:
    return subprocess.run([program(name)], capture_output=True, text=True, check=True).stdout.strip()


def session(uri: str, *, delta: bool) -> SparkSession:
    settings = {
        "spark.jars": jars("iceberg-spark-jars"),
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
        "spark.sql.extensions": ICEBERG,
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "rest",
        "spark.sql.catalog.lake.uri": uri,
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.defaultCatalog": "lake",
    }
    if delta:
        settings["spark.jars"] += f",{jars('delta-spark-jars')}"
        settings["spark.sql.extensions"] += f",{DELTA}"
        settings["spark.sql.catalog.spark_catalog"] = "org.apache.spark.sql.delta.catalog.DeltaCatalog"
        settings["spark.databricks.delta.snapshotPartitions"] = "1"
        # The default would give a VACUUM 10,000 tasks.
        settings["spark.sql.sources.parallelPartitionDiscovery.parallelism"] = "1"
    builder = SparkSession.builder.master("local[1]").appName("catalog")
    for name, value in settings.items():
        builder = builder.config(name, value.strip())
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def to_json_types(value: Any) -> Any:
    if hasattr(value, "asDict"):
        return [to_json_types(inner) for inner in value]
    if isinstance(value, list):
        return [to_json_types(inner) for inner in value]
    if isinstance(value, dict):
        return {key: to_json_types(inner) for key, inner in value.items()}
    return value.hex() if isinstance(value, bytes | bytearray) else value


def main() -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = session(sys.argv[1], delta="delta" in sys.argv[2:])
    for line in sys.stdin:
        try:
            result: Any = [to_json_types(row) for row in spark.sql(json.loads(line)).collect()]
        except Exception as error:  # any error: the test decides whether it is expected
            result = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(f"result {json.dumps(result, default=str)}", flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
