"""IncrementalAlterConfigs (key 44), v0-1.

Changes single configs of a topic, a group, a broker or (with an empty name) all brokers: set, delete (reset to the
default), and for lists append and subtract. Concurrent requests lose no change.

An invalid name or value is rejected (40), and no config of that resource is changed. Brokers apply their configs, and
those of groups, when they have read them, after some milliseconds. A broker config that has effect only at the start of
a broker is rejected (42); to delete it is accepted, as it was never set. A group need not exist. At most 5,000 groups
and brokers have configs (44).
v1 flexible
"""

from collections.abc import Mapping
from typing import Any

from lakestream.coordination import topic_config
from lakestream.coordination.config_values import words
from lakestream.coordination.topic_config import FORMER_NAMES, SETTINGS, ConfigType, Setting
from lakestream.errors import Misconfigured
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError
from lakestream.protocol.kafka.handlers.configs.shared import APPEND, DELETE, SET, SUBTRACT, alter_all
from lakestream.protocol.kafka.services import ConfigsContext


@handles(44, versions=range(0, 2))
async def incremental_alter_configs(call: Call, context: ConfigsContext) -> Body:
    return {"responses": await alter_all(call.body.resources, _apply, call.body.validate_only, context)}


def _apply(resource: Any, before: dict[str, str], defined: Mapping[str, Setting]) -> dict[str, str]:
    after = dict(before)
    # Former names first: the value of a current name takes precedence.
    for config in sorted(resource.configs, key=lambda config: config.name not in FORMER_NAMES):
        name = topic_config.current_name(config.name) if defined is SETTINGS else config.name
        if config.config_operation == DELETE:
            after.pop(name, None)
        elif config.value is None:
            raise KafkaError(Code.INVALID_REQUEST, f"setting {config.name} has no value")
        elif config.config_operation == SET:
            after[name] = config.value
        elif config.config_operation in (APPEND, SUBTRACT):
            after[name] = _alter_list(config, defined.get(name), before)
        else:
            raise KafkaError(Code.INVALID_REQUEST, f"unknown operation {config.config_operation}: use 0 to 3")
    return after


def _alter_list(config: Any, setting: Setting | None, before: dict[str, str]) -> str:
    """Appends words to a list, or removes them. Words in the list are not appended again; absent ones are ignored."""
    if setting is None or setting.kind is not ConfigType.LIST:
        raise Misconfigured(f"config {config.name} is not a list: use set or delete")
    current = words(before.get(setting.name, setting.default))
    named = words(config.value)
    if config.config_operation == APPEND:
        return ",".join(dict.fromkeys(current + named))
    return ",".join(word for word in current if word not in named)
