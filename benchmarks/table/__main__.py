"""`python -m benchmarks.table [PART …] [--only-lakestream] [--runs N] [--quick] [--write]`."""

import sys

from benchmarks.common.report import Subject
from benchmarks.kafka.command import Command
from benchmarks.kafka.servers import LAKESTREAM
from benchmarks.table.servers import KAFKA_SPARK

TABLE = Command(
    Subject(
        "table",
        "Writes to the table and reads from it, compared with Kafka and Spark",
        "The peer is Apache Kafka with a tuned Spark Structured Streaming job that writes Iceberg. Both run the same"
        " load from the same client on the same machine and disk, in turns. Figures are medians, ratios are medians"
        " over pairs of runs. CPU is user and system time of all processes of a side.",
    ),
    package="benchmarks.table",
    parts=("move", "stored", "fresh", "idle", "history", "age", "typed", "from_avro"),
    sides=(LAKESTREAM, KAFKA_SPARK),
)

if __name__ == "__main__":
    sys.exit(TABLE.run())
