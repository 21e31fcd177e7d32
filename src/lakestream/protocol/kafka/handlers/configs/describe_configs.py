"""DescribeConfigs (key 32), v1-4.

Returns the configs of topics, brokers and groups, with their defaults: all, or the named ones. The configs of a broker
are returned by that broker only. With an empty name, any broker returns the configs that were set on all brokers.

Settings without effect are listed too; their descriptions state it.
v1 sources, synonyms · v3 types, descriptions · v4 flexible
"""

from typing import Any, Final, NamedTuple

from lakestream.coordination.dynamic_configs import (
    BROKER_CONFIGS,
    CLUSTER_DEFAULT,
    GROUP_CONFIGS,
    GROUP_HEARTBEAT,
    GROUP_SESSION,
    HEARTBEAT,
    SESSION,
    broker_values,
    own_of,
)
from lakestream.coordination.topic_config import FORMER_NAMES, SETTINGS, ConfigType, with_current_names
from lakestream.errors import LakestreamError
from lakestream.metadata.cluster import GROUP_KIND, ConfigResource
from lakestream.protocol.kafka.dispatch import Body, Call, error_message, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.fields import check_topic_name
from lakestream.protocol.kafka.handlers.configs.shared import BROKER, GROUP, TOPIC
from lakestream.protocol.kafka.services import ConfigsContext

SET_ON_TOPIC, SET_ON_BROKER, SET_ON_ALL_BROKERS, STATIC_CONFIG, DEFAULT, SET_ON_GROUP = 1, 2, 3, 4, 5, 8
"""Sources of a value: configs that were set, the static config of the broker, the default."""


class ConfigEntry(NamedTuple):
    name: str
    value: str | None
    source: int
    default: str | None
    kind: ConfigType
    doc: str
    read_only: bool = True
    others: tuple[tuple[str, str | None, int], ...] = ()
    """What would apply next: names, values and sources."""


@handles(32, versions=range(1, 5))
async def describe_configs(call: Call, context: ConfigsContext) -> Body:
    return {"results": [await _describe(resource, call, context) for resource in call.body.resources]}


async def _describe(resource: Any, call: Call, context: ConfigsContext) -> dict[str, Any]:
    named = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
    try:
        entries = await _entries(resource, context)
    except LakestreamError as error:
        return named | {"error_code": code_of(error), "error_message": error_message(error)}
    keys = resource.configuration_keys or [entry.name for entry in entries]
    names = {FORMER_NAMES.get(key, key) for key in keys}
    return named | {
        "error_code": Code.NONE,
        "configs": [_config(entry, call) for entry in entries if entry.name in names],
    }


