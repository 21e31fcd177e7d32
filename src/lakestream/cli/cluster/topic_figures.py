"""What topics have: records, bytes, tables and lag, in a number of requests that does not depend on the topics."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types export nothing
    AdminClient,
    OffsetSpec,
)

from lakestream.cli.cluster.log_dirs import topic_bytes
from lakestream.cli.cluster.metrics_page import TableStates, table_states
from lakestream.cli.output.http_client import request
from lakestream.cli.output.kafka_client import topic_settings, wait_for
from lakestream.errors import LakestreamError

EARLIEST: Final[Any] = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
LATEST: Final[Any] = OffsetSpec.latest()  # type: ignore[no-untyped-call]
NAMESPACES_MAX: Final = 50
"""Namespaces whose tables are listed."""


class TopicFigures(NamedTuple):
    """Values that are not known are None."""

    partitions: int
    records: int
    """From start to end: with markers of transactions, and before compaction."""
    bytes: int | None
    table: str | None
    """The name of its table; empty: it has none yet."""
    lag_records: int | None
    lag_s: float | None


class Figures(NamedTuple):
    topics: dict[str, TopicFigures]
    tables: TableStates | None
    missing: str
    """Why tables and lag are not known; empty if they are."""


def figures_of(admin: AdminClient, cluster: Any, http: str) -> Figures:
    """Returns the figures of all topics of a cluster (`kafka_client.cluster_of`)."""
    partitions = {name: sorted(topic.partitions) for name, topic in cluster.topics.items()}
    records = _record_counts(admin, partitions)
    sizes = topic_bytes([(one.host, one.port) for one in cluster.brokers.values()])
    states, tables, missing = None, {}, ""
    try:
        states = table_states(http)
        tables = _tables(http, topic_settings(admin, list(partitions)))
    except LakestreamError as error:
        missing = str(error)
    topics = {
        name: TopicFigures(
            partitions=len(numbers),
            records=records.get(name, 0),
            bytes=None if sizes is None else sizes[name],
            table=tables.get(name, "") if not missing else None,
            lag_records=None if states is None else states.lag_records.get(name),
            lag_s=None if states is None else states.lag_s.get(name),
        )
        for name, numbers in sorted(partitions.items())
    }
    return Figures(topics, states, missing)


def offsets_of(admin: AdminClient, wanted: Mapping[tuple[str, int], OffsetSpec]) -> dict[tuple[str, int], int]:
    """Returns an offset of each partition, in one request to each broker."""
    if not wanted:
        return {}
    futures = admin.list_offsets({TopicPartition(*partition): spec for partition, spec in wanted.items()})
    return {
        (partition.topic, partition.partition): wait_for(future, f"offsets of topic {partition.topic}").offset
        for partition, future in futures.items()
    }


def _record_counts(admin: AdminClient, partitions: Mapping[str, list[int]]) -> dict[str, int]:
    every = [(name, number) for name, numbers in partitions.items() for number in numbers]
    starts = offsets_of(admin, dict.fromkeys(every, EARLIEST))
    ends = offsets_of(admin, dict.fromkeys(every, LATEST))
    counts: dict[str, int] = {}
    for partition, end in ends.items():
        counts[partition[0]] = counts.get(partition[0], 0) + end - starts[partition]
    return counts


def _tables(http: str, settings: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Returns the name of each topic's table, if the catalog has it."""
    namespaces = {name: one.get("lakestream.table.namespace") or "default" for name, one in settings.items()}
    listed: dict[str, set[str]] = {}
    for namespace in sorted(set(namespaces.values()))[:NAMESPACES_MAX]:
        listed[namespace] = _listed(http, namespace)
    return {name: f"{namespace}.{name}" for name, namespace in namespaces.items() if name in listed.get(namespace, ())}


def _listed(http: str, namespace: str) -> set[str]:
    levels = quote("\x1f".join(namespace.split(".")), safe="")
    status, body = request(http, "GET", f"/v1/namespaces/{levels}/tables", what="catalog")
    return {one["name"] for one in json.loads(body)["identifiers"]} if status == 200 else set()
