"""`lakestream group list | describe | reset-offsets | delete`, over the Kafka protocol."""

import argparse
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, ConsumerGroupTopicPartitions, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types export nothing
    AdminClient,
    OffsetSpec,
)

from lakestream.cli.cluster.topic_figures import EARLIEST, LATEST, offsets_of
from lakestream.cli.consume import parse_position
from lakestream.cli.output.kafka_client import (
    WORK_S_MAX,
    admin_of,
    error_of,
    topic_of,
    topics_of,
    wait_for,
)
from lakestream.cli.output.text import columns, plural, printable
from lakestream.cli.server import add_server
from lakestream.config.suggestions import suggest
from lakestream.errors import Missing, Rejected

GROUPS_MAX: Final = 200
"""Groups whose lag is read: a request each."""
EMPTY: Final = "EMPTY"

Partition = tuple[str, int]


def configure_list(parser: argparse.ArgumentParser) -> None:
    _common(parser, show_all)


def configure_describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group")
    _common(parser, describe)


def configure_reset(parser: argparse.ArgumentParser) -> None:
    parser.description = "Sets the committed offsets of a group without members. Without --execute it only shows them."
    parser.add_argument("group")
    parser.add_argument(
        "--to", required=True, metavar="POSITION", help="start, end, an offset, or a time as 2026-01-31T12:00"
    )
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="TOPIC[:N[,N]]",
        help="of this topic, or of these partitions of it, only; may be repeated (all with committed offsets)",
    )
    parser.add_argument("--execute", action="store_true", help="change the offsets, instead of only showing them")
    _common(parser, reset)


def configure_delete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("group", nargs="+")
    _common(parser, delete)


def _common(parser: argparse.ArgumentParser, run: Any) -> None:
    add_server(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


class GroupLag(NamedTuple):
    """Committed offsets of a group, and the ends of these partitions."""

    committed: dict[Partition, int]
    ends: dict[Partition, int]

    @property
    def records(self) -> int:
        return sum(max(0, self.ends[one] - offset) for one, offset in self.committed.items() if one in self.ends)


class ListedGroup(NamedTuple):
    name: str
    state: str
    type: str
    lag: GroupLag | None
    """None: not read, because there are too many groups."""


def listed_groups(admin: AdminClient) -> list[ListedGroup]:
    """Returns all groups, with the lag of the first GROUPS_MAX."""
    listed = sorted(_listings(admin), key=lambda one: str(one.group_id))
    lags = group_lags(admin, [one.group_id for one in listed[:GROUPS_MAX]])
    return [ListedGroup(one.group_id, one.state.name, one.type.name, lags.get(one.group_id)) for one in listed]


def group_lags(admin: AdminClient, groups: Sequence[str]) -> dict[str, GroupLag]:
    """Reads all groups concurrently, and then the ends of all their partitions in one request to each broker."""
    futures = {
        group: admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)], request_timeout=WORK_S_MAX)[
            group
        ]
        for group in groups
    }
    committed = {group: _committed(wait_for(future, f"group {group}")) for group, future in futures.items()}
    existing = {name: set(topic.partitions) for name, topic in admin.list_topics(timeout=WORK_S_MAX).topics.items()}
    every = {one for offsets in committed.values() for one in offsets if one[1] in existing.get(one[0], ())}
    ends = offsets_of(admin, dict.fromkeys(every, LATEST))
    return {
        group: GroupLag(offsets, {one: ends[one] for one in offsets if one in ends})
        for group, offsets in committed.items()
    }


def _listings(admin: AdminClient) -> list[Any]:
    found = wait_for(admin.list_consumer_groups(request_timeout=WORK_S_MAX), "groups cannot be listed")
    for error in found.errors or ():
        raise error_of(error if isinstance(error, KafkaException) else KafkaException(error), "groups cannot be listed")
    return list(found.valid or ())


