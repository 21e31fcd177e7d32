"""`lakestream status`: one screen with brokers, topics, groups, tables, and what is wrong; exit code 1 if anything is.

Reads over the Kafka protocol, and from the HTTP port of one broker: `/readyz` and `/metrics`.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from math import isinf
from typing import Any, Final, NamedTuple

from lakestream.cli.cluster.groups import ListedGroup, listed_groups
from lakestream.cli.cluster.topic_figures import Figures, TopicFigures, figures_of
from lakestream.cli.output.http_client import request
from lakestream.cli.output.kafka_client import admin_of, cluster_of
from lakestream.cli.output.text import columns, escaped, human_size, plural, printable
from lakestream.cli.server import add_server
from lakestream.errors import LakestreamError

SHOWN_MAX: Final = 10
"""Topics, and groups, with the highest lag."""
PROBLEMS_MAX: Final = 20
WAIT_S: Final = 5.0


class Status(NamedTuple):
    brokers: list[str]
    figures: Figures
    groups: list[ListedGroup]
    problems: list[str]
    notes: list[str]


def configure(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    status = _read(arguments)
    if arguments.json:
        print(json.dumps(_as_json(status)))
    else:
        print("\n".join(lines_of(status, arguments.http)))
    return 1 if status.problems else 0


def _read(arguments: argparse.Namespace) -> Status:
    admin = admin_of(arguments.bootstrap)
    cluster = cluster_of(admin, arguments.bootstrap)
    figures = figures_of(admin, cluster, arguments.http)
    problems, notes = _readiness(arguments.http), []
    if figures.tables is not None:
        problems += figures.tables.problems
        notes += figures.tables.notes
    elif not problems:
        notes.append(f"tables and lag are not known: {figures.missing}")
    brokers = [f"{one.host}:{one.port}" for one in sorted(cluster.brokers.values(), key=lambda one: int(one.id))]
    return Status(brokers, figures, listed_groups(admin), problems, notes)


def _readiness(http: str) -> list[str]:
    """Returns why the broker is not ready. Without HTTP nothing is known, which is no problem of the broker."""
    try:
        status, body = request(http, "GET", "/readyz", wait_s=WAIT_S)
        reasons: dict[str, str] = json.loads(body).get("reasons", {}) if status != 200 else {}
    except (LakestreamError, ValueError, AttributeError):
        return []
    return [escaped(f"broker at {http} is not ready: {name}: {reason}") for name, reason in reasons.items()]


def lines_of(status: Status, http: str) -> Iterator[str]:
    topics, tables = status.figures.topics, status.figures.tables
    yield f"brokers  {len(status.brokers)}: {', '.join(status.brokers[:SHOWN_MAX])}"
    yield f"topics   {_totals(list(topics.values()))}"
    yield f"groups   {len(status.groups)}, lag {sum(one.lag.records for one in status.groups if one.lag):,}"
    if tables is not None:
        age = (
            "no pipeline has run" if isinf(tables.status_age_s) else f"pipeline status {tables.status_age_s:.0f} s ago"
        )
        count = sum(bool(one.table) for one in topics.values())
        lag = sum(tables.lag_records.values())
        yield f"tables   {count}, lag {plural(lag, 'record')}; {age}"
    lagging = sorted((one for one in topics.items() if one[1].lag_records), key=lambda one: -(one[1].lag_records or 0))
    if lagging:
        rows = [("topics whose tables lag", "records", "seconds")]
        rows += [(name, f"{one.lag_records:,}", f"{one.lag_s or 0:,.1f}") for name, one in lagging[:SHOWN_MAX]]
        yield from columns(rows, frozenset({1, 2}))
    slow = sorted((one for one in status.groups if one.lag and one.lag.records), key=_lag, reverse=True)
    if slow:
        rows = [("groups that lag", "records", "state")]
        rows += [(printable(one.name), f"{_lag(one):,}", one.state.lower()) for one in slow[:SHOWN_MAX]]
        yield from columns(rows, frozenset({1}))
    for level, found in (("BAD ", status.problems), ("note", status.notes)):
        yield from (f"{level} {text}" for text in found[:PROBLEMS_MAX])
        if len(found) > PROBLEMS_MAX:
            yield f"{level} {len(found) - PROBLEMS_MAX} more: --json has them"
    yield f"{plural(len(status.problems), 'problem')} found" if status.problems else "no problems found"


def _lag(group: ListedGroup) -> int:
    return group.lag.records if group.lag else 0


def _totals(topics: Sequence[TopicFigures]) -> str:
    partitions, records = sum(one.partitions for one in topics), sum(one.records for one in topics)
    sizes = [one.bytes for one in topics]
    size = "" if None in sizes else f", {human_size(sum(one or 0 for one in sizes))}"
    return f"{len(topics)}, {plural(partitions, 'partition')}, {plural(records, 'record')}{size}"


def _as_json(status: Status) -> dict[str, Any]:
    tables = status.figures.tables
    return {
        "brokers": status.brokers,
        "topics": {name: one._asdict() for name, one in status.figures.topics.items()},
        "groups": {
            one.name: {"state": one.state.lower(), "lag_records": one.lag.records if one.lag else None}
            for one in status.groups
        },
        "pipeline_status_age_seconds": None if tables is None or isinf(tables.status_age_s) else tables.status_age_s,
        "problems": status.problems,
        "notes": status.notes,
    }
