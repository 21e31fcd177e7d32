"""DeleteTopics (key 20), v1-6.

Deletes topics by name, or by id (v6). After the response no broker can append to the topic. The topic's table is kept,
or dropped with its files, according to `lakestream.table.on.delete`.

v4 flexible · v5 error message · v6 by id
"""

from functools import partial
from typing import Any
from uuid import UUID

from lakestream.coordination import topic_config
from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.topics import Topic
from lakestream.protocol.kafka.dispatch import Body, Call, error_message, handles
from lakestream.protocol.kafka.errors import Code, KafkaError, code_of
from lakestream.protocol.kafka.services import TopicsContext


@handles(20, versions=range(1, 7))
async def delete_topics(call: Call, context: TopicsContext) -> Body:
    if call.version >= 6:
        topics = [(topic.name, topic.topic_id) for topic in call.body.topics]
    else:
        topics = [(name, None) for name in call.body.topic_names]
    return {"responses": [await _delete(name, topic_id, context) for name, topic_id in topics]}


async def _delete(name: str | None, topic_id: UUID | None, context: TopicsContext) -> dict[str, Any]:
    by_id = name is None
    try:
        if name is not None and topic_id is not None:
            raise KafkaError(Code.INVALID_REQUEST, f"topic {name} is named by its name and by an id: send one of them")
        if name is None:
            name = await _name_of(topic_id, context)
        topic = await context.topics.delete(name, topic_id.hex if topic_id else None, partial(_drop_table, context))
        context.metadata_cache.evict(name)
    except LakestreamError as error:
        code = Code.UNKNOWN_TOPIC_ID if by_id and isinstance(error, Missing) else code_of(error)
        return {"name": name, "topic_id": topic_id, "error_code": code, "error_message": error_message(error)}
    return {"name": name, "topic_id": UUID(hex=topic.topic_id), "error_code": Code.NONE}


async def _drop_table(context: TopicsContext, topic: Topic) -> None:
    if topic_config.read(topic.settings).table_dropped:
        await context.drop_table(topic.topic_id)


async def _name_of(topic_id: UUID | None, context: TopicsContext) -> str:
    """Returns the name of a topic, also if its deletion is incomplete: then its logs are deleted, but not its name."""
    id_text = topic_id.hex if topic_id else ""
    name = context.metadata_cache.cached_name(id_text)
    if name is None:
        every = await context.topics.all(confirmed=True)
        name = next((name for name, topic in every.items() if topic.topic_id == id_text), None)
    if name is None:
        raise Missing(f"no topic has the id {id_text}")
    return name