def _committed(found: Any) -> dict[Partition, int]:
    return {(one.topic, one.partition): one.offset for one in found.topic_partitions if one.offset >= 0}


def show_all(arguments: argparse.Namespace) -> int:
    admin = _connected(arguments)
    groups = listed_groups(admin)
    if arguments.json:
        print(json.dumps([_as_json(one) for one in groups]))
    elif groups:
        rows = [("group", "state", "type", "topics", "lag")]
        for one in groups:
            names = sorted({topic for topic, _ in one.lag.committed}) if one.lag else []
            lag = f"{one.lag.records:,}" if one.lag else "-"
            rows.append((printable(one.name), one.state.lower(), one.type.lower(), ", ".join(names) or "-", lag))
        print("\n".join(columns(rows, frozenset({4}), "")))
    return 0


def _as_json(group: ListedGroup) -> dict[str, Any]:
    lag = None if group.lag is None else group.lag.records
    return {"group": group.name, "state": group.state.lower(), "type": group.type.lower(), "lag_records": lag}


def describe(arguments: argparse.Namespace) -> int:
    admin, group = _connected(arguments), arguments.group
    state, members = _existing(admin, group)
    lag = group_lags(admin, [group])[group]
    owners = {(one.topic, one.partition): member for member in members for one in member.assignment.topic_partitions}
    partitions = sorted({*lag.committed, *owners})
    if arguments.json:
        print(json.dumps({"group": group, "state": state.lower(), **_described(lag, owners, partitions, members)}))
        return 0
    print(f"group {printable(group)}, {state.lower()}, {plural(len(members), 'member')}, lag {lag.records:,}")
    rows = [("topic", "partition", "committed", "end", "lag", "member")]
    for one in partitions:
        committed, end = lag.committed.get(one), lag.ends.get(one)
        behind = "-" if committed is None or end is None else f"{max(0, end - committed):,}"
        cells = [str("-" if number is None else number) for number in (committed, end)]
        rows.append((one[0], str(one[1]), *cells, behind, _member(owners.get(one))))
    if partitions:
        print("\n".join(columns(rows, frozenset({1, 2, 3, 4}))))
    for member in members:
        if not member.assignment.topic_partitions:
            print(f"  without partitions: {_member(member)}")
    return 0


def _described(lag: GroupLag, owners: dict[Partition, Any], partitions: Iterable[Partition], members: Any) -> Any:
    rows = [
        {
            "topic": one[0],
            "partition": one[1],
            "committed": lag.committed.get(one),
            "end": lag.ends.get(one),
            "member": owners[one].member_id if one in owners else None,
        }
        for one in partitions
    ]
    people = [{"member": one.member_id, "client": one.client_id, "host": one.host} for one in members]
    return {"lag_records": lag.records, "partitions": rows, "members": people}


def _member(member: Any) -> str:
    return "-" if member is None else printable(f"{member.client_id} {member.host} {member.member_id}")


def reset(arguments: argparse.Namespace) -> int:
    position = parse_position(arguments.to, "--to")
    admin, group = _connected(arguments), arguments.group
    state, members = _existing(admin, group)
    committed = group_lags(admin, [group])[group].committed
    targets = _targets(admin, arguments, committed)
    offsets = reset_offsets(admin, targets, position)
    if arguments.execute:
        if state != EMPTY:
            raise Rejected(f"group {group} has {plural(len(members), 'member')}: stop them before offsets are reset")
        _alter(admin, group, offsets)
    changes = [(one, committed.get(one), offsets[one]) for one in sorted(offsets)]
    if arguments.json:
        listed = [{"topic": one[0], "partition": one[1], "committed": old, "new": new} for one, old, new in changes]
        print(json.dumps({"group": group, "executed": arguments.execute, "offsets": listed}))
        return 0
    rows = [("topic", "partition", "committed", "new")]
    rows += [(one[0], str(one[1]), "-" if old is None else str(old), str(new)) for one, old, new in changes]
    print("\n".join(columns(rows, frozenset({1, 2, 3}), "")))
    if arguments.execute:
        print(f"group {printable(group)}: {plural(len(changes), 'offset')} reset")
    else:
        print("nothing was changed: add --execute to reset these offsets")
        if state != EMPTY:
            print(f"the group has {plural(len(members), 'member')}: stop them first")
    return 0


