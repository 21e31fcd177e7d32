"""Stock clients with transactions, behind one interface. Calls block; those of aiokafka run their own event loop.

All use the first version of the transaction protocol (AddPartitionsToTxn requests, a constant epoch). Only Java uses
the second.
"""

import asyncio
import itertools
import socket
import time
import warnings
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, TypeVar

import aiokafka  # type: ignore[import-untyped]
import confluent_kafka

from lakestream.protocol.kafka.wire import codec
from lakestream.testing.brokers import BrokerProcess, BrokerProcesses

with warnings.catch_warnings():  # kafka-python uses functions that Python 3.11 deprecates
    warnings.simplefilter("ignore")
    import kafka  # type: ignore[import-untyped]

T = TypeVar("T")

WAIT_S: Final = 60.0
FIND_COORDINATOR: Final = 10
TRANSACTION: Final = 1


class TransactionalClient(Protocol):
    name: ClassVar[str]

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        """Initializes the transactional id, which fences its previous producer."""

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Sends a record and waits for its acknowledgement."""

    def send_async(self, topic: str, partition: int, value: bytes) -> None:
        """Sends a record without waiting for its acknowledgement; the commit waits for it."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def transform(self, source: str, target: str, group: str, count: int) -> int:
        """Copies at least `count` records to the same partitions of `target`, in transactions with their offsets.

        Reads as a member of the group. Aborts every second transaction, and reads its records again. Returns the
        number of committed records."""

    def close(self) -> None: ...


class Confluent:
    name: ClassVar[str] = "confluent-kafka"

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._bootstrap = bootstrap
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "message.timeout.ms": min(timeout_ms, 60_000),
                "linger.ms": 0,
                "reconnect.backoff.max.ms": 500,  # the default is a wait of up to ten seconds for a dead broker
            }
        )
        self._producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        errors: list[Any] = []
        self._producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: errors.append(error))
        while not errors:
            self._producer.poll(0.1)
        if errors[0] is not None:
            raise confluent_kafka.KafkaException(errors[0])

    def send_async(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.produce(topic, value, partition=partition)

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)

    def transform(self, source: str, target: str, group: str, count: int) -> int:
        settings = {"group.id": group, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        connection = {"bootstrap.servers": self._bootstrap, "enable.auto.commit": False, "session.timeout.ms": 10_000}
        consumer = confluent_kafka.Consumer(connection | settings)
        consumer.subscribe([source])
        transactions, left = 0, count
        while left > 0:
            messages = consumer.consume(7, 0.5)
            if not messages:
                continue
            transactions += 1
            self.begin()
            for message in messages:
                assert message.error() is None, message.error()
                partition = message.partition()
                assert partition is not None
                self._producer.produce(target, message.value(), partition=partition)
            positions = consumer.position(consumer.assignment())
            self._producer.send_offsets_to_transaction(
                [position for position in positions if position.offset >= 0], consumer.consumer_group_metadata(), WAIT_S
            )
            if transactions % 2:
                self.abort()
                for message in reversed(messages):
                    where = confluent_kafka.TopicPartition(source, message.partition() or 0, message.offset() or 0)
                    consumer.seek(where)
            else:
                self.commit()
                left -= len(messages)
        consumer.close()
        return count - left

    def close(self) -> None:
        del self._producer


class KafkaPython:
    name: ClassVar[str] = "kafka-python"

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._bootstrap = bootstrap.split(",")
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=self._bootstrap, transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(topic, value, partition=partition).get(WAIT_S)

    def send_async(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(topic, value, partition=partition)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def transform(self, source: str, target: str, group: str, count: int) -> int:
        consumer = kafka.KafkaConsumer(
            source,
            bootstrap_servers=self._bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
            max_poll_records=7,
        )
        transactions, left = 0, count
        while left > 0:
            batches = consumer.poll(500)
            if not batches:
                continue
            transactions += 1
            self.begin()
            for where, records in batches.items():
                for record in records:
                    self._producer.send(target, record.value, partition=where.partition)
            offsets = {
                where: kafka.OffsetAndMetadata(records[-1].offset + 1, "", -1) for where, records in batches.items()
            }
            self._producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            if transactions % 2:
                self.abort()
                for where, records in batches.items():
                    consumer.seek(where, records[0].offset)
            else:
                self.commit()
                left -= sum(map(len, batches.values()))
        consumer.close()
        return count - left

    def close(self) -> None:
        self._producer.close(10)


class AioKafka:
    name: ClassVar[str] = "aiokafka"

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        self._bootstrap = bootstrap.split(",")
        self._runner = asyncio.Runner()
        self._producer: Any = None

        async def start() -> None:
            self._producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self._bootstrap,
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
            )
            await self._producer.start()

        self._run(start())

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, WAIT_S))

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._run(self._producer.send_and_wait(topic, value, partition=partition))

    def send_async(self, topic: str, partition: int, value: bytes) -> None:
        self._run(self._producer.send(topic, value, partition=partition))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def transform(self, source: str, target: str, group: str, count: int) -> int:
        return self._run(self._transform(source, target, group, count))

    async def _transform(self, source: str, target: str, group: str, count: int) -> int:
        consumer = aiokafka.AIOKafkaConsumer(
            source,
            bootstrap_servers=self._bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            isolation_level="read_committed",
        )
        await consumer.start()
        transactions, left = 0, count
        while left > 0:
            batches: Mapping[Any, Sequence[Any]] = await consumer.getmany(timeout_ms=500, max_records=7)
            if not batches:
                continue
            transactions += 1
            await self._producer.begin_transaction()
            for where, records in batches.items():
                for record in records:
                    await self._producer.send(target, record.value, partition=where.partition)
            offsets = {where: records[-1].offset + 1 for where, records in batches.items()}
            await self._producer.send_offsets_to_transaction(offsets, group)
            if transactions % 2:
                await self._producer.abort_transaction()
                for where, records in batches.items():
                    consumer.seek(where, records[0].offset)
            else:
                await self._producer.commit_transaction()
                left -= sum(map(len, batches.values()))
        await consumer.stop()
        return count - left

    def close(self) -> None:
        self._run(self._producer.stop())
        self._runner.close()


