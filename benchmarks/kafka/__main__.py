"""`python -m benchmarks.kafka [PART …] [--only-lakestream] [--runs N] [--quick] [--write]`."""

import sys

from benchmarks.common.report import Subject
from benchmarks.kafka.command import Command
from benchmarks.kafka.servers import KAFKA, KAFKA_SYNCED, LAKESTREAM

BROKERS = Command(
    Subject(
        "kafka",
        "Lakestream compared with Apache Kafka",
        "Both run the same load from the same client (confluent-kafka) on the same machine, in turns. Figures are"
        " medians, ratios are medians over pairs of runs. CPU is user and system time of the server and all its"
        " descendants.",
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
