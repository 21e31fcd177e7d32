"""Stock clients in transactions, behind one small face. Calls block; those of aiokafka run a loop of their own.

All of them speak the older protocol: partitions are added by request, and the epoch stays. Java speaks the newer one.
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

from lakestream.protocol.kafka import codec
from lakestream.testing.brokers import BrokerProcess, Brokers

with warnings.catch_warnings():  # it loads its schemas in a way that Python 3.11 calls old
    warnings.simplefilter("ignore")
    import kafka  # type: ignore[import-untyped]

T = TypeVar("T")

WAIT_S: Final = 60.0
FIND_COORDINATOR: Final = 10
TRANSACTION: Final = 1


class Writer(Protocol):
    name: ClassVar[str]

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 60_000) -> None:
        """Begins under the id: fences whoever wrote under it before."""

    def begin(self) -> None: ...

    def send(self, topic: str, partition: int, value: bytes) -> None:
        """Returns when it is stored."""

    def post(self, topic: str, partition: int, value: bytes) -> None:
        """Stored when the transaction is committed."""

    def commit(self) -> None: ...

    def abort(self) -> None: ...

    def transform(self, source: str, target: str, group: str, count: int) -> int:
        """Reads `count` records or some more as a member of the group, and writes each to the same partition of the
        other topic, in transactions with the offsets in them. Every second one is aborted, and its records are read
        again. Returns how many were committed."""

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
                "reconnect.backoff.max.ms": 500,  # else it waits up to ten seconds for a broker that is gone
            }
        )
        self._producer.init_transactions(WAIT_S)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        failed: list[Any] = []
        self._producer.produce(topic, value, partition=partition, on_delivery=lambda error, _: failed.append(error))
        while not failed:
            self._producer.poll(0.1)
        if failed[0] is not None:
            raise confluent_kafka.KafkaException(failed[0])

    def post(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.produce(topic, value, partition=partition)

    def commit(self) -> None:
        self._producer.commit_transaction(WAIT_S)

    def abort(self) -> None:
        self._producer.abort_transaction(WAIT_S)

    def transform(self, source: str, target: str, group: str, count: int) -> int:
        settings = {"group.id": group, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        own = {"bootstrap.servers": self._bootstrap, "enable.auto.commit": False, "session.timeout.ms": 10_000}
        consumer = confluent_kafka.Consumer(own | settings)
        consumer.subscribe([source])
        turn, left = 0, count
        while left > 0:
            messages = consumer.consume(7, 0.5)
            if not messages:
                continue
            turn += 1
            self.begin()
            for message in messages:
                assert message.error() is None, message.error()
                partition = message.partition()
                assert partition is not None
                self._producer.produce(target, message.value(), partition=partition)
            positions = consumer.position(consumer.assignment())
            self._producer.send_offsets_to_transaction(
                [one for one in positions if one.offset >= 0], consumer.consumer_group_metadata(), WAIT_S
            )
            if turn % 2:
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

    def post(self, topic: str, partition: int, value: bytes) -> None:
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
        turn, left = 0, count
        while left > 0:
            found = consumer.poll(500)
            if not found:
                continue
            turn += 1
            self.begin()
            for where, records in found.items():
                for record in records:
                    self._producer.send(target, record.value, partition=where.partition)
            offsets = {
                where: kafka.OffsetAndMetadata(records[-1].offset + 1, "", -1) for where, records in found.items()
            }
            self._producer.send_offsets_to_transaction(offsets, consumer.group_metadata())
            if turn % 2:
                self.abort()
                for where, records in found.items():
                    consumer.seek(where, records[0].offset)
            else:
                self.commit()
                left -= sum(map(len, found.values()))
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

    def post(self, topic: str, partition: int, value: bytes) -> None:
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
        turn, left = 0, count
        while left > 0:
            found: Mapping[Any, Sequence[Any]] = await consumer.getmany(timeout_ms=500, max_records=7)
            if not found:
                continue
            turn += 1
            await self._producer.begin_transaction()
            for where, records in found.items():
                for record in records:
                    await self._producer.send(target, record.value, partition=where.partition)
            offsets = {where: records[-1].offset + 1 for where, records in found.items()}
            await self._producer.send_offsets_to_transaction(offsets, group)
            if turn % 2:
                await self._producer.abort_transaction()
                for where, records in found.items():
                    consumer.seek(where, records[0].offset)
            else:
                await self._producer.commit_transaction()
                left -= sum(map(len, found.values()))
        await consumer.stop()
        return count - left

    def close(self) -> None:
        self._run(self._producer.stop())
        self._runner.close()


WRITERS: Final[dict[str, type[Writer]]] = {writer.name: writer for writer in (Confluent, KafkaPython, AioKafka)}


class Reader:
    """Of committed records, all that there are, by the clients' own means."""

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
        found: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            message = consumer.poll(quiet_s if len(found) >= count else 0.5)
            if message is not None and message.error() is None:
                found.append(message.value() or b"")
            elif message is None and len(found) >= count:
                break
        consumer.close()
        return found

    @staticmethod
    def kafka_python(bootstrap: str, topic: str, partition: int, count: int, quiet_s: float) -> list[bytes]:
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap.split(","), enable_auto_commit=False, isolation_level="read_committed"
        )
        where = kafka.TopicPartition(topic, partition)
        consumer.assign([where])
        consumer.seek_to_beginning(where)
        found: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            some = consumer.poll(int(1000 * quiet_s) if len(found) >= count else 500).get(where, ())
            found += [record.value for record in some]
            if not some and len(found) >= count:
                break
        consumer.close()
        return found

    @staticmethod
    def aiokafka(bootstrap: str, topic: str, partition: int, count: int, quiet_s: float) -> list[bytes]:
        async def read() -> list[bytes]:
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap.split(","), enable_auto_commit=False, isolation_level="read_committed"
            )
            where = aiokafka.TopicPartition(topic, partition)
            await consumer.start()
            found: list[bytes] = []
            try:
                consumer.assign([where])
                await consumer.seek_to_beginning(where)
                deadline = time.monotonic() + WAIT_S
                while time.monotonic() < deadline:
                    wait_ms = int(1000 * quiet_s) if len(found) >= count else 500
                    some = (await consumer.getmany(where, timeout_ms=wait_ms)).get(where, ())
                    found += [record.value for record in some]
                    if not some and len(found) >= count:
                        break
            finally:
                await consumer.stop()
            return found

        return asyncio.run(read())


