"""The handlers of a broker over stores in memory, asked as a client asks: bytes in, bytes out."""

from functools import partial
from typing import Any

from tests.unit.catalog.tables import catalog_over
from tests.unit.data.brokers import World

from lakestream.catalog.topic_tables import topic_deleted, topic_made
from lakestream.coordination.cluster import ClusterView
from lakestream.coordination.groups.coordinator import Groups, GroupSettings
from lakestream.coordination.groups.values import Rules
from lakestream.coordination.transactions.coordinator import TransactionCoordinator
from lakestream.filed import as_bytes
from lakestream.metadata.brokers import Broker, Brokers, Registered
from lakestream.metadata.cluster import Cluster
from lakestream.model import PartitionId
from lakestream.protocol.kafka import codec, handlers  # noqa: F401 -- they enter themselves into the table
from lakestream.protocol.kafka.dispatch import Dispatcher
from lakestream.protocol.kafka.server import Connection, KafkaServer, ServerSettings
from lakestream.protocol.kafka.services import BrokerSettings, Services
from lakestream.testing.batches import make_batch

SIZE_BYTES = 4
AT_ONCE = GroupSettings(rules=Rules(opening_ms=0))
"""The first member of a group need not wait for others."""


class Serving:
    """One broker of a world, and a client of it."""

    def __init__(self, world: World, services: Services) -> None:
        self.world = world
        self.services = services
        self.dispatcher = Dispatcher(services)
        self.connection = Connection(KafkaServer(ServerSettings()))

    @classmethod
    async def open(cls, world: World, node_id: int = 0, zone: str = "", **settings: Any) -> "Serving":
        metadata = world.server.client()
        new = Registered(Broker(node_id, "127.0.0.1", 9092 + node_id, zone), None)
        me = await Brokers(metadata).register(new, await metadata.session(60_000))
        view = ClusterView(metadata)
        await view.start()
        cluster = Cluster(metadata, world.ids)
        catalog = catalog_over(metadata, world.objects)
        log = await world.broker()
        transactions = TransactionCoordinator(
            metadata, log, view, lambda: me.broker, lambda: True, cluster, world.clock
        )
        log.when_transactional(transactions.transaction_of)
        services = Services(
            log=log,
            topics=world.topics,
            claims=world.claims,
            view=view,
            groups=Groups(metadata, view, lambda: me.broker, lambda: True, world.clock, world.ids, AT_ONCE),
            transactions=transactions,
            cluster=cluster,
            cluster_id=await cluster.id(),
            who=lambda: me.broker,
            clock=world.clock,
            ids=world.ids,
            settings=BrokerSettings(**settings),
            topic_made=partial(topic_made, catalog),
            drop_table=partial(topic_deleted, catalog, drop=True),
        )
        services.groups.start()
        transactions.start()
        return cls(world, services)

    async def close(self) -> None:
        await self.services.groups.close()
        await self.services.transactions.close()
        await self.services.view.close()

    async def ask(self, key: int, version: int, body: dict[str, Any], client_id: str = "tester") -> Any:
        """kio's dataclass of the answer."""
        frame = codec.write_request(key, version, 7, client_id, body)[SIZE_BYTES:]
        answer = await self.dispatcher.handle(self.connection, frame)
        assert answer is not None
        written = as_bytes(answer)
        assert int.from_bytes(written[:SIZE_BYTES], "big") == len(written) - SIZE_BYTES
        response = codec.parse_response(key, version, written[SIZE_BYTES:])
        assert response.correlation_id == 7
        return response.body

    async def topic(self, name: str = "t", partitions: int = 2, **settings: str) -> str:
        """Made by its own request; returns its id. Settings are written with _ for the dot."""
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in settings.items()]
        wanted = {"name": name, "num_partitions": partitions, "replication_factor": 1, "configs": configs}
        made = await self.ask(19, 7, {"topics": [wanted], "timeout": 1000})
        assert made.topics[0].error_code == 0, made.topics[0].error_message
        return str(made.topics[0].topic_id.hex)

    async def produce(self, name: str, *values: str, partition: int = 0, **batch: Any) -> Any:
        """One batch; the answer for its partition."""
        records = make_batch([value.encode() for value in values], timestamp_ms=self.world.clock.now_ms(), **batch)
        return await self.send(name, records, partition)

    async def send(self, name: str, records: bytes, partition: int = 0, version: int = 12) -> Any:
        data = [{"name": name, "partition_data": [{"index": partition, "records": records}]}]
        answer = await self.ask(0, version, {"acks": -1, "timeout": 5000, "topic_data": data})
        return answer.responses[0].partition_responses[0]

    async def log_of(self, name: str, number: int = 0) -> PartitionId:
        return await self.services.view.partition(name, number)

    async def offset(self, name: str, timestamp: int, partition: int = 0) -> int:
        wanted = [{"partition_index": partition, "timestamp": timestamp}]
        answer = await self.ask(2, 11, {"replica_id": -1, "topics": [{"name": name, "partitions": wanted}]})
        return int(answer.topics[0].partitions[0].offset)
