"""Tests of CreateTopics: replication factors, replica assignments, unsupported profiles, and an unavailable store."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.log.brokers import World

from lakestream.config.settings import Profile
from lakestream.errors import Unavailable
from lakestream.metadata.memory import MemoryMetadataStore
from lakestream.metadata.store import Key, Record
from lakestream.metadata.topics import Topics
from lakestream.protocol.kafka.dispatch import Dispatcher

REQUEST_TIMED_OUT, INVALID_CONFIG = 7, 40
INVALID_REPLICATION_FACTOR, INVALID_REPLICA_ASSIGNMENT, INVALID_REQUEST = 38, 39, 42
MANUAL = "The manual partition assignment includes "


@pytest_asyncio.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    yield world
    await world.close()


async def create_topic(serving: Serving, validate_only: bool = False, **settings: str) -> Any:
    configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
    topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "configs": configs}
    response = await serving.request(19, 7, {"topics": [topic], "timeout": 1000, "validate_only": validate_only})
    return response.topics[0]


async def create(serving: Serving, validate_only: bool = False, **fields: Any) -> Any:
    topic = {"name": "t", "num_partitions": -1, "replication_factor": -1} | fields
    response = await serving.request(19, 7, {"topics": [topic], "timeout": 1000, "validate_only": validate_only})
    return response.topics[0]


def assigned(*replicas: Sequence[int], first: int = 0) -> list[dict[str, Any]]:
    return [{"partition_index": number, "broker_ids": ids} for number, ids in enumerate(replicas, first)]


@pytest.mark.parametrize("validate_only", [False, True])
async def test_replication_factor_is_limited_to_three_or_the_number_of_brokers(
    world: World, validate_only: bool
) -> None:
    serving = await Serving.open(world)

    async def create_with(factor: int) -> tuple[int, str | None]:
        created = await create(serving, validate_only, name=f"t{factor}", num_partitions=1, replication_factor=factor)
        return created.error_code, created.error_message

    for factor in (-1, 1, 2, 3):
        assert await create_with(factor) == (0, None)
    for factor in (0, -2):
        text = "Replication factor must be larger than 0, or -1 to use the default value."
        assert await create_with(factor) == (INVALID_REPLICATION_FACTOR, text)
    for factor in (4, 999):
        text = (
            f"Unable to replicate the partition {factor} time(s): The target replication factor of {factor} cannot be"
            " reached because only 1 broker(s) are registered."
        )
        assert await create_with(factor) == (INVALID_REPLICATION_FACTOR, text)
    others = [await Serving.open(world, node_id=node_id) for node_id in (1, 2, 3)]
    await serving.services.metadata_cache.refresh_brokers()
    assert await create_with(4) == (0, None)
    assert (await create_with(5))[0] == INVALID_REPLICATION_FACTOR
    for one in (serving, *others):
        await one.close()


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        (
            {"assignments": assigned([0]), "replication_factor": 1},
            INVALID_REQUEST,
            "A manual partition assignment was specified, but replication factor was not set to -1.",
        ),
        (
            {"assignments": assigned([0]), "num_partitions": 1},
            INVALID_REQUEST,
            "A manual partition assignment was specified, but numPartitions was not set to -1.",
        ),
        ({"assignments": assigned([])}, INVALID_REPLICA_ASSIGNMENT, f"{MANUAL}an empty replica list."),
        (
            {"assignments": assigned([0, 7])},
            INVALID_REPLICA_ASSIGNMENT,
            f"{MANUAL}broker 7, but no such broker is registered.",
        ),
        (
            {"assignments": assigned([0, 1, 0])},
            INVALID_REPLICA_ASSIGNMENT,
            f"{MANUAL}the broker 0 more than once.",
        ),
        (
            {"assignments": assigned([0, 1], [1])},
            INVALID_REPLICA_ASSIGNMENT,
            f"{MANUAL}a partition with 1 replica(s), but this is not consistent with previous partitions, which have 2"
            " replica(s).",
        ),
        (
            {"assignments": assigned([0], first=1)},
            INVALID_REPLICA_ASSIGNMENT,
            "partitions should be a consecutive 0-based integer sequence",
        ),
        (
            {"assignments": [*assigned([0]), *assigned([1])]},
            INVALID_REPLICA_ASSIGNMENT,
            "Found multiple manual partition assignments for partition 0",
        ),
    ],
)
async def test_assignment_is_rejected_when_no_kafka_cluster_would_accept_it(
    world: World, fields: dict[str, Any], code: int, text: str
) -> None:
    serving, other = await Serving.open(world), await Serving.open(world, node_id=1)
    await serving.services.metadata_cache.refresh_brokers()
    for validate_only in (True, False):
        created = await create(serving, validate_only, **fields)
        assert (created.error_code, created.error_message) == (code, text)
    assert await serving.services.topics.all() == {}
    created = await create(serving, assignments=assigned([0, 1], [1, 0]))
    assert (created.error_code, created.num_partitions) == (0, 2)
    for one in (serving, other):
        await one.close()


async def test_new_partitions_are_rejected_when_their_assignment_names_an_unknown_broker(world: World) -> None:
    serving = await Serving.open(world)
    await serving.topic(partitions=1)
    for validate_only in (True, False):
        topic = {"name": "t", "count": 2, "assignments": [{"broker_ids": [5]}]}
        body = {"topics": [topic], "timeout": 1000, "validate_only": validate_only}
        (result,) = (await serving.request(37, 3, body)).results
        assert result.error_code == INVALID_REPLICA_ASSIGNMENT
        assert result.error_message == f"{MANUAL}broker 5, but no such broker is registered."
    assert (await serving.services.topics.get("t")).partition_count == 1
    await serving.close()


async def test_profile_is_rejected_when_the_broker_does_not_support_it(world: World) -> None:
    serving = await Serving.open(world, profiles=frozenset([Profile.COST]))
    rejected = await create_topic(serving, lakestream_profile="latency")
    assert rejected.error_code == INVALID_CONFIG
    assert "--wal-dir" in rejected.error_message
    assert (await create_topic(serving, lakestream_profile="cost")).error_code == 0
    configs = [{"name": "lakestream.profile", "config_operation": 0, "value": "latency"}]
    resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
    altered = (await serving.request(44, 1, {"resources": [resource]})).responses[0]
    assert altered.error_code == INVALID_CONFIG
    assert (await serving.services.topics.get("t")).settings == {"lakestream.profile": "cost"}
    await serving.close()


class UnavailableStore(MemoryMetadataStore):
    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        raise Unavailable("no response")


async def test_validate_only_times_out_when_the_store_is_unavailable(world: World) -> None:
    serving = await Serving.open(world)
    assert (await create_topic(serving, validate_only=True)).error_code == 0
    serving.services = replace(serving.services, topics=Topics(UnavailableStore(world.server)))
    serving.dispatcher = Dispatcher(serving.services)
    assert (await create_topic(serving, validate_only=True)).error_code == REQUEST_TIMED_OUT
    await serving.close()
