"""Stock Kafka clients behind one interface, so that each test can run with each of them.

Every call creates the client's own producer, consumer or admin with its defaults, sends idempotently with acks=all, and
reads by assignment. Calls block; those of aiokafka run their own event loop.
"""

import asyncio
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Protocol, TypeVar

import aiokafka  # type: ignore[import-untyped]
import aiokafka.admin  # type: ignore[import-untyped]
import confluent_kafka
import confluent_kafka.admin
from confluent_kafka.cimpl import NewTopic

with warnings.catch_warnings():  # kafka-python uses functions that Python 3.11 deprecates
    warnings.simplefilter("ignore")
    import kafka  # type: ignore[import-untyped]
    import kafka.admin  # type: ignore[import-untyped]

T = TypeVar("T")

WAIT_S: Final = 60.0
RECORD_BYTES_MAX: Final = 32 << 20


@dataclass(frozen=True)
class Record:
    value: bytes | None = b""
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0
    offset: int | None = None

    def at(self, offset: int, timestamp_ms: int) -> "Record":
        """Returns the record as a consumer should read it."""
        return replace(self, offset=offset, timestamp_ms=self.timestamp_ms or timestamp_ms)


def ignore(record: Record) -> None: ...


class Client(Protocol):
    name: ClassVar[str]
    codecs: ClassVar[tuple[str, ...]]
    sends_null_headers: ClassVar[bool]

    def __init__(self, bootstrap: str, client_id: str = "tests") -> None: ...

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None: ...

    def delete_topic(self, name: str) -> None: ...

    def produce(
        self,
        topic: str,
        records: Iterable[Record],
        codec: str = "none",
        pause_s: float = 0.0,
        on_ack: Callable[[Record], None] = ignore,
    ) -> list[int]:
        """Sends records and returns their offsets, in order."""

    def read(
        self, topic: str, start: int | str, count: int, partition: int = 0, on_record: Callable[[Record], None] = ignore
    ) -> list[Record]:
        """Reads `count` records from an offset, or from "earliest" or "latest"."""

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        """Returns the first offset, and the offset after the last record."""

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None: ...


class Confluent:
    name: ClassVar[str] = "confluent-kafka"
    codecs: ClassVar[tuple[str, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")
    sends_null_headers: ClassVar[bool] = True

    def __init__(self, bootstrap: str, client_id: str = "tests") -> None:
        self._common: dict[str, Any] = {"bootstrap.servers": bootstrap, "client.id": client_id}

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        new = NewTopic(name, partitions, config=dict(configs or {}))
        admin = self._admin()  # the admin client must outlive the call
        admin.create_topics([new])[name].result(WAIT_S)

    def delete_topic(self, name: str) -> None:
        admin = self._admin()
        admin.delete_topics([name])[name].result(WAIT_S)

    def produce(
        self,
        topic: str,
        records: Iterable[Record],
        codec: str = "none",
        pause_s: float = 0.0,
        on_ack: Callable[[Record], None] = ignore,
    ) -> list[int]:
        producer = confluent_kafka.Producer(
            self._common
            | {
                "enable.idempotence": True,
                "compression.type": codec,
                "message.max.bytes": RECORD_BYTES_MAX,
                "linger.ms": 0 if pause_s else 5,
            }
        )
        offsets: dict[int, int] = {}
        for number, record in enumerate(records):

            def on_delivery(error: Any, message: Any, number: int = number, record: Record = record) -> None:
                if error is not None:
                    raise confluent_kafka.KafkaException(error)
                offsets[number] = message.offset()
                on_ack(replace(record, offset=message.offset()))

            producer.produce(
                topic,
                record.value,
                record.key,
                record.partition,
                on_delivery=on_delivery,
                timestamp=record.timestamp_ms or 0,
                headers=list(record.headers) or None,
            )
            producer.poll(pause_s)
        assert producer.flush(WAIT_S) == 0, "not all records were acknowledged"
        return [offsets[number] for number in sorted(offsets)]

    def read(
        self, topic: str, start: int | str, count: int, partition: int = 0, on_record: Callable[[Record], None] = ignore
    ) -> list[Record]:
        special = {"earliest": confluent_kafka.OFFSET_BEGINNING, "latest": confluent_kafka.OFFSET_END}
        offset = special[start] if isinstance(start, str) else start
        consumer = self._consumer()
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, offset)])
        records: list[Record] = []
        deadline = time.monotonic() + WAIT_S
        try:
            while len(records) < count and time.monotonic() < deadline:
                message = consumer.poll(0.5)
                if message is None:
                    continue
                if message.error() is not None:
                    raise confluent_kafka.KafkaException(message.error())
                records.append(
                    Record(
                        message.value(),
                        message.key(),
                        tuple(message.headers() or ()),
                        message.timestamp()[1],
                        message.partition(),
                        message.offset(),
                    )
                )
                on_record(records[-1])
        finally:
            consumer.close()
        return records

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        consumer = self._consumer()
        try:
            topic_partition = confluent_kafka.TopicPartition(topic, partition)
            start, end = consumer.get_watermark_offsets(topic_partition, timeout=WAIT_S)
            return start, end
        finally:
            consumer.close()

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        consumer = self._consumer()
        try:
            (result,) = consumer.offsets_for_times(
                [confluent_kafka.TopicPartition(topic, partition, timestamp_ms)], timeout=WAIT_S
            )
            return None if result.offset == confluent_kafka.OFFSET_END else int(result.offset)
        finally:
            consumer.close()

    def _admin(self) -> Any:
        return confluent_kafka.admin.AdminClient(self._common)

    def _consumer(self) -> Any:
        # The client requires a group id; it joins no group and commits nothing.
        settings = {"group.id": "none", "enable.auto.commit": False, "fetch.message.max.bytes": RECORD_BYTES_MAX}
        return confluent_kafka.Consumer(self._common | settings)


