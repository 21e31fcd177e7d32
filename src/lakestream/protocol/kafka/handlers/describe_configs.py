"""DescribeConfigs (key 32), v1-4.

The settings of topics, brokers and groups, with their defaults: all, or those that are named. A broker's cannot be
altered, and only it knows them; a cluster-wide default of brokers (an empty name) does not exist. Groups have those of
the new protocol, all the same ones, which cannot be altered.

Settings that are without meaning here are listed too, and their description says so.
v1 sources, synonyms · v3 types, descriptions · v4 flexible
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from lakestream.coordination.topic_settings import SETTINGS, Kind
from lakestream.errors import LakestreamError
from lakestream.protocol.kafka.dispatch import Body, Call, describe, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.names import is_legal
from lakestream.protocol.kafka.resources import BROKER, GROUP, TOPIC
from lakestream.protocol.kafka.services import Services

SET_ON_TOPIC, GIVEN_AT_START, DEFAULT = 1, 4, 5
"""Where a value comes from."""


class Entry(NamedTuple):
    name: str
    value: str | None
    source: int
    default: str | None
    kind: Kind
    doc: str


@handles(32, versions=range(1, 5))
async def describe_configs(call: Call, services: Services) -> Body:
    return {"results": [await _described(resource, call, services) for resource in call.body.resources]}


async def _described(resource: Any, call: Call, services: Services) -> dict[str, Any]:
    named = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        entries = await _entries(resource, services)
    except LakestreamError as error:
        return named | {"error_code": code_of(error), "error_message": describe(error)}
    wanted = frozenset(resource.configuration_keys or ()) or {entry.name for entry in entries}
    return named | {
        "error_code": Code.NONE,
        "configs": [
            _written(entry, resource.resource_type != TOPIC, call) for entry in entries if entry.name in wanted
        ],
    }


async def _entries(resource: Any, services: Services) -> list[Entry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        if not is_legal(name):
            raise KafkaError(Code.INVALID_TOPIC_EXCEPTION, f"{name!r} is no legal topic name")
        return _of_topic((await services.view.topic(name)).settings)
    if resource.resource_type == GROUP:
        if not name:
            raise KafkaError(Code.INVALID_REQUEST, "a group must have a name")
        return _of_group(services)
    if resource.resource_type != BROKER:
        raise KafkaError(Code.INVALID_REQUEST, f"resources of type {resource.resource_type} have no settings here")
    if name == "":
        return []
    if name != str(services.me.node_id):
        raise KafkaError(Code.INVALID_REQUEST, f"this is broker {services.me.node_id}: ask broker {name} itself")
    return _of_broker(services)


def _of_topic(chosen: dict[str, str]) -> list[Entry]:
    return [
        Entry(
            setting.name,
            chosen.get(setting.name, setting.default),
            SET_ON_TOPIC if setting.name in chosen else DEFAULT,
            setting.default,
            setting.kind,
            setting.doc,
        )
        for setting in SETTINGS.values()
    ]


def _of_group(services: Services) -> list[Entry]:
    """The same for all groups of the new protocol, whether there are any or not."""
    settings = services.groups.settings
    session, beat = str(settings.rules.session_ms), str(settings.heartbeat_ms)
    return [
        Entry("consumer.session.timeout.ms", session, DEFAULT, session, Kind.INT, "how long a member may be silent"),
        Entry(
            "consumer.heartbeat.interval.ms",
            beat,
            DEFAULT,
            beat,
            Kind.INT,
            "at most; shorter where there are few members, or some wait for others",
        ),
    ]


def _of_broker(services: Services) -> list[Entry]:
    me, settings = services.me, services.settings
    address = f"PLAINTEXT://{me.host}:{me.port}"

    def given(name: str, kind: Kind, value: str | None, doc: str) -> Entry:
        return Entry(name, value, GIVEN_AT_START, None, kind, doc)

    def always(name: str, kind: Kind, value: str, doc: str) -> Entry:
        return Entry(name, value, DEFAULT, value, kind, doc)

    return [
        given("node.id", Kind.INT, str(me.node_id), "taken when the broker registered"),
        given("broker.id", Kind.INT, str(me.node_id), "the same as node.id"),
        given("broker.rack", Kind.STRING, me.zone or None, "the broker's zone"),
        given("advertised.listeners", Kind.STRING, address, "where clients are told to connect"),
        given("num.partitions", Kind.INT, str(settings.default_partitions), "of topics that choose no number"),
        given(
            "auto.create.topics.enable",
            Kind.BOOLEAN,
            str(settings.auto_create_topics).lower(),
            "whether a topic is made when a client first asks for it",
        ),
        *_of_coordination(services, given),
        always("default.replication.factor", Kind.INT, "1", "the storage has its own copies"),
        always("delete.topic.enable", Kind.BOOLEAN, "true", "topics can be deleted"),
        *(always(name, SETTINGS[of].kind, SETTINGS[of].default, SETTINGS[of].doc) for name, of in _TOPIC_DEFAULTS),
    ]


def _of_coordination(services: Services, given: Callable[[str, Kind, str, str], Entry]) -> list[Entry]:
    groups = services.groups.settings
    rules = groups.rules
    retention = str(groups.offsets_retention_ms // 60_000)
    longest = str(services.settings.transaction_timeout_ms_max)
    return [
        given("offsets.retention.minutes", Kind.INT, retention, "of committed offsets, after the last member left"),
        given("group.initial.rebalance.delay.ms", Kind.INT, str(rules.opening_ms), "before an empty group begins"),
        given("group.min.session.timeout.ms", Kind.INT, str(rules.session_ms_min), "that members may ask for"),
        given("group.max.session.timeout.ms", Kind.INT, str(rules.session_ms_max), "that members may ask for"),
        given("group.max.size", Kind.INT, str(rules.members_max), "members of a group"),
        given("group.consumer.session.timeout.ms", Kind.INT, str(rules.session_ms), "of the new protocol"),
        given("transaction.max.timeout.ms", Kind.INT, longest, "that producers may ask for"),
    ]


_TOPIC_DEFAULTS: Final = (
    ("compression.type", "compression.type"),
    ("log.cleanup.policy", "cleanup.policy"),
    ("log.message.timestamp.type", "message.timestamp.type"),
    ("log.retention.bytes", "retention.bytes"),
    ("log.retention.ms", "retention.ms"),
    ("message.max.bytes", "max.message.bytes"),
    ("min.insync.replicas", "min.insync.replicas"),
)
"""Settings of brokers that are what topics have when they choose nothing, and the topic settings they stand for."""


def _written(entry: Entry, read_only: bool, call: Call) -> dict[str, Any]:
    synonyms = [{"name": entry.name, "value": entry.value, "source": entry.source}]
    if entry.source != DEFAULT and entry.default is not None:
        synonyms.append({"name": entry.name, "value": entry.default, "source": DEFAULT})
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": read_only,
        "config_source": entry.source,
        "is_sensitive": False,
        "synonyms": synonyms if call.get("include_synonyms", False) else (),
        "config_type": entry.kind.value,
        "documentation": entry.doc if call.get("include_documentation", False) else None,
    }
