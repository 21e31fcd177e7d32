"""Configs of groups, and configs of brokers that can change while they run: names, values and precedence. Pure.

Before: protocol/kafka/handlers/configs, which alter them.  After: metadata/cluster.py, which stores them;
metadata_cache.py, from which every broker reads them.

A value of one broker takes precedence over the cluster-wide default, which takes precedence over the setting with which
the broker was started. A group's value takes precedence over that of its coordinator.
"""

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from lakestream.coordination.config_values import boolean, unknown_name, whole_number
from lakestream.coordination.topic_config import ConfigType, Setting
from lakestream.errors import Misconfigured
from lakestream.metadata.cluster import BROKER_KIND, GROUP_KIND, ConfigResource

Configs: TypeAlias = Mapping[ConfigResource, Mapping[str, str]]
"""All stored configs."""
CLUSTER_DEFAULT: Final = ConfigResource(BROKER_KIND, "")

GROUP_SESSION: Final = "consumer.session.timeout.ms"
GROUP_HEARTBEAT: Final = "consumer.heartbeat.interval.ms"
SESSION: Final = "group.consumer.session.timeout.ms"
HEARTBEAT: Final = "group.consumer.heartbeat.interval.ms"

_INT_MAX: Final = 2**31 - 1
_DAY_MS: Final = 24 * 60 * 60 * 1000
_session_ms: Final = whole_number(6_000, 30 * 60 * 1000)
_heartbeat_ms: Final = whole_number(500, 5 * 60 * 1000)


def _setting(name: str, read: Any, doc: str, kind: ConfigType = ConfigType.INT) -> Setting:
    return Setting(name, kind, "", read, doc)


GROUP_CONFIGS: Final[Mapping[str, Setting]] = {
    one.name: one
    for one in (
        _setting(GROUP_SESSION, _session_ms, "time without a heartbeat after which a member is removed"),
        _setting(
            GROUP_HEARTBEAT,
            _heartbeat_ms,
            "time between the heartbeats of a member, at most half of the session timeout; if it is not set, shorter in"
            " groups with few members. Shorter while members wait for partitions, longer if the broker has more members"
            " than milliseconds of it",
        ),
    )
}
BROKER_CONFIGS: Final[Mapping[str, Setting]] = {
    one.name: one
    for one in (
        _setting("num.partitions", whole_number(1, 100_000), "default for new topics"),
        _setting(
            "auto.create.topics.enable",
            boolean,
            "whether a topic is created when a client requests its metadata",
            ConfigType.BOOLEAN,
        ),
        _setting(
            "offsets.retention.minutes",
            whole_number(1, _INT_MAX),
            "retention of committed offsets after the last member has left",
        ),
        _setting(
            "group.initial.rebalance.delay.ms",
            whole_number(0, 5 * 60 * 1000),
            "wait for more members before the first generation of a group",
        ),
        _setting("group.min.session.timeout.ms", whole_number(1, _DAY_MS), "minimum of classic members"),
        _setting("group.max.session.timeout.ms", whole_number(1, _DAY_MS), "maximum of classic members"),
        _setting("group.max.size", whole_number(1, 10_000), "maximum number of members"),
        _setting(SESSION, _session_ms, "of the consumer protocol"),
        _setting(HEARTBEAT, _heartbeat_ms, "of the consumer protocol: maximum, shorter with few members"),
        _setting("transaction.max.timeout.ms", whole_number(1, _INT_MAX), "maximum that producers may request"),
    )
}


def own_of(node_id: int) -> ConfigResource:
    return ConfigResource(BROKER_KIND, str(node_id))


def parsed(settings: Mapping[str, Setting], texts: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values. Raises Misconfigured if a name is unknown or a value is invalid."""
    values: dict[str, Any] = {}
    for name, text in texts.items():
        if name not in settings:
            raise Misconfigured(f"config {unknown_name(name, settings)}")
        try:
            values[name] = settings[name].read(text)
        except ValueError as error:
            raise Misconfigured(f"config {name}: {error}") from error
    return values


def _stored(settings: Mapping[str, Setting], texts: Mapping[str, str]) -> dict[str, Any]:
    """Returns the values of stored configs, without those that only another version of the broker knows."""
    values: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            values |= parsed(settings, {name: text})
        except Misconfigured:
            continue
    return values


def broker_values(configs: Configs, node_id: int) -> dict[str, Any]:
    """Returns the values that replace settings with which this broker was started."""
    if not configs:
        return {}
    default, own = (configs.get(one, {}) for one in (CLUSTER_DEFAULT, own_of(node_id)))
    return _stored(BROKER_CONFIGS, default) | _stored(BROKER_CONFIGS, own)


def group_values(configs: Configs) -> dict[str, dict[str, Any]]:
    """Returns the values of each group that has any."""
    return {one.name: _stored(GROUP_CONFIGS, texts) for one, texts in configs.items() if one.kind == GROUP_KIND}


def check_intervals(session_ms: int, heartbeat_ms: int, names: tuple[str, str]) -> None:
    if heartbeat_ms >= session_ms:
        raise Misconfigured(f"config {names[0]}: {session_ms} must be greater than {names[1]}, which is {heartbeat_ms}")
