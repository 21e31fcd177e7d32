"""AlterConfigs (key 33), v0-2.

Replaces all settings of a topic: those that are not named get their defaults back. New clients use
IncrementalAlterConfigs.

What a name or value cannot be is refused (40), and then nothing of that topic is changed. Brokers cannot be altered.
v2 flexible
"""

from typing import Any

from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError
from lakestream.protocol.kafka.resources import altered
from lakestream.protocol.kafka.services import Services


@handles(33, versions=range(0, 3))
async def alter_configs(call: Call, services: Services) -> Body:
    return {"responses": await altered(call.body.resources, _replaced, call.body.validate_only, services)}


def _replaced(resource: Any, before: dict[str, str]) -> dict[str, str]:
    for config in resource.configs:
        if config.value is None:
            raise KafkaError(Code.INVALID_REQUEST, f"setting {config.name} has no value: leave it out for its default")
    return {config.name: config.value for config in resource.configs}
