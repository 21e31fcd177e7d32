"""Tests of two brokers: a change through the first is effective on the second, also if its cache is stale."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest_asyncio
from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.log.brokers import World

from lakestream.metadata.topics import Topic
from lakestream.testing.batches import make_batch


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[tuple[Serving, Serving]]:
    world = World()
    first = await Serving.open(world)
    second = await Serving.open(world, node_id=1)
    await first.services.metadata_cache.refresh_brokers()
    yield first, second
    await first.close()
    await second.close()
    await world.close()


async def stale_topic(serving: Serving, name: str) -> Topic:
    """Stops the updates of a broker's metadata cache, and returns the cached topic."""
    await serving.services.metadata_cache.close()
    return await serving.services.metadata_cache.topic(name)


async def test_new_partition_is_served_when_the_cache_of_the_broker_is_stale(pair: tuple[Serving, Serving]) -> None:
    first, second = pair
    await first.topic(partitions=1)
    assert (await stale_topic(second, "t")).partition_count == 1
    grown = await first.request(37, 3, {"topics": [{"name": "t", "count": 3, "assignments": None}], "timeout": 1000})
    assert grown.results[0].error_code == 0
    assert (await second.produce("t", "a", partition=2)).error_code == 0
    part = {"partition": 2, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1000, "topics": [{"topic": "t", "partitions": [part]}]}
    partition = (await first.request(1, 12, body)).responses[0].partitions[0]
    assert (partition.error_code, partition.high_watermark) == (0, 1)
    assert await second.offset("t", -1, partition=2) == 1


async def test_fetch_is_out_of_range_when_another_broker_has_deleted_the_records(pair: tuple[Serving, Serving]) -> None:
    first, second = pair
    await first.topic()
    for _ in range(3):
        await first.produce("t", "a")
    assert await second.offset("t", -2) == 0
    requested = [{"partition_index": 0, "offset": 2}]
    await first.request(21, 2, {"topics": [{"name": "t", "partitions": requested}], "timeout": 1000})
    assert await second.offset("t", -2) == 2
    part = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1000, "topics": [{"topic": "t", "partitions": [part]}]}
    partition = (await second.request(1, 12, body)).responses[0].partitions[0]
    assert (partition.error_code, partition.log_start_offset, partition.high_watermark) == (1, 2, 3)


async def test_all_settings_are_stored_when_two_brokers_alter_a_topic(pair: tuple[Serving, Serving]) -> None:
    first, second = pair
    await first.topic()
    await stale_topic(second, "t")

    async def change(serving: Serving, name: str, value: str) -> Any:
        configs = [{"name": name, "config_operation": 0, "value": value}]
        resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
        return (await serving.request(44, 1, {"resources": [resource]})).responses[0].error_code

    assert await change(first, "retention.ms", "1000") == 0
    assert await change(second, "max.message.bytes", "2000") == 0
    assert (await first.services.topics.get("t")).settings == {"retention.ms": "1000", "max.message.bytes": "2000"}


async def test_log_dirs_of_all_brokers_contain_every_partition_once(pair: tuple[Serving, Serving]) -> None:
    await pair[0].topic(partitions=20)
    for partition in range(20):
        await pair[0].produce("t", "a", partition=partition)
    await pair[1].services.metadata_cache.refresh_topics()
    sizes: dict[int, int] = {}
    for serving in pair:
        (directory,) = (await serving.request(35, 4, {"topics": None})).results
        (topic,) = directory.topics
        assert 0 < len(topic.partitions) < 20
        assert not sizes.keys() & {part.partition_index for part in topic.partitions}
        sizes |= {part.partition_index: part.partition_size for part in topic.partitions}
    assert sizes == {number: len(make_batch([b"a"])) for number in range(20)}


async def test_replica_is_in_the_log_dir_of_exactly_one_broker(pair: tuple[Serving, Serving]) -> None:
    await pair[0].topic(partitions=8)
    await pair[1].services.metadata_cache.refresh_topics()
    codes = []
    for serving in pair:
        dirs = [{"path": "/lakestream", "topics": [{"name": "t", "partitions": range(8)}]}]
        (topic,) = (await serving.request(34, 2, {"dirs": dirs})).results
        codes.append([part.error_code for part in topic.partitions])
    assert all(sorted(both) == [0, 9] for both in zip(*codes, strict=True))


async def test_fetch_out_of_range_returns_unknown_topic_when_the_topic_was_deleted(
    pair: tuple[Serving, Serving],
) -> None:
    first, second = pair
    await first.topic()
    await second.produce("t", "a")
    await stale_topic(second, "t")
    await first.request(20, 5, {"topic_names": ["t"], "timeout": 1000})
    part = {"partition": 0, "fetch_offset": 7, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1000, "topics": [{"topic": "t", "partitions": [part]}]}
    partition = (await second.request(1, 12, body)).responses[0].partitions[0]
    assert (partition.error_code, partition.high_watermark) == (3, -1)


async def test_recreated_topic_is_not_deleted_when_the_request_has_the_old_id(pair: tuple[Serving, Serving]) -> None:
    first, second = pair
    old_id = await first.topic()
    await stale_topic(second, "t")
    await first.request(20, 5, {"topic_names": ["t"], "timeout": 1000})
    new_id = await first.topic()
    requested = [{"name": None, "topic_id": UUID(hex=old_id)}]
    response = await second.request(20, 6, {"topics": requested, "timeout": 1000})
    assert response.responses[0].error_code == 100
    assert (await first.services.topics.get("t")).topic_id == new_id


async def test_fetch_without_wait_returns_new_records_when_another_broker_appended_them(
    pair: tuple[Serving, Serving],
) -> None:
    """Only a fetch that waits may be served from a cached end of the log."""
    first, second = pair
    await first.topic()
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "topics": [{"topic": "t", "partitions": [part]}]}
    assert not (await second.request(1, 12, body)).responses[0].partitions[0].records
    await first.produce("t", "a")
    view = await second.services.log._views.get(await second.log_of("t"))
    assert view.offset_end == 0, "the cached end is stale"
    view.end_read_s = asyncio.get_running_loop().time()
    assert (await second.request(1, 12, body)).responses[0].partitions[0].records


async def test_fetch_returns_the_preferred_replica_when_another_broker_is_in_the_rack() -> None:
    world = World()
    local, remote = await Serving.open(world, zone="a"), await Serving.open(world, node_id=1, zone="b")
    await local.services.metadata_cache.refresh_brokers()
    await local.topic()
    await local.produce("t", "x")
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {"max_wait": 60_000, "min_bytes": 1_000, "max_bytes": 1000, "rack_id": "b"}
    body["topics"] = [{"topic": "t", "partitions": [part]}]
    redirect = (await local.request(1, 11, body)).responses[0].partitions[0]
    assert (redirect.error_code, redirect.preferred_read_replica, redirect.high_watermark) == (0, 1, 1)
    assert not redirect.records
    partition = (await remote.request(1, 11, body | {"max_wait": 0})).responses[0].partitions[0]
    assert partition.preferred_read_replica == -1
    assert partition.records
    partition = (
        (await local.request(1, 11, body | {"max_wait": 0, "rack_id": "without brokers"})).responses[0].partitions[0]
    )
    assert partition.preferred_read_replica == -1
    assert partition.records
    for serving in (local, remote):
        await serving.close()
    await world.close()