async def _entries(resource: Any, context: ConfigsContext) -> list[ConfigEntry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        check_topic_name(name)
        return _of_topic(with_current_names((await context.metadata_cache.topic(name)).settings))
    if resource.resource_type == GROUP:
        if not name:
            raise KafkaError(Code.INVALID_REQUEST, "a group id must not be empty")
        return _of_group(name, context)
    if resource.resource_type != BROKER:
        raise KafkaError(Code.INVALID_REQUEST, f"resources of type {resource.resource_type} have no settings")
    if name == "":
        return _of_all_brokers(context)
    if name != str(context.broker.node_id):
        raise KafkaError(
            Code.INVALID_REQUEST, f"this is broker {context.broker.node_id}: send the request to broker {name}"
        )
    return _of_broker(context)


def _of_topic(chosen: dict[str, str]) -> list[ConfigEntry]:
    return [
        ConfigEntry(
            setting.name,
            chosen.get(setting.name, setting.default),
            SET_ON_TOPIC if setting.name in chosen else DEFAULT,
            setting.default,
            setting.kind,
            setting.doc,
            read_only=False,
        )
        for setting in SETTINGS.values()
    ]


def _of_group(name: str, context: ConfigsContext) -> list[ConfigEntry]:
    chosen = context.metadata_cache.configs.get(ConfigResource(GROUP_KIND, name), {})
    groups = context.groups.initial_settings.with_values(
        broker_values(context.metadata_cache.configs, context.broker.node_id)
    )
    defaults = {GROUP_SESSION: str(groups.limits.session_ms), GROUP_HEARTBEAT: str(groups.heartbeat_ms)}
    return [
        ConfigEntry(
            config.name,
            chosen.get(config.name, defaults[config.name]),
            SET_ON_GROUP if config.name in chosen else DEFAULT,
            defaults[config.name],
            config.kind,
            config.doc,
            read_only=False,
        )
        for config in GROUP_CONFIGS.values()
    ]


def _of_all_brokers(context: ConfigsContext) -> list[ConfigEntry]:
    return [
        ConfigEntry(name, value, SET_ON_ALL_BROKERS, None, config.kind, config.doc, read_only=False)
        for name, value in sorted(context.metadata_cache.configs.get(CLUSTER_DEFAULT, {}).items())
        if (config := BROKER_CONFIGS.get(name)) is not None
    ]


def _dynamic(context: ConfigsContext) -> list[ConfigEntry]:
    """Returns the configs of this broker that can change while it runs."""
    configs = context.metadata_cache.configs
    sources = ((own_of(context.broker.node_id), SET_ON_BROKER), (CLUSTER_DEFAULT, SET_ON_ALL_BROKERS))
    initial = _initial(context)
    entries = []
    for config in BROKER_CONFIGS.values():
        values = [(configs[of][config.name], source) for of, source in sources if config.name in configs.get(of, {})]
        (value, source), *others = [*values, (initial[config.name], STATIC_CONFIG)]
        synonyms = tuple((config.name, text, kind) for text, kind in others)
        entries.append(ConfigEntry(config.name, value, source, None, config.kind, config.doc, False, synonyms))
    return entries


def _initial(context: ConfigsContext) -> dict[str, str]:
    """Returns the settings with which this broker was started."""
    broker, groups = context.initial_settings, context.groups.initial_settings
    limits = groups.limits
    return {
        "num.partitions": str(broker.default_partitions),
        "auto.create.topics.enable": str(broker.auto_create_topics).lower(),
        "offsets.retention.minutes": str(groups.offsets_retention_ms // 60_000),
        "group.initial.rebalance.delay.ms": str(limits.initial_delay_ms),
        "group.min.session.timeout.ms": str(limits.session_ms_min),
        "group.max.session.timeout.ms": str(limits.session_ms_max),
        "group.max.size": str(limits.members_max),
        SESSION: str(limits.session_ms),
        HEARTBEAT: str(groups.heartbeat_ms),
        "transaction.max.timeout.ms": str(broker.transaction_timeout_ms_max),
    }


def _of_broker(context: ConfigsContext) -> list[ConfigEntry]:
    broker = context.broker
    address = f"PLAINTEXT://{broker.host}:{broker.port}"

    def static(name: str, kind: ConfigType, value: str | None, doc: str) -> ConfigEntry:
        return ConfigEntry(name, value, STATIC_CONFIG, None, kind, doc)

    def fixed(name: str, kind: ConfigType, value: str, doc: str) -> ConfigEntry:
        return ConfigEntry(name, value, DEFAULT, value, kind, doc)

    return [
        static("node.id", ConfigType.INT, str(broker.node_id), "assigned when the broker registered"),
        static("broker.id", ConfigType.INT, str(broker.node_id), "the same as node.id"),
        static("broker.rack", ConfigType.STRING, broker.zone or None, "the broker's zone"),
        static("advertised.listeners", ConfigType.STRING, address, "address that clients get in the metadata"),
        *_dynamic(context),
        fixed("default.replication.factor", ConfigType.INT, "1", "the storage replicates"),
        fixed("delete.topic.enable", ConfigType.BOOLEAN, "true", "topics can be deleted"),
        *(fixed(name, SETTINGS[of].kind, SETTINGS[of].default, SETTINGS[of].doc) for name, of in _TOPIC_DEFAULTS),
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
"""Broker settings that are the defaults of topic settings, with the names of these."""


def _config(entry: ConfigEntry, call: Call) -> dict[str, Any]:
    synonyms = [(entry.name, entry.value, entry.source), *entry.others]
    if entry.source != DEFAULT and entry.default is not None:
        synonyms.append((entry.name, entry.default, DEFAULT))
    return {
        "name": entry.name,
        "value": entry.value,
        "read_only": entry.read_only,
        "config_source": entry.source,
        "is_sensitive": False,
        "synonyms": [{"name": name, "value": value, "source": source} for name, value, source in synonyms]
        if call.get("include_synonyms", False)
        else (),
        "config_type": entry.kind.value,
        "documentation": entry.doc if call.get("include_documentation", False) else None,
    }
