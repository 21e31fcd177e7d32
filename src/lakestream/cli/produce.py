"""`lakestream produce TOPIC`: each line of standard input becomes a record; says how many were acknowledged."""

import argparse
import sys
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from lakestream.cli import records
from lakestream.cli.client import ANSWER_S_MAX, add_bootstrap, config_of, topics_of, why
from lakestream.cli.outcome import fail
from lakestream.cli.records import Record
from lakestream.cli.text import plural
from lakestream.errors import LakestreamError, Rejected

ACK_MS_MAX: Final = 30_000
CODECS: Final = ("none", "gzip", "snappy", "lz4", "zstd")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    add_bootstrap(parser)
    parser.add_argument("--key-separator", metavar="TEXT", help="each line is a key, this, and a value")
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
                "message.max.bytes": 100_000_000,  # what a topic takes is its own setting
            },
        )
    )
    topics_of(producer, arguments.bootstrap)
    sending = Sending(producer, arguments.topic)
    try:
        _send_lines(sending, arguments)
    finally:
        sending.finish()
        print(f"{plural(sending.acknowledged, 'record')} acknowledged", flush=True)
    if sending.failed:
        return fail(f"{plural(sending.failed, 'record')} not acknowledged: {sending.reason}", 1)
    return 0


def _send_lines(sending: "Sending", arguments: argparse.Namespace) -> None:
    separator = None if arguments.key_separator is None else arguments.key_separator.encode()
    for number, line in enumerate(sys.stdin.buffer, 1):
        bare = line.removesuffix(b"\n").removesuffix(b"\r")
        if arguments.json and not bare.strip():
            continue
        try:
            sending.send(records.from_json(bare) if arguments.json else records.from_line(bare, separator))
        except LakestreamError as error:
            raise Rejected(f"line {number}: {error}") from error


class Sending:
    """Counts what becomes of each record."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self._producer = producer
        self._topic = topic
        self.acknowledged = 0
        self.failed = 0
        self.reason = ""

    def send(self, record: Record) -> None:
        more: dict[str, Any] = {}
        if record.partition is not None:
            more["partition"] = record.partition
        if record.timestamp_ms is not None:
            more["timestamp"] = record.timestamp_ms
        while True:
            try:
                self._producer.produce(
                    self._topic, record.value, record.key, headers=list(record.headers), on_delivery=self._done, **more
                )
                self._producer.poll(0)
                return
            except BufferError:  # as much is under way as may be
                self._producer.poll(0.1)
            except KafkaException as error:
                raise Rejected(why(error)) from error

    def finish(self) -> None:
        """Wait for the answers; each record has its own time, so this ends."""
        while self._producer.flush(ANSWER_S_MAX):
            pass

    def _done(self, error: Any, message: Any) -> None:
        if error is None:
            self.acknowledged += 1
        else:
            self.failed += 1
            self.reason = self.reason or error.str()
