"""Reads the state of tables and pipelines from the metrics page of a broker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isinf
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from lakestream.cli.output.http_client import request
from lakestream.cli.output.text import escaped, plural
from lakestream.errors import Unavailable
from lakestream.protocol.rest import prometheus
from lakestream.protocol.rest.prometheus import Metric

WAIT_S: Final = 5.0
SILENT_S: Final = 300.0
"""An idle pipeline writes its status every minute."""
Samples = Mapping[str, list[tuple[Mapping[str, str], float]]]
"""Labels and value of each sample, by the name of its metric."""


@dataclass(slots=True)
class TableStates:
    """What brokers and pipelines report about tables."""

    lag_records: dict[str, int] = field(default_factory=dict)
    """By topic, for at most some thousand topics."""
    lag_s: dict[str, float] = field(default_factory=dict)
    status_age_s: float = inf
    """Age of the last status of a pipeline; infinite if none has run yet."""
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def table_states(http: str) -> TableStates:
    """Unavailable if no broker serves metrics at the address."""
    status, body = request(http, "GET", "/metrics", what="HTTP of a broker", wait_s=WAIT_S)
    if status != 200:
        raise Unavailable(f"the metrics at {http} cannot be read: status {status}")
    try:
        return states_of(samples_of(body.decode()))
    except ValueError as error:
        raise Unavailable(f"{http} returns no metrics of Lakestream: {error}") from error


def samples_of(page: str) -> Samples:
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def states_of(samples: Samples) -> TableStates:
    """Returns the state of all tables, with problems and notes as lines (pure)."""

    def of(metric: Metric) -> list[tuple[Mapping[str, str], float]]:
        return samples.get(metric.shown, [])

    found = TableStates()
    found.lag_records = {labels["topic"]: int(value) for labels, value in of(prometheus.TABLE_LAG_RECORDS)}
    found.lag_s = {labels["topic"]: value for labels, value in of(prometheus.TABLE_LAG)}
    found.status_age_s = min((value for _, value in of(prometheus.PIPELINE_STATUS_AGE)), default=inf)
    waiting = sum(found.lag_records.values())
    if found.status_age_s > SILENT_S and waiting:
        last = "no pipeline has run yet" if isinf(found.status_age_s) else "no pipeline runs"
        found.problems.append(f"{last}, and {plural(waiting, 'record')} wait for it: start lakestream pipeline")
    for metric, lines, text in (
        (prometheus.PIPELINE_ERROR, found.problems, "pipeline: its last micro-batch failed: {reason}"),
        (prometheus.TABLE_ERROR, found.problems, "table of {topic}: {reason}"),
        (prometheus.DELTA_ERROR, found.problems, "Delta table of {topic} lags: {reason}"),
        (
            prometheus.TABLE_CONVERSION_ERROR,
            found.notes,
            "topic {topic} has dead letters ({reason}): lakestream table dead-letters {topic}",
        ),
        (prometheus.TABLE_LAYOUT_PENDING, found.notes, "layout of the table of {topic}: {reason}"),
    ):
        lines += [escaped(text.format(**labels)) for labels, value in of(metric) if value]
    return found