def reset_offsets(admin: AdminClient, targets: Sequence[Partition], position: int | datetime) -> dict[Partition, int]:
    """Returns the new offset of each partition. An offset beyond the start or the end is limited to it, as in Kafka."""
    starts = offsets_of(admin, dict.fromkeys(targets, EARLIEST))
    ends = offsets_of(admin, dict.fromkeys(targets, LATEST))
    if isinstance(position, int):
        if position < 0:
            return starts if position == OFFSET_BEGINNING else ends
        return {one: min(max(position, starts[one]), ends[one]) for one in targets}
    spec = OffsetSpec.for_timestamp(int(position.timestamp() * 1000))
    found = offsets_of(admin, dict.fromkeys(targets, spec))
    return {one: found[one] if found[one] >= 0 else ends[one] for one in targets}


def _targets(admin: AdminClient, arguments: argparse.Namespace, committed: dict[Partition, int]) -> list[Partition]:
    topics = topics_of(admin, arguments.bootstrap)
    if not arguments.topic:
        if targets := [one for one in committed if one[0] in topics and one[1] in topics[one[0]].partitions]:
            return targets
        raise Rejected(f"group {arguments.group} has no committed offsets: name a topic with --topic")
    targets = []
    for text in arguments.topic:
        name, colon, numbers = text.partition(":")
        existing = sorted(topic_of(admin, arguments.bootstrap, name).partitions)
        chosen = numbers.split(",") if colon else [str(number) for number in existing]
        if wrong := [one for one in chosen if not one.isdecimal() or int(one) not in existing]:
            raise Rejected(f"--topic {text!r}: topic {name} has no partition {wrong[0]!r}, only 0 to {existing[-1]}")
        targets += [(name, int(one)) for one in chosen]
    return list(dict.fromkeys(targets))


def _alter(admin: AdminClient, group: str, offsets: dict[Partition, int]) -> None:
    wanted = [TopicPartition(*one, offset) for one, offset in offsets.items()]
    what = f"offsets of group {group} cannot be reset"
    future = admin.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, wanted)])[group]
    for one in wait_for(future, what).topic_partitions:
        if one.error is not None:
            raise error_of(KafkaException(one.error), f"{what}: topic {one.topic} partition {one.partition}")


def delete(arguments: argparse.Namespace) -> int:
    admin = _connected(arguments)
    for group in arguments.group:
        _existing(admin, group)
    for group, future in admin.delete_consumer_groups(arguments.group, request_timeout=WORK_S_MAX).items():
        wait_for(future, f"group {group} cannot be deleted")
        text = f"group {printable(group)} deleted"
        print(json.dumps({"group": group, "deleted": True}) if arguments.json else text)
    return 0


def _connected(arguments: argparse.Namespace) -> AdminClient:
    admin = admin_of(arguments.bootstrap)
    topics_of(admin, arguments.bootstrap)
    return admin


def _existing(admin: AdminClient, group: str) -> tuple[str, list[Any]]:
    """Returns state and members of a group. Missing if it does not exist: brokers describe such groups as dead."""
    names = [one.group_id for one in _listings(admin)]
    if group not in names:
        near = suggest(group, names)
        advice = f"did you mean {' or '.join(near)}?" if near else "lakestream group list prints all groups"
        raise Missing(f"group {group} does not exist; {advice}")
    what = f"group {group} cannot be described"
    found = wait_for(admin.describe_consumer_groups([group], request_timeout=WORK_S_MAX)[group], what)
    return found.state.name, list(found.members)
