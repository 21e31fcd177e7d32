"""DeleteTopics (key 20), v1-6.

Deletes topics by name, or by id (v6). Gone for every broker when it is answered: nobody can append to a deleted log.
The topic's table stays, or goes with its files, as `lakestream.table.on.delete` says.

v4 flexible · v5 error message · v6 by id
"""

from functools import partial
from typing import Any
from uuid import UUID

from lakestream.coordination import topic_settings
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.topics import Topic
from lakestream.protocol.kafka.dispatch import Body, Call, describe, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import Services


@handles(20, versions=range(1, 7))
async def delete_topics(call: Call, services: Services) -> Body:
    if call.version >= 6:
        wanted = [(topic.name, topic.topic_id) for topic in call.body.topics]
    else:
        wanted = [(name, None) for name in call.body.topic_names]
    return {"responses": [await _deleted(name, topic_id, services) for name, topic_id in wanted]}


async def _deleted(name: str | None, topic_id: UUID | None, services: Services) -> dict[str, Any]:
    by_id = name is None
    try:
        if name is not None and topic_id is not None:
            raise KafkaError(Code.INVALID_REQUEST, f"topic {name} is named by its name and by an id: give one of them")
        if name is None:
            name = await _name_of(topic_id, services)
        topic = await services.topics.delete(name, topic_id.hex if topic_id else None, partial(_drop_table, services))
        services.view.forget(name)
    except LakestreamError as error:
        code = Code.UNKNOWN_TOPIC_ID if by_id and isinstance(error, Missing) else code_of(error)
        return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": describe(error)}
    return {"name": name, "topic_id": UUID(hex=topic.topic_id), "error_code": Code.NONE}


async def _drop_table(services: Services, topic: Topic) -> None:
    if topic_settings.read(topic.settings).table_dropped:
        await services.drop_table(topic.topic_id)


async def _name_of(topic_id: UUID | None, services: Services) -> str:
    """Also of a topic that somebody began to delete and did not end: its logs are gone, its name is still there."""
    wanted = topic_id.hex if topic_id else ""
    name = services.view.name_of(wanted)
    if name is None:
        every = await services.topics.all(confirmed=True)
        name = next((name for name, topic in every.items() if topic.topic_id == wanted), None)
    if name is None:
        raise Missing(f"no topic has the id {wanted}")
    return name
