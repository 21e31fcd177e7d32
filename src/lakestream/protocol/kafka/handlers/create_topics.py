"""CreateTopics (key 19), v2-7.

Makes topics. Any replication factor is taken: the storage has its own copies. Assignments by hand mean nothing here and
only give the number of partitions.

v4 default partitions and replication (-1) · v5 flexible, answers with the configs · v7 topic id
"""

from collections import Counter
from typing import Any
from uuid import UUID

from lakestream.coordination import topic_settings
from lakestream.errors import Conflict, LakestreamError, Misconfigured, Missing
from lakestream.metadata.topics import Topic
from lakestream.protocol.kafka.dispatch import Body, Call, describe, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.names import is_legal
from lakestream.protocol.kafka.services import Services


@handles(19, versions=range(2, 8))
async def create_topics(call: Call, services: Services) -> Body:
    times = Counter(wanted.name for wanted in call.body.topics)
    return {
        "topics": [
            await _created(wanted, times[wanted.name] > 1, call.body.validate_only, services)
            for wanted in call.body.topics
        ]
    }


async def _created(wanted: Any, doubled: bool, validate_only: bool, services: Services) -> dict[str, Any]:
    try:
        if doubled:
            raise KafkaError(Code.INVALID_REQUEST, f"topic {wanted.name} is named twice in one request")
        topic = _planned(wanted, services)
        if validate_only:
            await _check_absent(wanted.name, services)
        else:
            await services.topics.create(wanted.name, topic)
            services.view.learn(wanted.name, topic)
            await services.topic_made(wanted.name, topic.topic_id, topic.settings)
    except Conflict as error:
        return {"name": wanted.name, "error_code": Code.TOPIC_ALREADY_EXISTS, "error_message": describe(error)}
    except LakestreamError as error:
        return {"name": wanted.name, "error_code": code_of(error), "error_message": describe(error)}
    return {
        "name": wanted.name,
        "topic_id": None if validate_only else UUID(hex=topic.topic_id),
        "error_code": Code.NONE,
        "num_partitions": topic.partition_count,
        "replication_factor": 1,
        "configs": [
            {
                "name": setting.name,
                "value": topic.settings.get(setting.name, setting.default),
                "read_only": False,
                "config_source": 1 if setting.name in topic.settings else 5,
                "is_sensitive": False,
            }
            for setting in topic_settings.SETTINGS.values()
        ],
    }


def _planned(wanted: Any, services: Services) -> Topic:
    if not is_legal(wanted.name):
        raise KafkaError(
            Code.INVALID_TOPIC_EXCEPTION, f"{wanted.name!r} is no legal topic name: 1 to 249 of a-z A-Z 0-9 . _ -"
        )
    count = len(wanted.assignments) if wanted.assignments else wanted.num_partitions
    if wanted.assignments and sorted(a.partition_index for a in wanted.assignments) != list(range(count)):
        raise KafkaError(
            Code.INVALID_REPLICA_ASSIGNMENT, "the assignments must name the partitions 0, 1, 2 … once each"
        )
    if count == -1:
        count = services.settings.default_partitions
    if not 0 < count <= services.settings.partitions_max:
        raise KafkaError(
            Code.INVALID_PARTITIONS, f"{count} partitions: 1 to {services.settings.partitions_max} are possible"
        )
    if wanted.replication_factor == 0 or wanted.replication_factor < -1:
        raise KafkaError(
            Code.INVALID_REPLICATION_FACTOR, f"replication factor {wanted.replication_factor}: give 1 or more"
        )
    chosen = {config.name: config.value for config in wanted.configs if config.value is not None}
    try:
        topic_settings.check(chosen, services.settings.profiles, is_new=True)
    except Misconfigured as error:
        raise KafkaError(Code.INVALID_CONFIG, str(error)) from error
    return Topic(services.ids.new(), count, chosen)


async def _check_absent(name: str, services: Services) -> None:
    try:
        await services.topics.get(name)
    except Missing:
        return
    raise Conflict(f"topic {name} exists already")
