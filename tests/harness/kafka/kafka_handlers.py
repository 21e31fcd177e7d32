"""The handlers of a broker over stores in memory, and a client that sends requests as bytes."""

from functools import partial
from typing import Any

from tests.harness.catalog.iceberg_tables import catalog_over
from tests.harness.groups.fixed_registration import FixedRegistration
from tests.harness.log.brokers import World

from lakestream.catalog.operations.create_topic_table import topic_created, topic_deleted
from lakestream.coordination.groups.coordinator import GroupCoordinator, GroupSettings
from lakestream.coordination.groups.messages import GroupLimits
from lakestream.coordination.metadata_cache import MetadataCache
from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.metadata.brokers import Broker, Brokers, RegisteredBroker
from lakestream.metadata.cluster import Cluster, ConfigStore
from lakestream.model import PartitionId
from lakestream.protocol.kafka import handlers  # noqa: F401 -- the import fills HANDLERS
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.network.connection import Connection
from lakestream.protocol.kafka.network.limits import ServerSettings
from lakestream.protocol.kafka.network.server import KafkaServer
from lakestream.protocol.kafka.services import BrokerSettings, HandlerContext
from lakestream.protocol.kafka.wire import codec
from lakestream.records.file_region import as_bytes
from lakestream.testing.batches import make_batch

SIZE_BYTES = 4
NO_INITIAL_DELAY = GroupSettings(limits=GroupLimits(initial_delay_ms=0))
"""The first generation of a group begins without a delay."""


class Serving:
    """One broker of a world, with a client that sends requests to it."""

    def __init__(self, world: World, services: HandlerContext) -> None:
        self.world = world
        self.services = services
        self.dispatcher = Dispatcher(services)
        self.connection = Connection(KafkaServer(ServerSettings()))

    @classmethod
    async def open(cls, world: World, node_id: int = 0, zone: str = "", **settings: Any) -> "Serving":
        metadata = world.server.client()
        new = RegisteredBroker(Broker(node_id, "127.0.0.1", 9092 + node_id, zone), None)
        registered = await Brokers(metadata).register(new, await metadata.session(60_000))
        metadata_cache = MetadataCache(metadata)
        await metadata_cache.start()
        cluster = Cluster(metadata, world.ids)
        catalog = catalog_over(metadata, world.objects)
        log = await world.broker()
        registration = FixedRegistration(registered.broker)
        transactions = TransactionCoordinator(metadata, log, metadata_cache, registration, cluster, world.clock)
        log.set_transaction_check(transactions.transaction_of)
        services = HandlerContext(
            log=log,
            topics=world.topics,
            metadata_cache=metadata_cache,
            groups=GroupCoordinator(metadata, metadata_cache, registration, world.clock, world.ids, NO_INITIAL_DELAY),
            transactions=transactions,
            cluster=cluster,
            cluster_id=await cluster.id(),
            registration=registration,
            clock=world.clock,
            ids=world.ids,
            configs=ConfigStore(metadata),
            initial_settings=BrokerSettings(**settings),
            on_topic_created=partial(topic_created, catalog),
            table_size=catalog.pointers.size_of,
            drop_table=partial(topic_deleted, catalog, drop=True),
        )
        services.groups.start()
        transactions.start()
        return cls(world, services)

    async def close(self) -> None:
        await self.services.groups.close()
        await self.services.transactions.close()
        await self.services.metadata_cache.close()

    async def request(self, key: int, version: int, body: dict[str, Any], client_id: str = "tester") -> Any:
        """Sends a request, and returns kio's dataclass of the response."""
        frame = codec.write_request(key, version, 7, client_id, body)[SIZE_BYTES:]
        buffers = await self.dispatcher.handle(self.connection, frame)
        assert buffers is not None
        written = as_bytes(buffers)
        assert int.from_bytes(written[:SIZE_BYTES], "big") == len(written) - SIZE_BYTES
        response = codec.parse_response(key, version, written[SIZE_BYTES:])
        assert response.correlation_id == 7
        return response.body

    async def topic(self, name: str = "t", partitions: int = 2, **settings: str) -> str:
        """Creates a topic with CreateTopics, and returns its id. Names of settings have _ for the dot."""
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
        created = await self.request(19, 7, {"topics": [topic], "timeout": 1000})
        assert created.topics[0].error_code == 0, created.topics[0].error_message
        return str(created.topics[0].topic_id.hex)

    async def produce(self, name: str, *values: str, partition: int = 0, **batch: Any) -> Any:
        """Sends one batch, and returns the response for its partition."""
        records = make_batch([value.encode() for value in values], timestamp_ms=self.world.clock.now_ms(), **batch)
        return await self.send(name, records, partition)

    async def send(self, name: str, records: bytes, partition: int = 0, version: int = 12) -> Any:
        data = [{"name": name, "partition_data": [{"index": partition, "records": records}]}]
        response = await self.request(0, version, {"acks": -1, "timeout": 5000, "topic_data": data})
        return response.responses[0].partition_responses[0]

    async def log_of(self, name: str, number: int = 0) -> PartitionId:
        return await self.services.metadata_cache.partition(name, number)

    async def offset(self, name: str, timestamp: int, partition: int = 0) -> int:
        partitions = [{"partition_index": partition, "timestamp": timestamp}]
        response = await self.request(2, 11, {"replica_id": -1, "topics": [{"name": name, "partitions": partitions}]})
        return int(response.topics[0].partitions[0].offset)
