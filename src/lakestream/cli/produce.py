"""`lakestream produce TOPIC`: sends each line of standard input as a record, and prints how many were acknowledged."""

import argparse
import sys
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from lakestream.aio.progress import reported
from lakestream.cli.exit_status import fail
from lakestream.cli.output import record_json
from lakestream.cli.output.kafka_client import (
    RESPONSE_S_MAX,
    config_of,
    message_of,
    topics_of,
    with_reason,
)
from lakestream.cli.output.record_json import Record
from lakestream.cli.output.text import plural
from lakestream.cli.server import add_server
from lakestream.errors import LakestreamError, Rejected

ACK_MS_MAX: Final = 30_000
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    add_server(parser)
    parser.add_argument("--key-separator", metavar="TEXT", help="each line is a key, this text, and a value")
    parser.add_argument("--json", action="store_true", help="each line is {key, value, headers, partition, timestamp}")
    parser.add_argument("--compression", choices=CODECS, default="none")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    producer = Producer(
        config_of(
            arguments.bootstrap,
            **{
                "enable.idempotence": True,
                "compression.type": arguments.compression,
                "message.timeout.ms": ACK_MS_MAX,
                "message.max.bytes": 100_000_000,  # the topic's own max.message.bytes applies
            },
        )
    )
    is_new = arguments.topic not in topics_of(producer, arguments.bootstrap)
    sending = Sending(producer, arguments.topic)
    try:
        _send_lines(sending, arguments)
    finally:
        sending.finish()
        if is_new:
            _print_created(producer, arguments)
        print(f"{plural(sending.acknowledged, 'record')} acknowledged", flush=True)
    if sending.failed:
        return fail(f"{plural(sending.failed, 'record')} not acknowledged: {with_reason(sending.reason)}", 1)
    return 0


def _print_created(producer: Producer, arguments: argparse.Namespace) -> None:
    """Prints that the broker created the topic, unless it does not create missing topics."""
    created = topics_of(producer, arguments.bootstrap).get(arguments.topic)
    if created is not None:
        print(f"topic {arguments.topic} did not exist: created with {plural(len(created.partitions), 'partition')}")


def _send_lines(sending: "Sending", arguments: argparse.Namespace) -> None:
    separator = None if arguments.key_separator is None else arguments.key_separator.encode()
    for number, line in enumerate(sys.stdin.buffer, 1):
        bare = line.removesuffix(b"\n").removesuffix(b"\r")
        if arguments.json and not bare.strip():
            continue
        try:
            sending.send(record_json.from_json(bare) if arguments.json else record_json.from_line(bare, separator))
        except LakestreamError as error:
            raise Rejected(f"line {number}: {error}") from error


class Sending:
    """Sends records, and counts those that are acknowledged and those that fail."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self.acknowledged = 0
        self.failed = 0
        self.reason = ""

    def send(self, record: Record) -> None:
        optional: dict[str, Any] = {}
        if record.partition is not None:
            optional["partition"] = record.partition
        if record.timestamp_ms is not None:
            optional["timestamp"] = record.timestamp_ms
        while True:
            try:
                self._producer.produce(
                    *(self._topic, record.value, record.key),
                    headers=list(record.headers),
                    on_delivery=self._delivered,
                    **optional,
                )
                self._producer.poll(0)
                return
            except BufferError:  # the queue of the producer is full
                self._producer.poll(0.1)
            except KafkaException as error:
                raise Rejected(message_of(error)) from error

    def finish(self) -> None:
        """Waits for all responses. It ends because each record has a timeout."""
        with reported("waiting for acknowledgements"):
            while self._producer.flush(RESPONSE_S_MAX):
                pass

    def _delivered(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1
            self.reason = self.reason or error.str()
