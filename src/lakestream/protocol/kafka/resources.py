"""What has settings, by Kafka's numbers, and how they are altered: shared by AlterConfigs and IncrementalAlterConfigs.

Before: their handlers, which say what the new settings are.  After: metadata/topics.py, under compare-and-set.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from lakestream.coordination import topic_settings
from lakestream.errors import LakestreamError
from lakestream.metadata.topics import Topic
from lakestream.protocol.kafka.dispatch import describe
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import Services

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = range(4)
"""What may be done to a setting."""
_TITLES: Final = {
    BROKER: "a broker's settings are given when it starts",
    BROKER_LOGGER: "log levels cannot be changed",
    CLIENT_METRICS: "client metrics are not served",
    GROUP: "groups have no settings of their own",
}

Change: TypeAlias = Callable[[Any, dict[str, str]], dict[str, str]]
"""From a resource of the request and its settings now to its settings then."""


async def altered(
    resources: Sequence[Any], change: Change, validate_only: bool, services: Services
) -> list[dict[str, Any]]:
    """The answers, one for each resource: what is wrong with one does not hold back another."""
    times = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    answers = []
    for resource in resources:
        named = {"resource_type": resource.resource_type, "resource_name": resource.resource_name}
        doubled = times[resource.resource_type, resource.resource_name] > 1
        try:
            _check(resource, doubled)
            if resource.resource_type == TOPIC:
                await _alter(resource, change, validate_only, services)
            answers.append(named | {"error_code": Code.NONE})
        except LakestreamError as error:
            answers.append(named | {"error_code": code_of(error), "error_message": describe(error)})
    return answers


def _check(resource: Any, doubled: bool) -> None:
    if doubled:
        raise KafkaError(Code.INVALID_REQUEST, f"{resource.resource_name} is named twice in one request")
    if resource.resource_type != TOPIC and not _only_takes_back(resource):
        why = _TITLES.get(resource.resource_type, f"resource type {resource.resource_type} is not known")
        raise KafkaError(Code.INVALID_REQUEST, f"{why}; only topics can be altered")
    (often,) = Counter(config.name for config in resource.configs).most_common(1) or [("", 0)]
    if often[1] > 1:
        raise KafkaError(Code.INVALID_REQUEST, f"setting {often[0]} is named twice for {resource.resource_name}")


def _only_takes_back(resource: Any) -> bool:
    """Tools take back the throttles of brokers whether they have set any or not. None is ever set here."""
    return resource.resource_type == BROKER and all(
        getattr(config, "config_operation", SET) == DELETE for config in resource.configs
    )


async def _alter(resource: Any, change: Change, validate_only: bool, services: Services) -> None:
    def settings_of(topic: Topic) -> dict[str, str]:
        settings = change(resource, topic.settings)
        topic_settings.check(settings, services.settings.profiles)
        return settings

    name = resource.resource_name
    topic = await services.topics.get(name)
    before, wanted = topic_settings.read(topic.settings), topic_settings.read(settings_of(topic))
    if wanted.delta and not before.delta:
        await services.check_delta(topic.topic_id)
    if (wanted.table_partition, wanted.table_sort) != (before.table_partition, before.table_sort):
        await services.check_terms(topic.topic_id, wanted.table_partition, [one.term for one in wanted.table_sort])
    if not validate_only:
        services.view.learn(name, await services.topics.alter(name, settings_of))
