"""Compares Metadata responses with those of the generated writer, byte by byte, in every version."""

from uuid import UUID

import pytest

from lakestream.metadata.brokers import Broker
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.wire import codec
from lakestream.protocol.kafka.wire.codec import Request
from lakestream.protocol.kafka.wire.metadata_response import (
    DescribedCluster,
    DescribedTopic,
    encode_response,
    encode_topic,
)

CLUSTER = DescribedCluster(
    [Broker(0, "one.example", 9092, "a"), Broker(300, "::1", 19092, "")], "the cluster", 300, 1234
)
TOPICS = [
    DescribedTopic(Code.NONE, "plain", UUID(int=7), [0, 300, 0], 99),
    DescribedTopic(Code.NONE, "ü" * 100, UUID(int=2**127), [300] * 200),
    DescribedTopic(Code.UNKNOWN_TOPIC_OR_PARTITION, "missing", None),
]


@pytest.mark.parametrize("topics", [TOPICS, []], ids=["some", "none"])
@pytest.mark.parametrize("version", range(14))
def test_metadata_response_equals_that_of_the_generated_writer(version: int, topics: list[DescribedTopic]) -> None:
    if version >= 12:
        topics = [*topics, DescribedTopic(Code.UNKNOWN_TOPIC_ID, None, UUID(int=5))]
    body = {
        "brokers": [
            {"node_id": one.node_id, "host": one.host, "port": one.port, "rack": one.zone or None}
            for one in CLUSTER.brokers
        ],
        "cluster_id": CLUSTER.cluster_id,
        "controller_id": CLUSTER.controller_id,
        "cluster_authorized_operations": CLUSTER.operations,
        "topics": [
            {
                "error_code": topic.error,
                "name": topic.name,
                "topic_id": topic.topic_id,
                "is_internal": False,
                "topic_authorized_operations": topic.operations,
                "partitions": [
                    {
                        "error_code": Code.NONE,
                        "partition_index": number,
                        "leader_id": leader,
                        "leader_epoch": 0,
                        "replica_nodes": [leader],
                        "isr_nodes": [leader],
                        "offline_replicas": [],
                    }
                    for number, leader in enumerate(topic.leaders)
                ],
            }
            for topic in topics
        ],
    }
    request = Request(3, version, 12345, "client", None)
    pieces = [encode_topic(topic, version) for topic in topics]
    assert encode_response(request, CLUSTER, pieces) == codec.respond(3, version, 12345, body)
