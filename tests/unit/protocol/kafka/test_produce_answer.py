"""Produce answers written by hand are those of the generated writer, byte for byte, in every version."""

from uuid import UUID

import pytest

from lakestream.protocol.kafka import codec
from lakestream.protocol.kafka.codec import Request
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.produce_answer import Stored, StoredTopic, written

PARTS = [
    Stored(0, Code.NONE, 2**40, -1, 7),
    Stored(300, Code.NONE, 0, 1_700_000_000_000, 0),
    Stored(2, Code.INVALID_RECORD, record_errors=[(3, None), (200, "wrong " * 40)], message="ä reason"),
    Stored(3, Code.UNKNOWN_TOPIC_ID, message=""),
]
TOPICS = [StoredTopic("a topic", UUID(int=9), PARTS), StoredTopic("ü" * 100, UUID(int=2**100), PARTS[:1] * 200)]


@pytest.mark.parametrize("topics", [TOPICS, TOPICS[:1], []], ids=["two", "one", "none"])
@pytest.mark.parametrize("version", range(3, 14))
def test_as_generated(version: int, topics: list[StoredTopic]) -> None:
    body = {
        "responses": [
            {
                "name": topic.name,
                "topic_id": topic.topic_id,
                "partition_responses": [
                    {
                        "index": part.number,
                        "error_code": part.error,
                        "base_offset": part.base_offset,
                        "log_append_time": part.append_ms,
                        "log_start_offset": part.log_start,
                        "record_errors": [
                            {"batch_index": index, "batch_index_error_message": why}
                            for index, why in part.record_errors
                        ],
                        "error_message": part.message,
                    }
                    for part in topic.parts
                ],
            }
            for topic in topics
        ]
    }
    request = Request(0, version, 12345, "client", None)
    assert written(request, topics) == codec.respond(0, version, 12345, body)
