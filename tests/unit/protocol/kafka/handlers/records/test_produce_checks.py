"""Tests of the order of batches of one connection after a batch that failed before it reached the log."""

from dataclasses import replace

from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.kafka.transaction_scenarios import ready
from tests.harness.log.brokers import World

from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.errors import Unavailable
from lakestream.metadata.memory import MemoryMetadataStore
from lakestream.metadata.store import Key, Record
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.handlers.records.produce_checks import FAILED_BATCHES


class FailingReads(MemoryMetadataStore):
    """The next `failures` reads fail."""

    failures = 0

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("the store does not respond")
        return await super().get(key, confirmed=confirmed)


async def test_next_batch_is_out_of_order_when_the_topic_lookup_of_the_previous_batch_failed() -> None:
    """Without state of the producer, the log would accept the second batch, and then reject the first one."""
    world = World()
    serving = await Serving.open(world)
    await serving.topic()
    metadata = FailingReads(world.server)
    context = replace(serving.services, metadata_cache=MetadataCache(metadata))
    serving.dispatcher = Dispatcher(context)

    async def produced(sequence: int) -> tuple[int, int]:
        part = await serving.produce("t", "x", producer_id=5, epoch=0, sequence=sequence)
        return part.error_code, part.base_offset

    metadata.failures = 1
    assert await produced(0) == (Code.REQUEST_TIMED_OUT, -1)
    assert await produced(1) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert await produced(0) == (Code.NONE, 0)
    assert FAILED_BATCHES not in serving.connection.state, "the failed batch is forgotten"
    assert await produced(1) == (Code.NONE, 1)
    await serving.close()
    await world.close()


async def test_retry_of_a_transactional_batch_succeeds_when_its_topic_lookup_had_failed() -> None:
    """The partition is resolved twice: for the transaction, and for the log."""
    world = World()
    serving = await Serving.open(world)
    await serving.topic()
    producer = await ready(serving, implicit=True)
    metadata = FailingReads(world.server)
    serving.dispatcher = Dispatcher(replace(serving.services, metadata_cache=MetadataCache(metadata)))
    metadata.failures = 1
    batch = producer.batch("x")
    assert await producer.send_batch(batch, version=12) == Code.REQUEST_TIMED_OUT
    assert await producer.send_batch(batch, version=12) == Code.NONE
    await serving.close()
    await world.close()


async def test_later_batches_are_accepted_when_the_retry_was_sent_to_another_broker() -> None:
    world = World()
    serving = await Serving.open(world)
    other = await Serving.open(world, node_id=1)
    await serving.topic()
    metadata = FailingReads(world.server)
    serving.dispatcher = Dispatcher(replace(serving.services, metadata_cache=MetadataCache(metadata)))
    metadata.failures = 1
    for broker, sequence, offset in ((serving, 0, -1), (other, 0, 0), (other, 1, 1), (serving, 2, 2)):
        part = await broker.produce("t", "x", producer_id=5, epoch=0, sequence=sequence)
        assert part.base_offset == offset, part
    await serving.close()
    await other.close()
    await world.close()