TRANSACTIONAL_CLIENTS: Final[dict[str, type[TransactionalClient]]] = {
    writer.name: writer for writer in (Confluent, KafkaPython, AioKafka)
}


class Reader:
    """Reads of committed records, with the isolation level of each client."""

    @staticmethod
    def confluent(bootstrap: str, topic: str, partition: int, count: int, quiet_s: float) -> list[bytes]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "none",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0)])
        values: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            message = consumer.poll(quiet_s if len(values) >= count else 0.5)
            if message is not None and message.error() is None:
                values.append(message.value() or b"")
            elif message is None and len(values) >= count:
                break
        consumer.close()
        return values

    @staticmethod
    def kafka_python(bootstrap: str, topic: str, partition: int, count: int, quiet_s: float) -> list[bytes]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap.split(","), enable_auto_commit=False, isolation_level="read_committed"
        )
        where = kafka.TopicPartition(topic, partition)
        consumer.assign([where])
        consumer.seek_to_beginning(where)
        values: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            records = consumer.poll(int(1000 * quiet_s) if len(values) >= count else 500).get(where, ())
            values += [record.value for record in records]
            if not records and len(values) >= count:
                break
        consumer.close()
        return values

    @staticmethod
    def aiokafka(bootstrap: str, topic: str, partition: int, count: int, quiet_s: float) -> list[bytes]:
        async def read() -> list[bytes]:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap.split(","), enable_auto_commit=False, isolation_level="read_committed"
            )
            where = aiokafka.TopicPartition(topic, partition)
            await consumer.start()
            values: list[bytes] = []
            try:
                consumer.assign([where])
                await consumer.seek_to_beginning(where)
                deadline = time.monotonic() + WAIT_S
                while time.monotonic() < deadline:
                    wait_ms = int(1000 * quiet_s) if len(values) >= count else 500
                    records = (await consumer.getmany(where, timeout_ms=wait_ms)).get(where, ())
                    values += [record.value for record in records]
                    if not records and len(values) >= count:
                        break
            finally:
                await consumer.stop()
            return values

        return asyncio.run(read())


READERS: Final = {
    "confluent-kafka": Reader.confluent,
    "kafka-python": Reader.kafka_python,
    "aiokafka": Reader.aiokafka,
}


def read_committed(
    bootstrap: str, topic: str, partition: int, count: int, quiet_s: float = 0.4, client: str = "confluent-kafka"
) -> list[bytes]:
    """Reads at least `count` records, and all further records that arrive before a pause of `quiet_s`."""
    return READERS[client](bootstrap, topic, partition, count, quiet_s)


def coordinator_of(cluster: BrokerProcesses, transactional_id: str) -> BrokerProcess:
    """Returns the coordinator of a transactional id, from the first broker that can be reached."""
    deadline = time.monotonic() + WAIT_S
    for member in itertools.cycle(cluster):
        try:
            port = _coordinator_port(member, transactional_id)
            return next(broker for broker in cluster if broker.port == port)
        except OSError:
            assert time.monotonic() < deadline, "no broker can be reached"
            time.sleep(0.05)
    raise AssertionError("unreachable")


def _coordinator_port(member: BrokerProcess, transactional_id: str) -> int:
    body = {"key": transactional_id, "key_type": TRANSACTION}
    with (
        socket.create_connection(("127.0.0.1", member.port), timeout=10) as connection,
        connection.makefile("rb") as responses,
    ):
        connection.sendall(codec.write_request(FIND_COORDINATOR, 2, 1, "tests", body))
        size = int.from_bytes(responses.read(4), "big")
        coordinator = codec.parse_response(FIND_COORDINATOR, 2, responses.read(size)).body
    if coordinator.error_code != 0:
        raise ConnectionError(f"no coordinator: {coordinator}")
    return int(coordinator.port)
