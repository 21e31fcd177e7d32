"""Tests with captured requests of real clients: they are parsed, and a broker responds to them."""

import asyncio
from collections.abc import Iterator

import pytest
from tests.wire.frames import captured, joined, key_and_version

from lakestream.protocol.kafka.wire import codec
from lakestream.testing.brokers import BrokerProcesses, running_brokers

CAPTURED = captured()
CLIENTS = ["aiokafka", "confluent-kafka", "java", "kafka-python", "kafkajs", "kcat"]
WITH_GROUPS = ["aiokafka", "confluent-kafka", "java", "kafka-python"]
NAMES = sorted([*CLIENTS, *(f"{client}-groups" for client in WITH_GROUPS)])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    with running_brokers(tmp_path_factory.mktemp("wire")) as running:
        yield running
        assert "Traceback" not in running.logs(), running.logs()


def test_captures_exist_for_every_client_and_are_small() -> None:
    assert sorted(CAPTURED) == NAMES
    assert sum(len(joined(frames)) for frames in CAPTURED.values()) < 300_000


@pytest.mark.parametrize("client", NAMES)
def test_captured_requests_are_parsed(client: str) -> None:
    for frame in CAPTURED[client]:
        request = codec.parse(frame)
        assert (request.key, request.version) == key_and_version(frame)
        assert request.correlation_id == int.from_bytes(frame[4:8], "big")


@pytest.mark.parametrize("client", NAMES)
async def test_captured_requests_get_responses_in_order(client: str, cluster: BrokerProcesses) -> None:
    frames = CAPTURED[client]
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster[0].port)
    try:
        writer.write(joined(frames))
        async with asyncio.timeout(60):
            for frame in frames:
                size = int.from_bytes(await reader.readexactly(4), "big")
                response = codec.parse_response(*key_and_version(frame), await reader.readexactly(size))
                assert response.correlation_id == int.from_bytes(frame[4:8], "big")
    finally:
        writer.close()


def test_captures_contain_no_address_and_no_path() -> None:
    for frames in CAPTURED.values():
        assert not any(word in frame for frame in frames for word in (b"127.0.0.1", b"localhost", b"/home", b"/root"))
