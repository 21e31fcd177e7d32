"""`python -m benchmarks.kafka [PART …] [--only-lakestream] [--runs N] [--quick] [--write]`: the parts, then a table."""

import sys

from benchmarks.common.report import Subject
from benchmarks.kafka.command import Command
from benchmarks.kafka.sides import KAFKA, KAFKA_SYNCED, LAKESTREAM

BROKERS = Command(
    Subject(
        "kafka",
        "Lakestream beside Apache Kafka",
        "Both are asked the same by the same client (confluent-kafka) on the same machine, by turns. Figures are"
        " medians, ratios medians over pairs of runs. CPU is that of the server with all that it started, user and"
        " system.",
    ),
    package="benchmarks.kafka",
    parts=(
        "produce",
        "consume",
        "steady",
        "single",
        "idle",
        "cost",
        "rebalance",
        "commits",
        "transactions",
        "failover",
    ),
    sides=(LAKESTREAM, KAFKA, KAFKA_SYNCED),
)

if __name__ == "__main__":
    sys.exit(BROKERS.run())
