"""`lakestream table rejects`: the dead letters of a topic: rows whose values or keys have no columns, and why.

Counted by reason; with `--rows` one by one. Opens the stores as a pipeline does, and works in this process: no Spark is
needed, nor a broker. Nothing is changed: reasons are found by trying the values again with the schemas of now.
"""

import argparse
import asyncio
import codecs
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any, Final

from lakestream.cli.options import add_options, settings_of
from lakestream.cli.reasons import reasons_as_json, reasons_in_columns
from lakestream.cli.records import shown_bytes
from lakestream.cli.repair import opened, progress
from lakestream.cli.text import human_size, human_time, plural, printable
from lakestream.errors import Rejected
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.maintenance.dead_letter import BYTES_SHOWN, Asked, DeadLetter, Summary

LIMIT: Final = 20
LINE_BYTES: Final = 24
"""Of a value, on a line for people."""
REASONS_SHOWN: Final = 20
REPAIRABLE: Final = "it can be repaired"
ABOUT: Final = """Dead letters: rows of a topic's table whose value or key has no columns, or not all of them, and why.
They keep the bytes that were produced, and consumers get these as ever. The reason is what comes of trying again with
the schemas that are there now; nothing is changed. A row that would have its columns by now "can be repaired":
lakestream topic repair. Rows that have their columns, and bytes beside them since these are spelled in another way or
say what no column can, are no dead letters: they are counted apart. (The metric lakestream_table_raw_values_total has
both.)"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = ABOUT
    parser.add_argument("topic")
    add_options(parser)
    parser.add_argument("--rows", action="store_true", help="each of them, oldest first, instead of how many there are")
    parser.add_argument("--newest", action="store_true", help="with --rows: newest first")
    parser.add_argument("--limit", metavar="N", type=int, default=LIMIT, help=f"with --rows: so many at most ({LIMIT})")
    parser.add_argument("--partition", metavar="N", type=int, help="those of this one only")
    parser.add_argument("--from-offset", metavar="N", type=int, default=0, help="those from this offset on")
    parser.add_argument("--json", action="store_true", help="for programs; with --rows one object per line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    logging.getLogger("lakestream").addHandler(logging.NullHandler())  # what is wrong is said as a reason
    left = asyncio.run(_rows(arguments) if arguments.rows else _summary(arguments))
    for reason in left:
        print(f"not looked at: {reason}", file=sys.stderr)
    return 1 if left else 0


def _asked(arguments: argparse.Namespace, named: NamedTopic) -> Asked:
    partition, count = arguments.partition, named.topic.partition_count
    if partition is not None and not 0 <= partition < count:
        raise Rejected(f"topic {named.name} has no partition {partition}, only 0 to {count - 1}")
    if arguments.limit < 1 or arguments.from_offset < 0:
        raise Rejected("--limit is a number from 1 on, --from-offset one from 0 on")
    return Asked(
        partition=partition,
        offset_start=arguments.from_offset,
        newest_first=arguments.newest,
        bytes_shown=BYTES_SHOWN if arguments.json else LINE_BYTES,
        limit=arguments.limit + 1,  # are there more?
    )


# How many, and why


async def _summary(arguments: argparse.Namespace) -> list[str]:
    # Here and not above: whoever asks for help does not wait for the kernels.
    from lakestream.pipeline.maintenance.dead_letters import DeadLetters

    async with opened(settings_of(arguments), arguments.topic) as its:
        letters = DeadLetters(its.catalog, its.registry, its.catalog.clock)
        found = await letters.summary(its.named, _asked(arguments, its.named), progress())
    if arguments.json:
        print(json.dumps(_summary_as_json(arguments.topic, found)))
    else:
        print("\n".join(_summary_lines(arguments.topic, found)))
    return found.left


def _summary_as_json(topic: str, found: Summary) -> dict[str, object]:
    return {
        "topic": topic,
        "rows": found.rows,
        "repairable": found.repairable,
        "spelled_otherwise": found.spelled,
        "reasons": reasons_as_json(found.reasons, found.firsts),
        "not_looked_at": found.left,
    }


def _summary_lines(topic: str, found: Summary) -> Iterator[str]:
    yield f"topic {topic}: {_counted(found)}"
    if found.repairable:
        yield f"{found.repairable:,} can be repaired: lakestream topic repair {topic}"
    why = "why the others have none" if found.repairable else "why they have none"
    yield from reasons_in_columns(why, found.reasons, found.firsts, REASONS_SHOWN)
    if (more := len(found.reasons) - REASONS_SHOWN) > 0:
        yield f"  and {plural(more, 'reason')} more: --json has them"
    if found.rows:
        yield f"each of them: lakestream table rejects {topic} --rows"
    if found.spelled:
        rows = plural(found.spelled, "row")
        yield f"besides, {rows} with columns, and bytes that these do not give back: no dead letters"


def _counted(found: Summary) -> str:
    if not found.rows:
        return "no dead letters, every value has its columns"
    return f"{plural(found.rows, 'dead letter')}: rows without columns, or without some of theirs"


# One by one


async def _rows(arguments: argparse.Namespace) -> list[str]:
    """As they are found: whoever reads along sees them at once."""
    from lakestream.pipeline.maintenance.dead_letters import DeadLetters

    left: list[str] = []
    count, repairable, is_all = 0, 0, True
    async with opened(settings_of(arguments), arguments.topic) as its:
        letters = DeadLetters(its.catalog, its.registry, its.catalog.clock)
        async for letter in letters.letters(its.named, _asked(arguments, its.named), left):
            if count == arguments.limit:
                is_all = False
                break
            count, repairable = count + 1, repairable + letter.is_repairable
            print(json.dumps(_as_json(letter), ensure_ascii=False) if arguments.json else _line(letter), flush=True)
    if not arguments.json:
        print("\n".join(_below(arguments.topic, count, repairable, is_all=is_all)))
    return left


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp_ms,
        "schema_id": letter.schema_id or None,
        "reason": letter.reason or None,
        "repairable": letter.is_repairable,
        "key": shown_bytes(letter.key),
        "value": shown_bytes(letter.value) if (text := _text(letter)) is None else text,
        "value_size": letter.value_size,
    }


def _line(letter: DeadLetter) -> str:
    place = f"{letter.partition}/{letter.offset}"
    schema = f"schema {letter.schema_id}" if letter.schema_id else ""
    said = printable(letter.reason) or REPAIRABLE  # it may name fields of values that anybody made up
    if letter.reason and letter.is_repairable:
        said += "; some of it can be repaired"
    return f"{place:<10}  {human_time(letter.timestamp_ms)}  {schema:<9}  {_value(letter):<40}  {said}"


def _value(letter: DeadLetter) -> str:
    """Text if it is text, else in hexadecimal."""
    if letter.value is None:
        return "null"
    text = _text(letter)
    shown = text if text and text.isprintable() else letter.value.hex()
    return shown if letter.value_size <= len(letter.value) else f"{shown}… ({human_size(letter.value_size)})"


def _text(letter: DeadLetter) -> str | None:
    """None: the value is no text. Where only its beginning is here, its last letter may have been cut in two."""
    is_whole = letter.value_size <= len(letter.value or b"")
    try:
        return codecs.utf_8_decode(letter.value, "strict", is_whole)[0] if letter.value is not None else None
    except UnicodeDecodeError:
        return None


def _below(topic: str, count: int, repairable: int, *, is_all: bool) -> Iterator[str]:
    if not count:
        yield f"topic {topic}: no dead letters there"
    if repairable:
        yield f"{repairable:,} of these can be repaired: lakestream topic repair {topic}"
    if not is_all:
        yield f"there are more than these {count:,}: --limit, or go on with --partition and --from-offset"
