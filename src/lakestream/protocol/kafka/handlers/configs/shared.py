"""Resource types by Kafka's numbers, and the changes of configs by AlterConfigs and IncrementalAlterConfigs.

Before: their handlers, which compute the new configs.  After: metadata/topics.py and metadata/cluster.py, under
compare-and-set.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from lakestream.coordination import dynamic_configs, topic_config
from lakestream.coordination.dynamic_configs import BROKER_CONFIGS, CLUSTER_DEFAULT, GROUP_CONFIGS
from lakestream.coordination.groups.coordinator import check_name
from lakestream.coordination.topic_config import Setting
from lakestream.errors import LakestreamError, Misconfigured
from lakestream.metadata.cluster import BROKER_KIND, GROUP_KIND, ConfigResource
from lakestream.metadata.topics import Topic
from lakestream.protocol.kafka.dispatch import error_message
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import ConfigsContext

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
"""Operations on a setting."""
RESOURCES_MAX: Final = 5_000
"""Groups and brokers with configs. Every broker keeps them in memory, and reads them all after each change."""
_REASONS: Final = {
    BROKER_LOGGER: "log levels cannot be changed",
    CLIENT_METRICS: "client metrics are not supported",
}
_DEFINED: Final[Mapping[int, Mapping[str, Setting]]] = {
    TOPIC: topic_config.SETTINGS,
    BROKER: BROKER_CONFIGS,
    GROUP: GROUP_CONFIGS,
}
_KINDS: Final = {BROKER: BROKER_KIND, GROUP: GROUP_KIND}

Change: TypeAlias = Callable[[Any, dict[str, str], Mapping[str, Setting]], dict[str, str]]
"""Returns the new configs, from a resource of the request, its current configs, and all that it may have."""


async def alter_all(
    resources: Sequence[Any], change: Change, validate_only: bool, context: ConfigsContext
) -> list[dict[str, Any]]:
    """Alters all resources, and returns a response for each. An error of one resource does not affect the rest."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    responses = []
    for resource in resources:
        named = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        duplicate = times[resource.resource_type, resource.resource_name] > 1
        try:
            _check(resource, duplicate)
            await (_alter_topic if resource.resource_type == TOPIC else _alter_other)(
                resource, change, validate_only, context
            )
            responses.append(named | {"error_code": Code.NONE})
        except LakestreamError as error:
            responses.append(named | {"error_code": code_of(error), "error_message": error_message(error)})
    return responses


def _check(resource: Any, duplicate: bool) -> None:
    if duplicate:
        raise KafkaError(Code.INVALID_REQUEST, f"{resource.resource_name} is named twice in one request")
    if resource.resource_type not in _DEFINED:
        reason = _REASONS.get(resource.resource_type, f"unknown resource type {resource.resource_type}")
        raise KafkaError(Code.INVALID_REQUEST, f"{reason}: only topics, brokers and groups can be altered")
    (most,) = Counter(config.name for config in resource.configs).most_common(1) or [("", 0)]
    if most[1] > 1:
        raise KafkaError(Code.INVALID_REQUEST, f"setting {most[0]} is named twice for {resource.resource_name}")


async def _alter_topic(resource: Any, change: Change, validate_only: bool, context: ConfigsContext) -> None:
    def settings_of(topic: Topic) -> dict[str, str]:
        settings = change(resource, topic_config.with_current_names(topic.settings), topic_config.SETTINGS)
        topic_config.check(settings, context.settings.profiles)
        return settings

    name = resource.resource_name
    topic = await context.topics.get(name)
    before, after = topic_config.read(topic.settings), topic_config.read(settings_of(topic))
    if after.delta and not before.delta:
        await context.check_delta(topic.topic_id)
    if (after.table_partition, after.table_sort) != (before.table_partition, before.table_sort):
        await context.check_terms(topic.topic_id, after.table_partition, [one.term for one in after.table_sort])
    if not validate_only:
        context.metadata_cache.remember_topic(name, await context.topics.alter(name, settings_of))


async def _alter_other(resource: Any, change: Change, validate_only: bool, context: ConfigsContext) -> None:
    """Alters the configs of a broker, of all brokers, or of a group, which need not exist."""
    target = ConfigResource(_KINDS[resource.resource_type], resource.resource_name)
    _check_target(target, resource, context)

    def altered(before: dict[str, str]) -> dict[str, str]:
        after = change(resource, before, _DEFINED[resource.resource_type])
        _check_values(target, after, context)
        return after

    after = altered(dict(context.metadata_cache.configs.get(target, {})))
    if after and target not in context.metadata_cache.configs and len(context.metadata_cache.configs) >= RESOURCES_MAX:
        text = f"{RESOURCES_MAX} groups and brokers have configs already: delete the configs of another one"
        raise KafkaError(Code.POLICY_VIOLATION, text)
    if not validate_only:
        context.metadata_cache.remember_configs(target, await context.configs.alter(target, altered))


def _check_target(target: ConfigResource, resource: Any, context: ConfigsContext) -> None:
    if target.kind == GROUP_KIND:
        check_name(target.name)
        return
    live = {str(broker.node_id) for broker in context.metadata_cache.brokers or [context.broker]}
    if target != CLUSTER_DEFAULT and target.name not in live:
        raise KafkaError(Code.BROKER_ID_NOT_REGISTERED, f"No broker with id {target.name} found.")
    fixed = {
        config.name
        for config in resource.configs
        if config.name not in BROKER_CONFIGS and getattr(config, "config_operation", SET) != DELETE
    }
    if fixed:
        text = (
            f"Cannot update these configs dynamically: {', '.join(sorted(fixed))}: set them at the start of the broker"
        )
        raise KafkaError(Code.INVALID_REQUEST, text)


def _check_values(target: ConfigResource, texts: Mapping[str, str], context: ConfigsContext) -> None:
    """Raises Misconfigured if a value is invalid, or does not fit to those that apply with it."""
    if target.kind == GROUP_KIND:
        values = dynamic_configs.parsed(GROUP_CONFIGS, texts)
        groups = context.groups.settings
        session_ms = values.get(dynamic_configs.GROUP_SESSION, groups.limits.session_ms)
        heartbeat_ms = values.get(dynamic_configs.GROUP_HEARTBEAT, groups.heartbeat_ms_min)
        names = (dynamic_configs.GROUP_SESSION, dynamic_configs.GROUP_HEARTBEAT)
        dynamic_configs.check_intervals(session_ms, heartbeat_ms, names)
        return
    dynamic_configs.parsed(BROKER_CONFIGS, texts)
    configs = {**context.metadata_cache.configs, target: texts}
    node_id = context.broker.node_id if target == CLUSTER_DEFAULT else int(target.name)
    groups = context.groups.initial_settings.with_values(dynamic_configs.broker_values(configs, node_id))
    names = (dynamic_configs.SESSION, dynamic_configs.HEARTBEAT)
    dynamic_configs.check_intervals(groups.limits.session_ms, groups.heartbeat_ms, names)
    if groups.limits.session_ms_min > groups.limits.session_ms_max:
        raise Misconfigured(
            f"config group.min.session.timeout.ms: {groups.limits.session_ms_min} is above"
            f" group.max.session.timeout.ms, which is {groups.limits.session_ms_max}, so no member could join"
        )