READERS: Final = {
    "confluent-kafka": Reader.confluent,
    "kafka-python": Reader.kafka_python,
    "aiokafka": Reader.aiokafka,
}


def read_committed(
    bootstrap: str, topic: str, partition: int, count: int, quiet_s: float = 0.4, client: str = "confluent-kafka"
) -> list[bytes]:
    """At least `count` records, and whatever else is there."""
    return READERS[client](bootstrap, topic, partition, count, quiet_s)


def coordinator_of(cluster: Brokers, transactional_id: str) -> BrokerProcess:
    """As a broker says that can be reached."""
    deadline = time.monotonic() + WAIT_S
    for member in itertools.cycle(cluster):
        try:
            port = _coordinator_port(member, transactional_id)
            return next(one for one in cluster if one.port == port)
        except OSError:
            assert time.monotonic() < deadline, "no broker can be reached"
            time.sleep(0.05)
    raise AssertionError("unreachable")


def _coordinator_port(member: BrokerProcess, transactional_id: str) -> int:
    body = {"key": transactional_id, "key_type": TRANSACTION}
    with (
        socket.create_connection(("127.0.0.1", member.port), timeout=10) as connection,
        connection.makefile("rb") as answers,
    ):
        connection.sendall(codec.write_request(FIND_COORDINATOR, 2, 1, "tests", body))
        size = int.from_bytes(answers.read(4), "big")
        found = codec.parse_response(FIND_COORDINATOR, 2, answers.read(size)).body
    if found.error_code != 0:
        raise ConnectionError(f"it does not know: {found}")
    return int(found.port)
