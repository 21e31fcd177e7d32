"""Consumes one topic and produces to another, exactly once, with confluent-kafka.

    .venv/bin/python examples/transform.py lines loud-lines

The produced records and the consumed offsets are committed in one transaction. A consumer of committed records of the
second topic reads every line once, even if this program is killed, and with any number of instances (each with its own
--name).
"""

import argparse
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

BATCH = 500
POLL_S = 0.5


def transformed(value: bytes) -> bytes:
    return value.upper()


def run(bootstrap: str, name: str, source: str, target: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": name})
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"transform-{source}-{target}",
            "group.instance.id": name,  # an instance keeps its partitions after a restart
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # the transaction commits the offsets
        }
    )
    producer.init_transactions()  # fences the previous producer with this name, and aborts its open transaction
    consumer.subscribe([source])
    try:
        while True:
            messages = [message for message in consumer.consume(BATCH, POLL_S) if message.error() is None]
            if messages:
                transform(consumer, producer, messages, target)
    finally:
        consumer.close()


def transform(consumer: Consumer, producer: Producer, messages: list[Any], target: str) -> None:
    producer.begin_transaction()
    try:
        for message in messages:
            producer.produce(target, transformed(message.value() or b""), message.key())
        producer.send_offsets_to_transaction(
            consumer.position(consumer.assignment()), consumer.consumer_group_metadata()
        )
        producer.commit_transaction()
        print(f"{len(messages)} lines", flush=True)
    except KafkaException as error:
        if not error.args[0].txn_requires_abort():
            raise  # for example fenced: another instance runs with this name
        producer.abort_transaction()
        rewind(consumer, messages)
        print(f"aborted, reads the lines again: {error}", flush=True)


def rewind(consumer: Consumer, messages: list[Any]) -> None:
    first = {(message.topic(), message.partition()): message.offset() for message in reversed(messages)}
    assigned = {(partition.topic, partition.partition) for partition in consumer.assignment()}
    for (topic, partition), offset in first.items():
        if (topic, partition) in assigned:
            consumer.seek(TopicPartition(topic, partition, offset))


def main() -> None:
    parser = argparse.ArgumentParser(description="copies a topic to another topic in capitals, exactly once")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument(
        "--name", default="transform-1", help="transactional id: concurrent instances need different names"
    )
    options = parser.parse_args()
    try:
        run(options.bootstrap, options.name, options.source, options.target)
    except KeyboardInterrupt:
        print("stopped")


if __name__ == "__main__":
    main()
