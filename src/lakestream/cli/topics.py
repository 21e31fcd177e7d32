"""`lakestream topic create | list | describe | alter | delete`, over the Kafka protocol."""

import argparse
import json
from typing import Any

from confluent_kafka import TopicCollection, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # its types export nothing
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from lakestream.cli.client import add_bootstrap, admin_of, settings_from, topic_of, topics_of, wait_for
from lakestream.cli.text import columns, plural
from lakestream.errors import Rejected

BROKER_DECIDES = -1


def configure_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, default=BROKER_DECIDES, metavar="N", help="else the broker's default")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; may be repeated")
    _common(parser, create)


def configure_list(parser: argparse.ArgumentParser) -> None:
    _common(parser, show_all)


def configure_describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    _common(parser, describe)


def configure_alter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, metavar="N", help="how many there shall be; they only become more")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; may be repeated")
    parser.add_argument("--unset", action="append", default=[], metavar="NAME", help="back to its default")
    _common(parser, alter)


def configure_delete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="+")
    _common(parser, delete)


def _common(parser: argparse.ArgumentParser, run: Any) -> None:
    add_bootstrap(parser)
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def create(arguments: argparse.Namespace) -> int:
    name: str = arguments.topic
    wanted = NewTopic(name, arguments.partitions, BROKER_DECIDES, config=settings_from(arguments.set))
    admin = admin_of(arguments.bootstrap)
    topics_of(admin, arguments.bootstrap)
    wait_for(admin.create_topics([wanted])[name], f"topic {name} cannot be made")
    count = len(topic_of(admin, arguments.bootstrap, name).partitions)
    _say(arguments, {"topic": name, "partitions": count}, f"topic {name} with {plural(count, 'partition')}")
    return 0


def show_all(arguments: argparse.Namespace) -> int:
    topics = topics_of(admin_of(arguments.bootstrap), arguments.bootstrap)
    counts = [(name, len(topic.partitions)) for name, topic in sorted(topics.items())]
    if arguments.json:
        print(json.dumps([{"topic": name, "partitions": count} for name, count in counts]))
    elif counts:
        for line in columns([("topic", "partitions"), *((name, str(count)) for name, count in counts)], _LAST, ""):
            print(line)
    return 0


_LAST = frozenset({1})


def describe(arguments: argparse.Namespace) -> int:
    name: str = arguments.topic
    admin = admin_of(arguments.bootstrap)
    topic_of(admin, arguments.bootstrap, name)
    what = f"topic {name} cannot be described"
    found = wait_for(admin.describe_topics(TopicCollection([name]))[name], what)
    leaders = {part.id: part.leader for part in found.partitions}
    starts = _offsets(admin, name, list(leaders), OffsetSpec.earliest(), what)  # type: ignore[no-untyped-call]
    ends = _offsets(admin, name, list(leaders), OffsetSpec.latest(), what)  # type: ignore[no-untyped-call]
    settings = _settings(admin, name, what)
    if arguments.json:
        parts = [
            {
                "partition": number,
                "start": starts[number],
                "end": ends[number],
                "broker": f"{broker.host}:{broker.port}",
            }
            for number, broker in leaders.items()
        ]
        chosen = {entry.name: {"value": entry.value, "set": _is_set(entry)} for entry in settings}
        print(json.dumps({"topic": name, "id": str(found.topic_id), "partitions": parts, "settings": chosen}))
        return 0
    print(f"topic {name}, {plural(len(leaders), 'partition')}")
    rows = [("partition", "start", "end", "told to clients")]
    rows += [
        (str(number), str(starts[number]), str(ends[number]), f"{broker.host}:{broker.port}")
        for number, broker in leaders.items()
    ]
    for line in columns(rows, frozenset({0, 1, 2})):
        print(line)
    print("settings")
    for line in columns(
        [(entry.name, entry.value or "", "" if _is_set(entry) else "default") for entry in settings], _NONE
    ):
        print(line)
    return 0


_NONE: frozenset[int] = frozenset()


def _offsets(admin: AdminClient, topic: str, numbers: list[int], spec: OffsetSpec, what: str) -> dict[int, int]:
    answers = admin.list_offsets({TopicPartition(topic, number): spec for number in numbers})
    return {part.partition: wait_for(answer, what).offset for part, answer in answers.items()}


def _settings(admin: AdminClient, topic: str, what: str) -> list[ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    found: dict[str, ConfigEntry] = wait_for(admin.describe_configs([resource])[resource], what)
    return sorted(found.values(), key=lambda entry: (not _is_set(entry), entry.name))


def _is_set(entry: ConfigEntry) -> bool:
    return ConfigSource(entry.source) is ConfigSource.DYNAMIC_TOPIC_CONFIG


def alter(arguments: argparse.Namespace) -> int:
    name: str = arguments.topic
    entries = [
        ConfigEntry(setting, value, incremental_operation=AlterConfigOpType.SET)
        for setting, value in settings_from(arguments.set).items()
    ]
    entries += [
        ConfigEntry(setting, None, incremental_operation=AlterConfigOpType.DELETE) for setting in arguments.unset
    ]
    if not entries and arguments.partitions is None:
        raise Rejected("nothing to change: give --partitions, --set or --unset")
    admin = admin_of(arguments.bootstrap)
    topic_of(admin, arguments.bootstrap, name)
    what = f"topic {name} cannot be changed"
    if entries:  # first: a wrong setting then leaves the topic as it was
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        wait_for(admin.incremental_alter_configs([resource])[resource], what)
    if arguments.partitions is not None:
        wait_for(admin.create_partitions([NewPartitions(name, arguments.partitions)])[name], what)
    _say(arguments, {"topic": name, "changed": True}, f"topic {name} changed")
    return 0


def delete(arguments: argparse.Namespace) -> int:
    admin = admin_of(arguments.bootstrap)
    for name in arguments.topic:
        topic_of(admin, arguments.bootstrap, name)
    for name, answer in admin.delete_topics(arguments.topic).items():
        wait_for(answer, f"topic {name} cannot be deleted")
        _say(arguments, {"topic": name, "deleted": True}, f"topic {name} deleted")
    return 0


def _say(arguments: argparse.Namespace, for_programs: dict[str, Any], for_people: str) -> None:
    print(json.dumps(for_programs) if arguments.json else for_people)
