"""`lakestream consume TOPIC`: prints a topic's records, from wherever one likes, and waits for more.

By assignment: no group is joined, nothing is committed.
"""

import argparse
import re
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, TopicPartition

from lakestream.cli import records
from lakestream.cli.client import ANSWER_S_MAX, WORK_S_MAX, add_bootstrap, config_of, refusal, topic_of
from lakestream.cli.records import Record
from lakestream.errors import Corrupt, Rejected, Unavailable

POLL_S: Final = 0.2
POLL_RECORDS: Final = 1_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic")
    add_bootstrap(parser)
    parser.add_argument(
        "--from",
        dest="place",
        default="start",
        metavar="PLACE",
        help="start, end, an offset, or a time as 2026-01-31T12:00",
    )
    parser.add_argument("--partition", type=int, metavar="N", help="this one only")
    parser.add_argument("--count", type=int, metavar="N", help="end after so many records")
    parser.add_argument(
        "--follow", action=argparse.BooleanOptionalAction, default=True, help="wait for more at the end"
    )
    parser.add_argument("--key-separator", metavar="TEXT", help="print the key and this before each value")
    parser.add_argument("--json", action="store_true", help="one object per line, which produce --json takes")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    place = place_of(arguments.place)
    consumer = Consumer(
        config_of(
            arguments.bootstrap,
            **{
                "group.id": "lakestream-cli",  # asked for by the library; no group is ever joined
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "error" if arguments.place.isdecimal() else "earliest",
            },
        )
    )
    try:
        numbers = _partitions(consumer, arguments)
        try:
            _print(_read(consumer, arguments, numbers, place), arguments)
        except KafkaException as error:
            raise refusal(error, f"topic {arguments.topic} cannot be read") from error
    finally:
        consumer.close()
    return 0


def place_of(text: str) -> int | datetime:
    """Where to start: one of the client's marks or an offset, or a time."""
    if text in ("start", "end"):
        return OFFSET_BEGINNING if text == "start" else OFFSET_END
    if text.isdecimal():
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise Rejected(f"--from {text!r}: give start, end, an offset, or a time as 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.astimezone(UTC)


def _partitions(consumer: Consumer, arguments: argparse.Namespace) -> list[int]:
    known = sorted(topic_of(consumer, arguments.bootstrap, arguments.topic).partitions)
    if arguments.partition is None:
        return known
    if arguments.partition not in known:
        raise Rejected(f"topic {arguments.topic} has no partition {arguments.partition}, only 0 to {known[-1]}")
    return [arguments.partition]


def _read(
    consumer: Consumer, arguments: argparse.Namespace, numbers: list[int], place: int | datetime
) -> Iterator[list[Any]]:
    """Messages as they come, some at a time. Without --follow only up to the ends as they are now."""
    ends = None
    if not arguments.follow:
        ends = {number: _end(consumer, arguments.topic, number) for number in numbers}
    consumer.assign(_starts(consumer, arguments.topic, numbers, place))
    left = arguments.count
    while left != 0 and (ends is None or ends):
        found = consumer.consume(POLL_RECORDS if left is None else min(left, POLL_RECORDS), POLL_S)
        messages = [message for message in found if not _is_news(message, arguments.topic, ends)]
        if messages:
            yield messages
        if left is not None:
            left -= len(messages)


def _is_news(message: Any, topic: str, ends: dict[int, int] | None) -> bool:
    """Not a record but an end that was reached; an error is raised. Takes note of partitions that are done."""
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        raise _unreadable(error, topic, message.partition())
    if ends is not None:
        number = message.partition()
        if number not in ends:
            return True  # written since we began
        if error is not None or message.offset() + 1 >= ends[number]:
            del ends[number]
    return error is not None


def _unreadable(error: KafkaError, topic: str, number: int) -> Exception:
    """The protocol has no room for the reason: who knows it is named."""
    if error.code() != KafkaError.INVALID_MSG:
        return KafkaException(error)
    where = re.search(r"at offset (\d+)", error.str())
    return Corrupt(
        f"topic {topic} partition {number} cannot be read{f' from offset {where[1]} on' if where else ''}: records are"
        f" damaged or gone; lakestream doctor --topic {topic} and the broker's log say where"
    )


def _end(consumer: Consumer, topic: str, number: int) -> int:
    bounds = consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=ANSWER_S_MAX)
    if bounds is None:
        raise Unavailable(f"topic {topic} partition {number}: no answer within {ANSWER_S_MAX:g} s")
    return int(bounds[1])


def _starts(consumer: Consumer, topic: str, numbers: list[int], place: int | datetime) -> list[TopicPartition]:
    if isinstance(place, int):
        return [TopicPartition(topic, number, place) for number in numbers]
    time_ms = int(place.timestamp() * 1000)
    asked = [TopicPartition(topic, number, time_ms) for number in numbers]
    found = list(consumer.offsets_for_times(asked, timeout=WORK_S_MAX))  # the end, where nothing is so new
    for one in found:
        if one.error is not None:
            raise _unreadable(one.error, topic, one.partition)
    return found


def _print(found: Iterable[list[Any]], arguments: argparse.Namespace) -> None:
    separator = None if arguments.key_separator is None else arguments.key_separator.encode()
    out = sys.stdout.buffer
    for messages in found:
        for message in messages:
            out.write(_shown(message, arguments.json, separator) + b"\n")
        out.flush()  # whoever reads along sees it now


def _shown(message: Any, as_json: bool, separator: bytes | None) -> bytes:
    if as_json:
        record = Record(
            message.key(), message.value(), message.headers() or (), message.partition(), message.timestamp()[1]
        )
        return records.shown(record, message.offset()).encode()
    value: bytes = message.value() or b""
    return value if separator is None else (message.key() or b"") + separator + value
