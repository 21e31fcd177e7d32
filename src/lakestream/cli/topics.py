"""`lakestream topic create | list | describe | alter | delete`, over the Kafka protocol."""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

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

from lakestream.catalog.topic_table.columns import STREAM, VALUE
from lakestream.cli.cluster.topic_figures import figures_of
from lakestream.cli.output.http_client import table_of
from lakestream.cli.output.kafka_client import (
    admin_of,
    cluster_of,
    settings_from,
    topic_of,
    topic_settings,
    topics_of,
    wait_for,
)
from lakestream.cli.output.text import columns, human_size, plural
from lakestream.cli.server import add_server
from lakestream.coordination.topic_config import WITHOUT_EFFECT
from lakestream.errors import LakestreamError, Rejected
from lakestream.schemas.layout_terms import partition_terms, sort_terms

BROKER_DEFAULT: Final = -1
NAMESPACE: Final = "lakestream.table.namespace"


def configure_create(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, default=BROKER_DEFAULT, metavar="N", help="default: the broker's")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; may be repeated")
    _common(parser, create)


def configure_list(parser: argparse.ArgumentParser) -> None:
    _common(parser, show_all)


def configure_describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    _common(parser, describe)


def configure_alter(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    parser.add_argument("--partitions", type=int, metavar="N", help="new number of partitions; it can only grow")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting; may be repeated")
    parser.add_argument("--unset", action="append", default=[], metavar="NAME", help="back to its default")
    _common(parser, alter)


def configure_delete(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", nargs="+")
    _common(parser, delete)


def _common(parser: argparse.ArgumentParser, run: Any) -> None:
    add_server(parser)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def create(arguments: argparse.Namespace) -> int:
    name: str = arguments.topic
    new_topic = NewTopic(name, arguments.partitions, BROKER_DEFAULT, config=settings_from(arguments.set))
    admin = admin_of(arguments.bootstrap)
    topics_of(admin, arguments.bootstrap)
    wait_for(admin.create_topics([new_topic])[name], f"topic {name} cannot be created")
    count = len(topic_of(admin, arguments.bootstrap, name).partitions)
    _print(arguments, {"topic": name, "partitions": count}, f"topic {name} with {plural(count, 'partition')}")
    _print_waiting(arguments, settings_from(arguments.set), lambda: None)
    return 0


def _print_waiting(arguments: argparse.Namespace, settings: Mapping[str, str], table: Callable[[], Any]) -> None:
    """Prints which layout settings have no effect yet, because the table lacks the columns that they name."""
    named = {setting: layout_columns(setting, settings[setting]) for setting in LAYOUT if setting in settings}
    if not any(named.values()) or arguments.json:
        return
    try:
        metadata = table()
    except LakestreamError:
        missing, when = named, "unless the table has it already"
    else:
        existing = column_names(metadata) if metadata is not None else frozenset()
        missing = {setting: [one for one in columns if one not in existing] for setting, columns in named.items()}
        when = "which the table gets with the first value that has it"
    for setting, names in missing.items():
        for name in names:
            print(f"{setting} waits for column {name}, {when}")


LAYOUT: Final = ("lakestream.table.partition", "lakestream.table.sort")


def layout_columns(setting: str, text: str) -> list[str]:
    """Returns the columns of values or keys that a layout setting names."""
    terms = partition_terms(text) if setting == LAYOUT[0] else [one.term for one in sort_terms(text)]
    return list(dict.fromkeys(term.column for term in terms if term.column.split(".")[0] not in (VALUE, STREAM)))


def column_names(metadata: Any) -> frozenset[str]:
    """Returns the names of a table's columns, nested ones with dots."""
    (schema,) = [one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"]]
    return frozenset(_names(schema["fields"], ""))


def _names(fields: Sequence[Any], prefix: str) -> Iterator[str]:
    for field in fields:
        yield prefix + field["name"]
        if isinstance(field["type"], dict) and field["type"].get("type") == "struct":
            yield from _names(field["type"]["fields"], f"{prefix}{field['name']}.")


def show_all(arguments: argparse.Namespace) -> int:
    admin = admin_of(arguments.bootstrap)
    figures = figures_of(admin, cluster_of(admin, arguments.bootstrap), arguments.http)
    if arguments.json:
        print(json.dumps([{"topic": name, **one._asdict()} for name, one in figures.topics.items()]))
        return 0
    rows = [("topic", "partitions", "records", "size", "table", "lag")]
    for name, one in figures.topics.items():
        size = "-" if one.bytes is None else human_size(one.bytes)
        lag = "-" if one.lag_records is None else f"{one.lag_records:,}"
        rows.append((name, str(one.partitions), f"{one.records:,}", size, one.table or "-", lag))
    if figures.topics:
        print("\n".join(columns(rows, frozenset({1, 2, 3, 5}), "")))
    if figures.missing:
        print(f"tables and lag are not known: {figures.missing}")
    return 0


def describe(arguments: argparse.Namespace) -> int:
    name: str = arguments.topic
    admin = admin_of(arguments.bootstrap)
    topic_of(admin, arguments.bootstrap, name)
    what = f"topic {name} cannot be described"
    topic = wait_for(admin.describe_topics(TopicCollection([name]))[name], what)
    leaders = {partition.id: partition.leader for partition in topic.partitions}
    starts = _offsets(admin, name, list(leaders), OffsetSpec.earliest(), what)  # type: ignore[no-untyped-call]
    ends = _offsets(admin, name, list(leaders), OffsetSpec.latest(), what)  # type: ignore[no-untyped-call]
    settings = _settings(admin, name, what)
    if arguments.json:
        partitions = [
            {
                "partition": number,
                "start": starts[number],
                "end": ends[number],
                "broker": f"{broker.host}:{broker.port}",
            }
            for number, broker in leaders.items()
        ]
        values = {entry.name: {"value": entry.value, "set": _is_set(entry)} for entry in settings}
        print(json.dumps({"topic": name, "id": str(topic.topic_id), "partitions": partitions, "settings": values}))
        return 0
    print(f"topic {name}, {plural(len(leaders), 'partition')}")
    rows = [("partition", "start", "end", "leader")]
    rows += [
        (str(number), str(starts[number]), str(ends[number]), f"{broker.host}:{broker.port}")
        for number, broker in leaders.items()
    ]
    for line in columns(rows, frozenset({0, 1, 2})):
        print(line)
    print("settings")
    for line in columns([(entry.name, entry.value or "", _remark(entry)) for entry in settings], _NONE):
        print(line)
    return 0


_NONE: frozenset[int] = frozenset()


def _offsets(admin: AdminClient, topic: str, numbers: list[int], spec: OffsetSpec, what: str) -> dict[int, int]:
    futures = admin.list_offsets({TopicPartition(topic, number): spec for number in numbers})
    return {partition.partition: wait_for(future, what).offset for partition, future in futures.items()}


def _settings(admin: AdminClient, topic: str, what: str) -> list[ConfigEntry]:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    entries: dict[str, ConfigEntry] = wait_for(admin.describe_configs([resource])[resource], what)
    shown = [entry for entry in entries.values() if _is_set(entry) or entry.name not in WITHOUT_EFFECT]
    return sorted(shown, key=lambda entry: (not _is_set(entry), entry.name))


def _remark(entry: ConfigEntry) -> str:
    if not _is_set(entry):
        return "default"
    return "has no effect" if entry.name in WITHOUT_EFFECT else ""


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
    if entries:  # first: a wrong setting leaves the topic unchanged
        resource = ConfigResource(ResourceType.TOPIC, name, incremental_configs=entries)
        wait_for(admin.incremental_alter_configs([resource])[resource], what)
    if arguments.partitions is not None:
        wait_for(admin.create_partitions([NewPartitions(name, arguments.partitions)])[name], what)
    _print(arguments, {"topic": name, "changed": True}, f"topic {name} changed")
    namespace = topic_settings(admin, [name])[name][NAMESPACE]
    _print_waiting(arguments, settings_from(arguments.set), lambda: table_of(arguments.http, namespace, name))
    return 0


def delete(arguments: argparse.Namespace) -> int:
    admin = admin_of(arguments.bootstrap)
    for name in arguments.topic:
        topic_of(admin, arguments.bootstrap, name)
    for name, future in admin.delete_topics(arguments.topic).items():
        wait_for(future, f"topic {name} cannot be deleted")
        _print(arguments, {"topic": name, "deleted": True}, f"topic {name} deleted")
    return 0


def _print(arguments: argparse.Namespace, content: dict[str, Any], text: str) -> None:
    print(json.dumps(content) if arguments.json else text)
