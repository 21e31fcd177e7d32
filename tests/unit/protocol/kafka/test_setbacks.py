"""Batches of one connection keep their order, also behind one that failed before the log had it."""

from dataclasses import replace

from tests.unit.data.brokers import World
from tests.unit.protocol.kafka.serving import Serving
from tests.unit.protocol.kafka.transaction_scenarios import ready

from lakestream.coordination.cluster import ClusterView
from lakestream.errors import Unavailable
from lakestream.metadata.memory import MemoryStore
from lakestream.metadata.store import Key, Record
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.errors import Code
from lakestream.protocol.kafka.setbacks import SETBACKS


class ShakyReads(MemoryStore):
    """Some reads of one key are not answered."""

    failures = 0

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        if self.failures:
            self.failures -= 1
            raise Unavailable("the store cannot answer now")
        return await super().get(key, confirmed=confirmed)


async def test_the_next_batch_does_not_overtake_one_whose_topic_could_not_be_looked_up() -> None:
    """To the log the producer is new, and any sequence is a fine first one: the first batch would never be taken."""
    world = World()
    serving = await Serving.open(world)
    await serving.topic()
    metadata = ShakyReads(world.server)
    forgetful = replace(serving.services, view=ClusterView(metadata))
    serving.dispatcher = Dispatcher(forgetful)

    async def produced(sequence: int) -> tuple[int, int]:
        part = await serving.produce("t", "x", producer_id=5, epoch=0, sequence=sequence)
        return part.error_code, part.base_offset

    metadata.failures = 1
    assert await produced(0) == (Code.REQUEST_TIMED_OUT, -1)
    assert await produced(1) == (Code.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert await produced(0) == (Code.NONE, 0)
    assert SETBACKS not in serving.connection.state, "all is well again"
    assert await produced(1) == (Code.NONE, 1)
    await serving.close()
    await world.close()


async def test_a_batch_of_a_transaction_whose_topic_could_not_be_looked_up_at_first_comes_again() -> None:
    """Its partition is looked up twice: for the transaction, and for the log."""
    world = World()
    serving = await Serving.open(world)
    await serving.topic()
    producer = await ready(serving, implicit=True)
    metadata = ShakyReads(world.server)
    serving.dispatcher = Dispatcher(replace(serving.services, view=ClusterView(metadata)))
    metadata.failures = 1
    batch = producer.batch("x")
    assert await producer.send_batch(batch, version=12) == Code.REQUEST_TIMED_OUT
    assert await producer.send_batch(batch, version=12) == Code.NONE
    await serving.close()
    await world.close()


async def test_a_batch_that_came_again_through_another_broker_holds_back_nothing() -> None:
    world = World()
    serving = await Serving.open(world)
    other = await Serving.open(world, node_id=1)
    await serving.topic()
    metadata = ShakyReads(world.server)
    serving.dispatcher = Dispatcher(replace(serving.services, view=ClusterView(metadata)))
    metadata.failures = 1
    for broker, sequence, offset in ((serving, 0, -1), (other, 0, 0), (other, 1, 1), (serving, 2, 2)):
        part = await broker.produce("t", "x", producer_id=5, epoch=0, sequence=sequence)
        assert part.base_offset == offset, part
    await serving.close()
    await other.close()
    await world.close()
