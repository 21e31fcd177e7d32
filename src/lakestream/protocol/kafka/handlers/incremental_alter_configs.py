"""IncrementalAlterConfigs (key 44), v0-1.

Changes some settings of a topic and leaves the others: set, delete (back to the default), and for lists append and
subtract. Two who do it at once lose nothing.

What a name or value cannot be is refused (40), and then nothing of that topic is changed. Brokers cannot be
altered; taking back what was never set is fine.
v1 flexible
"""

from typing import Any

from lakestream.coordination import topic_settings
from lakestream.coordination.topic_settings import SETTINGS, Kind
from lakestream.errors import Misconfigured
from lakestream.protocol.kafka.dispatch import Body, Call, handles
from lakestream.protocol.kafka.errors import Code, KafkaError
from lakestream.protocol.kafka.resources import APPEND, DELETE, SET, SUBTRACT, altered
from lakestream.protocol.kafka.services import Services


@handles(44, versions=range(0, 2))
async def incremental_alter_configs(call: Call, services: Services) -> Body:
    return {"responses": await altered(call.body.resources, _changed, call.body.validate_only, services)}


def _changed(resource: Any, before: dict[str, str]) -> dict[str, str]:
    after = dict(before)
    for config in resource.configs:
        topic_settings.check_name(config.name)
        if config.config_operation == DELETE:
            after.pop(config.name, None)
        elif config.value is None:
            raise KafkaError(Code.INVALID_REQUEST, f"setting {config.name} has no value")
        elif config.config_operation == SET:
            after[config.name] = config.value
        elif config.config_operation in (APPEND, SUBTRACT):
            after[config.name] = _listed(config, before.get(config.name, SETTINGS[config.name].default))
        else:
            raise KafkaError(Code.INVALID_REQUEST, f"operation {config.config_operation} is not known: 0 to 3 are")
    return after


def _listed(config: Any, before: str) -> str:
    """Words that are there already are not added again, and words that are not there need not be taken away."""
    if SETTINGS[config.name].kind is not Kind.LIST:
        raise Misconfigured(f"topic setting {config.name} is no list: it can be set, not added to or taken from")
    there, named = topic_settings.words(before), topic_settings.words(config.value)
    if config.config_operation == APPEND:
        return ",".join(dict.fromkeys(there + named))
    return ",".join(word for word in there if word not in named)
