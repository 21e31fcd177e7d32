"""AlterConfigs (key 33), v0-2.

Replaces all configs of a topic, broker or group: configs that are not in the request are reset to their defaults. New
clients use IncrementalAlterConfigs, whose rules apply.

v2 flexible
"""

from collections.abc import Mapping
from typing import Any

from lakestream.coordination.topic_config import Setting, with_current_names
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError
from lakestream.protocol.kafka.handlers.configs.shared import alter_all
from lakestream.protocol.kafka.services import ConfigsContext


@handles(33, versions=range(0, 3))
async def alter_configs(call: Call, context: ConfigsContext) -> Body:
    return {"responses": await alter_all(call.body.resources, _replace, call.body.validate_only, context)}


def _replace(resource: Any, before: dict[str, str], defined: Mapping[str, Setting]) -> dict[str, str]:
    for config in resource.configs:
        if config.value is None:
            raise KafkaError(
                Code.INVALID_REQUEST, f"setting {config.name} has no value: leave the setting out to reset it"
            )
    return with_current_names({config.name: config.value for config in resource.configs})
