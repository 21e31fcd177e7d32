"""What one broker changes, another obeys, even before it has heard of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import pytest_asyncio
from tests.unit.data.brokers import World
from tests.unit.protocol.kafka.serving import Serving

from lakestream.metadata.topics import Topic
from lakestream.testing.batches import make_batch


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[tuple[Serving, Serving]]:
    world = World()
    one = await Serving.open(world)
    other = await Serving.open(world, node_id=1)
    await one.services.view.look_at_brokers()
    yield one, other
    await one.close()
    await other.close()
    await world.close()


async def behind(serving: Serving, name: str) -> Topic:
    """Its view as it was, whatever is changed now."""
    await serving.services.view.close()  # it hears of no change any more
    return await serving.services.view.topic(name)


async def test_a_partition_that_another_broker_made_is_served(pair: tuple[Serving, Serving]) -> None:
    one, other = pair
    await one.topic(partitions=1)
    assert (await behind(other, "t")).partition_count == 1
    grown = await one.ask(37, 3, {"topics": [{"name": "t", "count": 3, "assignments": None}], "timeout": 1000})
    assert grown.results[0].error_code == 0
    assert (await other.produce("t", "a", partition=2)).error_code == 0
    part = {"partition": 2, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1000, "topics": [{"topic": "t", "partitions": [part]}]}
    found = (await one.ask(1, 12, body)).responses[0].partitions[0]
    assert (found.error_code, found.high_watermark) == (0, 1)
    assert await other.offset("t", -1, partition=2) == 1


async def test_records_deleted_through_one_are_gone_from_the_other(pair: tuple[Serving, Serving]) -> None:
    one, other = pair
    await one.topic()
    for _ in range(3):
        await one.produce("t", "a")
    assert await other.offset("t", -2) == 0
    wanted = [{"partition_index": 0, "offset": 2}]
    await one.ask(21, 2, {"topics": [{"name": "t", "partitions": wanted}], "timeout": 1000})
    assert await other.offset("t", -2) == 2
    part = {"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1000, "topics": [{"topic": "t", "partitions": [part]}]}
    found = (await other.ask(1, 12, body)).responses[0].partitions[0]
    assert (found.error_code, found.log_start_offset, found.high_watermark) == (1, 2, 3)


async def test_settings_altered_through_both_are_all_kept(pair: tuple[Serving, Serving]) -> None:
    one, other = pair
    await one.topic()
    await behind(other, "t")

    async def change(serving: Serving, name: str, value: str) -> Any:
        configs = [{"name": name, "config_operation": 0, "value": value}]
        resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
        return (await serving.ask(44, 1, {"resources": [resource]})).responses[0].error_code

    assert await change(one, "retention.ms", "1000") == 0
    assert await change(other, "max.message.bytes", "2000") == 0
    assert (await one.services.topics.get("t")).settings == {"retention.ms": "1000", "max.message.bytes": "2000"}


async def test_log_directories_count_every_partition_once(pair: tuple[Serving, Serving]) -> None:
    await pair[0].topic(partitions=20)
    for partition in range(20):
        await pair[0].produce("t", "a", partition=partition)
    await pair[1].services.view.look_at_topics()
    sizes: dict[int, int] = {}
    for serving in pair:
        (directory,) = (await serving.ask(35, 4, {"topics": None})).results
        (topic,) = directory.topics
        assert 0 < len(topic.partitions) < 20
        assert not sizes.keys() & {part.partition_index for part in topic.partitions}
        sizes |= {part.partition_index: part.partition_size for part in topic.partitions}
    assert sizes == {number: len(make_batch([b"a"])) for number in range(20)}


async def test_a_reader_outside_a_log_that_is_deleted_meanwhile_is_refused(pair: tuple[Serving, Serving]) -> None:
    one, other = pair
    await one.topic()
    await other.produce("t", "a")
    await behind(other, "t")
    await one.ask(20, 5, {"topic_names": ["t"], "timeout": 1000})
    part = {"partition": 0, "fetch_offset": 7, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 1, "max_bytes": 1000, "topics": [{"topic": "t", "partitions": [part]}]}
    found = (await other.ask(1, 12, body)).responses[0].partitions[0]
    assert (found.error_code, found.high_watermark) == (3, -1)


async def test_an_old_id_never_deletes_the_new_topic_of_that_name(pair: tuple[Serving, Serving]) -> None:
    one, other = pair
    old_id = await one.topic()
    await behind(other, "t")
    await one.ask(20, 5, {"topic_names": ["t"], "timeout": 1000})
    new_id = await one.topic()
    wanted = [{"name": None, "topic_id": UUID(hex=old_id)}]
    answer = await other.ask(20, 6, {"topics": wanted, "timeout": 1000})
    assert answer.responses[0].error_code == 100
    assert (await one.services.topics.get("t")).topic_id == new_id


async def test_who_does_not_want_to_wait_is_told_of_what_another_broker_has_just_taken(
    pair: tuple[Serving, Serving],
) -> None:
    """A look of a moment ago, from memory, would do only for one that waits."""
    one, other = pair
    await one.topic()
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {"max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "topics": [{"topic": "t", "partitions": [part]}]}
    assert not (await other.ask(1, 12, body)).responses[0].partitions[0].records
    await one.produce("t", "a")
    view = await other.services.log._views.get(await other.log_of("t"))
    assert view.offset_end == 0, "it has heard of nothing"
    view.looked_s = asyncio.get_running_loop().time()
    assert (await other.ask(1, 12, body)).responses[0].partitions[0].records


async def test_a_reader_is_sent_to_its_rack_at_once_and_without_records() -> None:
    world = World()
    here, there = await Serving.open(world, zone="a"), await Serving.open(world, node_id=1, zone="b")
    await here.services.view.look_at_brokers()
    await here.topic()
    await here.produce("t", "x")
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    body = {"max_wait": 60_000, "min_bytes": 1_000, "max_bytes": 1000, "rack_id": "b"}
    body["topics"] = [{"topic": "t", "partitions": [part]}]
    sent = (await here.ask(1, 11, body)).responses[0].partitions[0]
    assert (sent.error_code, sent.preferred_read_replica, sent.high_watermark) == (0, 1, 1)
    assert not sent.records
    found = (await there.ask(1, 11, body | {"max_wait": 0})).responses[0].partitions[0]
    assert found.preferred_read_replica == -1
    assert found.records
    found = (await here.ask(1, 11, body | {"max_wait": 0, "rack_id": "nobody's"})).responses[0].partitions[0]
    assert found.preferred_read_replica == -1
    assert found.records
    for serving in (here, there):
        await serving.close()
    await world.close()
