"""`lakestream consume TOPIC`: prints a topic's records from a given position on, and waits for more.

The consumer assigns itself the partitions: it joins no group, and commits no offsets.
"""

import argparse
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from lakestream.cli.exit_status import fail
from lakestream.cli.output import record_json
from lakestream.cli.output.kafka_client import (
    RESPONSE_S_MAX,
    WORK_S_MAX,
    admin_of,
    config_of,
    error_of,
    topic_of,
    topic_settings,
    with_reason,
)
from lakestream.cli.output.record_json import Record
from lakestream.cli.output.text import escaped
from lakestream.cli.output.value_decoder import NotDecodable, Registry, ValueDecoder
from lakestream.cli.server import add_server
from lakestream.coordination.config_values import schema_choice, schema_context
from lakestream.errors import Corrupt, Rejected, Unavailable
from lakestream.schemas.value_format import SchemaMode, ValuePart

POLL_S: Final = 0.2
POLL_RECORDS: Final = 1_000
REASONS_MAX: Final = 20
"""Reasons why values cannot be decoded that are reported."""
BOUNDS_SHOWN: Final = 10
"""Partitions whose offsets an error names."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    add_server(parser)
    parser.add_argument(
        "--from",
        dest="position",
        default="start",
        metavar="POSITION",
        help="start, end, an offset, or a time as 2026-01-31T12:00",
    )
    parser.add_argument("--partition", type=int, metavar="N", help="read this partition only")
    parser.add_argument("--count", type=int, metavar="N", help="end after N records")
    parser.add_argument(
        "--follow", action=argparse.BooleanOptionalAction, default=True, help="wait for more at the end"
    )
    parser.add_argument("--key-separator", metavar="TEXT", help="print the key and this before each value")
    parser.add_argument("--json", action="store_true", help="print one object per line, as produce --json reads them")
    parser.add_argument("--raw", action="store_true", help="print the stored bytes, without decoding or escaping them")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    position = parse_position(arguments.position)
    consumer = Consumer(
        config_of(
            arguments.bootstrap,
            **{
                "group.id": "lakestream-cli",  # librdkafka requires one; the consumer joins no group
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error" if arguments.position.isdecimal() else "earliest",
            },
        )
    )
    try:
        numbers = _partitions(consumer, arguments)
        try:
            _print(_read(consumer, arguments, numbers, position), arguments, _decoders(arguments))
        except KafkaException as error:
            raise error_of(error, f"topic {arguments.topic} cannot be read") from error
    finally:
        consumer.close()
    return 0


def parse_position(text: str, flag: str = "--from") -> int | datetime:
    """Returns where to start: a time, an offset, or one of the client's two special offsets."""
    if text in ("start", "end"):
        return OFFSET_BEGINNING if text == "start" else OFFSET_END
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Rejected(f"{flag} {text!r}: give start, end, an offset, or a time as 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.astimezone(UTC)


def _partitions(consumer: Consumer, arguments: argparse.Namespace) -> list[int]:
    numbers = sorted(topic_of(consumer, arguments.bootstrap, arguments.topic).partitions)
    if arguments.partition is None:
        return numbers
    if arguments.partition not in numbers:
        raise Rejected(f"topic {arguments.topic} has no partition {arguments.partition}, only 0 to {numbers[-1]}")
    return [arguments.partition]


def _read(
    consumer: Consumer, arguments: argparse.Namespace, numbers: list[int], position: int | datetime
) -> Iterator[list[Any]]:
    """Yields messages in groups as they arrive. Without --follow it ends at the partitions' current ends."""
    ends = None
    offset = position if isinstance(position, int) and position >= 0 else None
    if not arguments.follow or offset is not None:
        bounds = {number: _bounds(consumer, arguments.topic, number) for number in numbers}
        if offset is not None:
            check_offset(arguments.topic, offset, bounds)
        if not arguments.follow:
            ends = {number: end for number, (_, end) in bounds.items()}
    consumer.assign(_starts(consumer, arguments.topic, numbers, position))
    left = arguments.count
    while left != 0 and (ends is None or ends):
        polled = consumer.consume(POLL_RECORDS if left is None else min(left, POLL_RECORDS), POLL_S)
        messages = [message for message in polled if _is_record(message, arguments.topic, ends)]
        if messages:
            yield messages
        if left is not None:
            left -= len(messages)


def _is_record(message: Any, topic: str, ends: dict[int, int] | None) -> bool:
    """Returns whether a message is a record to print, not the event of a partition's end; raises other errors.

    Removes partitions from `ends` whose end is reached."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise _unreadable(error, topic, message.partition())
    if ends is not None:
        number = message.partition()
        if number not in ends:
            return False  # written after the start of this command
        if error is not None or message.offset() + 1 >= ends[number]:
            del ends[number]
    return error is None


def _unreadable(error: KafkaError, topic: str, number: int) -> Exception:
    """Returns the error of a damaged record with a pointer to doctor and the log: the protocol carries no reason."""
    if error.code() != KafkaError.INVALID_MSG:
        return KafkaException(error)
    where = re.search(r"at offset (\d+)", error.str())
    return Corrupt(
        f"topic {topic} partition {number} cannot be read{f' from offset {where[1]} on' if where else ''}: records are"
        f" damaged or missing; lakestream doctor --topic {topic} and the broker's log name the file"
    )


def check_offset(topic: str, offset: int, bounds: Mapping[int, tuple[int, int]]) -> None:
    """Rejected if a partition does not have the offset. Its end, where the next record will be, is allowed."""
    if all(start <= offset <= end for start, end in bounds.values()):
        return
    existing = [f"{start} to {end} in partition {number}" for number, (start, end) in bounds.items()]
    more = f" (and {len(existing) - BOUNDS_SHOWN} more partitions)" if len(existing) > BOUNDS_SHOWN else ""
    raise Rejected(
        f"Offset out of range: topic {topic} does not have offset {offset}; it has"
        f" {', '.join(existing[:BOUNDS_SHOWN])}{more}; read one partition with --partition"
    )


def _bounds(consumer: Consumer, topic: str, number: int) -> tuple[int, int]:
    """Returns the first offset, and the one after the last record."""
    bounds = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=RESPONSE_S_MAX)
    if bounds is None:
        raise Unavailable(
            with_reason(f"topic {topic} partition {number}: the request timed out after {RESPONSE_S_MAX:g} s")
        )
    return int(bounds[0]), int(bounds[1])


def _starts(consumer: Consumer, topic: str, numbers: list[int], position: int | datetime) -> list[TopicPartition]:
    if isinstance(position, int):
        return [TopicPartition(topic, number, position) for number in numbers]
    time_ms = int(position.timestamp() * 1000)
    times = [TopicPartition(topic, number, time_ms) for number in numbers]
    starts = list(consumer.offsets_for_times(times, timeout=WORK_S_MAX))  # the end, if no record is as new
    for start in starts:
        if start.error is not None:
            raise _unreadable(start.error, topic, start.partition)
    return starts


def _print(groups: Iterable[list[Any]], arguments: argparse.Namespace, decoders: "Decoders | None") -> None:
    lines = Lines(arguments, decoders, is_terminal=sys.stdout.isatty())
    out = sys.stdout.buffer
    for messages in groups:
        for message in messages:
            out.write(lines.of(message) + b"\n")
        out.flush()  # so that the reader of a pipe gets the records immediately


class Decoders(NamedTuple):
    key: ValueDecoder
    value: ValueDecoder


def _decoders(arguments: argparse.Namespace) -> Decoders | None:
    """Returns decoders for the topic's schemas; None if it has none."""
    if arguments.raw:
        return None
    settings = topic_settings(admin_of(arguments.bootstrap), [arguments.topic])[arguments.topic]
    registry, context = Registry(arguments.http), schema_context(settings.get("lakestream.schema.context") or "")
    key, value = (
        ValueDecoder(
            arguments.topic,
            part,
            schema_choice(settings.get(f"lakestream.{part.value}.schema") or SchemaMode.NONE.value),
            context,
            registry,
        )
        for part in (ValuePart.KEY, ValuePart.VALUE)
    )
    return Decoders(key, value) if key.is_typed or value.is_typed else None


class Lines:
    """The lines of records. Control characters are escaped on a terminal, unless `--raw` requests the stored bytes."""

    def __init__(self, arguments: argparse.Namespace, decoders: Decoders | None, *, is_terminal: bool) -> None:
        self._as_json = arguments.json
        self._separator = None if arguments.key_separator is None else arguments.key_separator.encode()
        self._decoders = decoders
        self._escapes = is_terminal and (arguments.json or not arguments.raw)
        self._reported: set[str] = set()

    def of(self, message: Any) -> bytes:
        line = self._line(message)
        return escaped(line.decode(errors="backslashreplace")).encode() if self._escapes else line

    def _line(self, message: Any) -> bytes:
        key, value = message.key(), message.value()
        typed_key = typed_value = None
        if self._decoders is not None:
            typed_key, typed_value = self._decoded(self._decoders.key, key), self._decoded(self._decoders.value, value)
        if self._as_json:
            record = Record(key, value, message.headers() or (), message.partition(), message.timestamp()[1])
            return record_json.to_json(record, message.offset(), typed_key, typed_value).encode()
        line = _text(value, typed_value)
        return line if self._separator is None else _text(key, typed_key) + self._separator + line

    def _decoded(self, decoder: ValueDecoder, data: bytes | None) -> Any:
        """Returns None if the bytes are to be printed; reports each reason once."""
        if data is None or not decoder.is_typed:
            return None
        try:
            return decoder.decode(data)
        except NotDecodable as error:
            reason = str(error)
            if reason not in self._reported and len(self._reported) < REASONS_MAX:
                self._reported.add(reason)
                fail(f"printed as bytes: {reason} (--http names the schema registry; --raw prints all as bytes)", 0)
            return None


def _text(data: bytes | None, typed: Any) -> bytes:
    if typed is None:
        return data or b""
    return json.dumps(typed, ensure_ascii=False).encode()
