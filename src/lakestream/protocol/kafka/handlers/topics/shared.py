"""Checks of replication factors and of manual replica assignments, which have no effect: the storage replicates.

What no Kafka cluster would accept is rejected with Kafka's texts, so that a mistake is not reported as a success.
"""

from collections.abc import Collection, Sequence
from typing import Final

from lakestream.protocol.kafka.errors import Code, KafkaError

DEFAULT_FACTOR: Final = -1
FACTOR_ALWAYS_ACCEPTED: Final = 3
"""Applications that were written for three brokers run with fewer."""


def check_replication_factor(factor: int, brokers: int) -> None:
    if factor == 0 or factor < DEFAULT_FACTOR:
        raise KafkaError(
            Code.INVALID_REPLICATION_FACTOR,
            "Replication factor must be larger than 0, or -1 to use the default value.",
        )
    if factor > max(FACTOR_ALWAYS_ACCEPTED, brokers):
        raise KafkaError(
            Code.INVALID_REPLICATION_FACTOR,
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be"
            f" reached because only {brokers} broker(s) are registered.",
        )


def check_assignments(assignments: Sequence[Sequence[int]], node_ids: Collection[int]) -> None:
    """Checks manual assignments, each of which is the node ids of one partition's replicas."""
    for replicas in assignments:
        _check_replicas(replicas, node_ids)
        if len(replicas) != len(assignments[0]):
            raise _invalid(
                f"a partition with {len(replicas)} replica(s), but this is not consistent with previous partitions,"
                f" which have {len(assignments[0])} replica(s)."
            )


def _check_replicas(replicas: Sequence[int], node_ids: Collection[int]) -> None:
    if not replicas:
        raise _invalid("an empty replica list.")
    before = None
    for node_id in sorted(replicas):
        if node_id not in node_ids:
            raise _invalid(f"broker {node_id}, but no such broker is registered.")
        if node_id == before:
            raise _invalid(f"the broker {node_id} more than once.")
        before = node_id


def _invalid(text: str) -> KafkaError:
    return KafkaError(Code.INVALID_REPLICA_ASSIGNMENT, f"The manual partition assignment includes {text}")
