"""`python -m benchmarks.table [PART …] [--only-lakestream] [--runs N] [--quick] [--write]`: the parts, then a table."""

import sys

from benchmarks.common.report import Subject
from benchmarks.kafka.command import Command
from benchmarks.kafka.sides import LAKESTREAM
from benchmarks.table.sides import KAFKA_SPARK

TABLE = Command(
    Subject(
        "table",
        "The way into the table and back, beside Kafka and Spark",
        "The peer is Apache Kafka with a Spark Structured Streaming job that writes Iceberg, tuned. Both are asked the"
        " same by the same client on the same machine and disk, by turns. Figures are medians, ratios medians over"
        " pairs of runs. CPU is that of all processes of a side, user and system.",
    ),
    package="benchmarks.table",
    parts=("move", "stored", "fresh", "idle", "history", "age", "typed", "from_avro"),
    sides=(LAKESTREAM, KAFKA_SPARK),
)

if __name__ == "__main__":
    sys.exit(TABLE.run())
