"""Compares Produce responses with those of the generated writer, byte by byte, in every version."""

from uuid import UUID

import pytest

from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.wire import codec
from lakestream.protocol.kafka.wire.codec import Request
from lakestream.protocol.kafka.wire.produce_response import ProducedPartition, ProducedTopic, encode_response

PARTS = [
    ProducedPartition(0, Code.NONE, 2**40, -1, 7),
    ProducedPartition(300, Code.NONE, 0, 1_700_000_000_000, 0),
    ProducedPartition(2, Code.INVALID_RECORD, record_errors=[(3, None), (200, "wrong " * 40)], message="ä reason"),
    ProducedPartition(3, Code.UNKNOWN_TOPIC_ID, message=""),
]
TOPICS = [ProducedTopic("a topic", UUID(int=9), PARTS), ProducedTopic("ü" * 100, UUID(int=2**100), PARTS[:1] * 200)]


@pytest.mark.parametrize("topics", [TOPICS, TOPICS[:1], []], ids=["two", "one", "none"])
@pytest.mark.parametrize("version", range(3, 14))
def test_produce_response_equals_that_of_the_generated_writer(version: int, topics: list[ProducedTopic]) -> None:
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
                            {"batch_index": index, "batch_index_error_message": reason}
                            for index, reason in part.record_errors
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
    assert encode_response(request, topics) == codec.respond(0, version, 12345, body)
