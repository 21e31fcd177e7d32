"""Reads one topic and writes another, exactly once: consume, transform, produce, with confluent-kafka.

    .venv/bin/python examples/transform.py lines loud-lines

What is written and how far it has read are one transaction: whoever reads committed records of the second topic finds
every line once, however often this is killed, and however many of it run (each with a --name of its own).
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
            "group.instance.id": name,  # one that comes back after a kill has its partitions again at once
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,  # the transaction commits how far it has read
        }
    )
    producer.init_transactions()  # whoever wrote under this name before is fenced, and what it left open is aborted
    consumer.subscribe([source])
    try:
        while True:
            messages = [one for one in consumer.consume(BATCH, POLL_S) if one.error() is None]
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
            raise  # such as: another one runs under this name
        producer.abort_transaction()
        go_back(consumer, messages)
        print(f"aborted, and read again: {error}", flush=True)


def go_back(consumer: Consumer, messages: list[Any]) -> None:
    first = {(one.topic(), one.partition()): one.offset() for one in reversed(messages)}
    mine = {(one.topic, one.partition) for one in consumer.assignment()}
    for (topic, partition), offset in first.items():
        if (topic, partition) in mine:
            consumer.seek(TopicPartition(topic, partition, offset))


def main() -> None:
    parser = argparse.ArgumentParser(description="copies a topic into another one, in capitals, exactly once")
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--name", default="transform-1", help="two that run at once need two names")
    chosen = parser.parse_args()
    try:
        run(chosen.bootstrap, chosen.name, chosen.source, chosen.target)
    except KeyboardInterrupt:
        print("stopped")


if __name__ == "__main__":
    main()