class KafkaPython:
    name: ClassVar[str] = "kafka-python"
    codecs: ClassVar[tuple[str, ...]] = ("none", "gzip")  # the other codecs are separate packages
    sends_null_headers: ClassVar[bool] = False

    def __init__(self, bootstrap: str, client_id: str = "tests") -> None:
        self._common: dict[str, Any] = {"bootstrap_servers": bootstrap.split(","), "client_id": client_id}

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        with kafka.admin.KafkaAdminClient(**self._common) as admin:
            admin.create_topics([kafka.admin.NewTopic(name, partitions, 1, topic_configs=dict(configs or {}))])

    def delete_topic(self, name: str) -> None:
        with kafka.admin.KafkaAdminClient(**self._common) as admin:
            admin.delete_topics([name])

    def produce(
        self,
        topic: str,
        records: Iterable[Record],
        codec: str = "none",
        pause_s: float = 0.0,
        on_ack: Callable[[Record], None] = ignore,
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            **self._common,
            enable_idempotence=True,
            acks="all",
            compression_type=None if codec == "none" else codec,
            max_request_size=RECORD_BYTES_MAX,
        )
        sent = []
        try:
            for record in records:
                future = producer.send(
                    topic,
                    record.value,
                    record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                future.add_callback(lambda metadata, record=record: on_ack(replace(record, offset=metadata.offset)))
                sent.append(future)
                if pause_s:
                    time.sleep(pause_s)
            return [future.get(timeout=WAIT_S).offset for future in sent]
        finally:
            producer.close()

    def read(
        self, topic: str, start: int | str, count: int, partition: int = 0, on_record: Callable[[Record], None] = ignore
    ) -> list[Record]:
        consumer, topic_partition = self._consumer(topic, partition)
        records: list[Record] = []
        deadline = time.monotonic() + WAIT_S
        try:
            if start == "earliest":
                consumer.seek_to_beginning(topic_partition)
            elif start == "latest":
                consumer.seek_to_end(topic_partition)
            else:
                consumer.seek(topic_partition, start)
            while len(records) < count and time.monotonic() < deadline:
                for message in consumer.poll(500).get(topic_partition, ()):
                    records.append(
                        Record(
                            message.value,
                            message.key,
                            tuple(message.headers),
                            message.timestamp,
                            message.partition,
                            message.offset,
                        )
                    )
                    on_record(records[-1])
        finally:
            consumer.close()
        return records[:count]

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        consumer, topic_partition = self._consumer(topic, partition)
        try:
            return consumer.beginning_offsets([topic_partition])[topic_partition], consumer.end_offsets(
                [topic_partition]
            )[topic_partition]
        finally:
            consumer.close()

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        consumer, topic_partition = self._consumer(topic, partition)
        try:
            result = consumer.offsets_for_times({topic_partition: timestamp_ms})[topic_partition]
            return None if result is None else int(result.offset)
        finally:
            consumer.close()

    def _consumer(self, topic: str, partition: int) -> tuple[Any, Any]:
        consumer = kafka.KafkaConsumer(
            **self._common, enable_auto_commit=False, max_partition_fetch_bytes=RECORD_BYTES_MAX
        )
        topic_partition = kafka.TopicPartition(topic, partition)
        consumer.assign([topic_partition])
        return consumer, topic_partition


class AioKafka:
    name: ClassVar[str] = "aiokafka"
    codecs: ClassVar[tuple[str, ...]] = ("none", "gzip", "snappy", "lz4", "zstd")
    sends_null_headers: ClassVar[bool] = True

    def __init__(self, bootstrap: str, client_id: str = "tests") -> None:
        self._common: dict[str, Any] = {"bootstrap_servers": bootstrap.split(","), "client_id": client_id}

    def create_topic(self, name: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        async def create() -> None:
            admin = aiokafka.admin.AIOKafkaAdminClient(**self._common)
            await admin.start()
            try:
                new = aiokafka.admin.NewTopic(name, partitions, 1, topic_configs=dict(configs or {}))
                response = await admin.create_topics([new])
                assert [error[1] for error in response.topic_errors] == [0], response
            finally:
                await admin.close()

        asyncio.run(create())

    def delete_topic(self, name: str) -> None:
        async def delete() -> None:
            admin = aiokafka.admin.AIOKafkaAdminClient(**self._common)
            await admin.start()
            try:
                response = await admin.delete_topics([name])
                assert [error[1] for error in response.topic_error_codes] == [0], response
            finally:
                await admin.close()

        asyncio.run(delete())

    def produce(
        self,
        topic: str,
        records: Iterable[Record],
        codec: str = "none",
        pause_s: float = 0.0,
        on_ack: Callable[[Record], None] = ignore,
    ) -> list[int]:
        async def acknowledged(record: Record, future: Any) -> int:
            offset = int((await future).offset)
            on_ack(replace(record, offset=offset))
            return offset

        async def produce() -> list[int]:
            producer = aiokafka.AIOKafkaProducer(
                **self._common,
                enable_idempotence=True,
                compression_type=None if codec == "none" else codec,
                max_request_size=RECORD_BYTES_MAX,
            )
            await producer.start()
            try:
                waiting = []
                for record in records:
                    future = await producer.send(
                        topic,
                        record.value,
                        record.key,
                        record.partition,
                        record.timestamp_ms,
                        list(record.headers),
                    )
                    waiting.append(asyncio.ensure_future(acknowledged(record, future)))
                    if pause_s:
                        await asyncio.sleep(pause_s)
                async with asyncio.timeout(WAIT_S):
                    return list(await asyncio.gather(*waiting))
            finally:
                await producer.stop()

        return asyncio.run(produce())

    def read(
        self, topic: str, start: int | str, count: int, partition: int = 0, on_record: Callable[[Record], None] = ignore
    ) -> list[Record]:
        async def read(consumer: Any, topic_partition: Any) -> list[Record]:
            if start == "earliest":
                await consumer.seek_to_beginning(topic_partition)
            elif start == "latest":
                await consumer.seek_to_end(topic_partition)
            else:
                consumer.seek(topic_partition, start)
            records: list[Record] = []
            deadline = time.monotonic() + WAIT_S
            while len(records) < count and time.monotonic() < deadline:
                for message in (await consumer.getmany(topic_partition, timeout_ms=500)).get(topic_partition, ()):
                    records.append(
                        Record(
                            message.value,
                            message.key,
                            tuple(message.headers),
                            message.timestamp,
                            message.partition,
                            message.offset,
                        )
                    )
                    on_record(records[-1])
            return records[:count]

        return self._with_consumer(topic, partition, read)

    def bounds(self, topic: str, partition: int = 0) -> tuple[int, int]:
        async def bounds(consumer: Any, topic_partition: Any) -> tuple[int, int]:
            start, end = (
                await consumer.beginning_offsets([topic_partition]),
                await consumer.end_offsets([topic_partition]),
            )
            return start[topic_partition], end[topic_partition]

        return self._with_consumer(topic, partition, bounds)

    def offset_at(self, topic: str, timestamp_ms: int, partition: int = 0) -> int | None:
        async def offset_at(consumer: Any, topic_partition: Any) -> int | None:
            result = (await consumer.offsets_for_times({topic_partition: timestamp_ms}))[topic_partition]
            return None if result is None else int(result.offset)

        return self._with_consumer(topic, partition, offset_at)

    def _with_consumer(self, topic: str, partition: int, use: Callable[[Any, Any], Awaitable[T]]) -> T:
        async def run() -> T:
            consumer = aiokafka.AIOKafkaConsumer(
                **self._common, enable_auto_commit=False, max_partition_fetch_bytes=RECORD_BYTES_MAX
            )
            topic_partition = aiokafka.TopicPartition(topic, partition)
            await consumer.start()
            try:
                consumer.assign([topic_partition])
                return await use(consumer, topic_partition)
            finally:
                await consumer.stop()

        return asyncio.run(run())


CLIENTS: Final[dict[str, type[Client]]] = {client.name: client for client in (Confluent, KafkaPython, AioKafka)}
