"""`lakestream table dead-letters`: prints a topic's dead letters: rows whose values or keys have no columns, and why.

It prints counts by reason, or with `--rows` the rows. The command opens the stores itself: it needs neither Spark nor a
broker. It changes nothing; to find the reasons, it converts the values with the current schemas.
"""

import argparse
import asyncio
import codecs
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any, Final

from lakestream.aio.progress import reported
from lakestream.cli.options import add_options, settings_of
from lakestream.cli.output.record_json import bytes_as_json
from lakestream.cli.output.text import human_size, human_time, plural, printable, reasons_as_json, reasons_in_columns
from lakestream.cli.repair import opened, progress
from lakestream.cli.server import add_server_of_stores
from lakestream.errors import Rejected
from lakestream.metadata.topics import NamedTopic
from lakestream.pipeline.dead_letters.model import BYTES_SHOWN, DeadLetter, DeadLetterQuery, Summary
from lakestream.server.node import Access

LIMIT: Final = 20
LINE_BYTES: Final = 24
"""Of a value, in a line of text."""
REASONS_SHOWN: Final = 20
REPAIRABLE: Final = "it can be repaired"
ABOUT: Final = """Dead letters: rows of a topic's table whose value or key has no columns, or not all of them, and why.
They keep the produced bytes, and consumers get these unchanged. The command converts the value again with the current
schemas and prints the reason of the failure; it changes nothing. A row whose conversion succeeds now "can be repaired":
lakestream table repair. Rows that have columns but also keep the produced bytes, because the columns do not reproduce
them, are no dead letters and are counted apart. (The metric lakestream_table_unconverted_values_total counts both.) A
record batch that cannot be read is a dead letter of any topic, with a schema or without."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.description = ABOUT
    parser.add_argument("topic")
    add_server_of_stores(parser)
    add_options(parser)
    parser.add_argument("--rows", action="store_true", help="list the rows, oldest first, instead of counts")
    parser.add_argument("--newest", action="store_true", help="with --rows: newest first")
    parser.add_argument("--limit", metavar="N", type=int, default=LIMIT, help=f"with --rows: at most N rows ({LIMIT})")
    parser.add_argument("--partition", metavar="N", type=int, help="of this partition only")
    parser.add_argument("--from-offset", metavar="N", type=int, default=0, help="from this offset on")
    parser.add_argument("--json", action="store_true", help="print JSON; with --rows one object per line")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    logging.getLogger("lakestream").addHandler(logging.NullHandler())  # errors become reasons
    left = asyncio.run(_rows(arguments) if arguments.rows else _summary(arguments))
    for reason in left:
        print(f"not read: {reason}", file=sys.stderr)
    return 1 if left else 0


def _query(arguments: argparse.Namespace, named: NamedTopic) -> DeadLetterQuery:
    partition, count = arguments.partition, named.topic.partition_count
    if partition is not None and not 0 <= partition < count:
        raise Rejected(f"topic {named.name} has no partition {partition}, only 0 to {count - 1}")
    if arguments.limit < 1 or arguments.from_offset < 0:
        raise Rejected("--limit must be 1 or more, --from-offset 0 or more")
    return DeadLetterQuery(
        partition=partition,
        offset_start=arguments.from_offset,
        newest_first=arguments.newest,
        bytes_shown=BYTES_SHOWN if arguments.json else LINE_BYTES,
        limit=arguments.limit + 1,  # one more shows that there are more
    )


# Counts by reason


async def _summary(arguments: argparse.Namespace) -> list[str]:
    # Imported here, so that --help does not load the kernels.
    with reported("loading the kernels, or compiling them at the first start"):
        from lakestream.pipeline.dead_letters.scan import DeadLetters

    async with opened(settings_of(arguments), arguments.topic, Access.READ) as stores:
        letters = DeadLetters(stores.catalog, stores.registry, stores.catalog.clock)
        found = await letters.summary(stores.named, _query(arguments, stores.named), progress())
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
        yield f"{found.repairable:,} can be repaired: lakestream table repair {topic}"
    why = "reason (of rows that cannot be repaired)" if found.repairable else "reason"
    yield from reasons_in_columns(why, found.reasons, found.firsts, REASONS_SHOWN)
    if (more := len(found.reasons) - REASONS_SHOWN) > 0:
        yield f"  and {plural(more, 'reason')} more: --json has them"
    if found.rows:
        yield f"rows: lakestream table dead-letters {topic} --rows"
    if found.spelled:
        rows = plural(found.spelled, "row")
        yield f"also {rows} with columns that do not reproduce the produced bytes: no dead letters"


def _counted(found: Summary) -> str:
    if not found.rows:
        return "no dead letters"
    return f"{plural(found.rows, 'dead letter')}: rows in which columns are missing"


# Rows


async def _rows(arguments: argparse.Namespace) -> list[str]:
    """Prints each row immediately, so that the reader of a pipe does not wait for the last one."""
    with reported("loading the kernels, or compiling them at the first start"):
        from lakestream.pipeline.dead_letters.scan import DeadLetters

    left: list[str] = []
    count, repairable, is_all = 0, 0, True
    async with opened(settings_of(arguments), arguments.topic, Access.READ) as stores:
        letters = DeadLetters(stores.catalog, stores.registry, stores.catalog.clock)
        async for letter in letters.letters(stores.named, _query(arguments, stores.named), left):
            if count == arguments.limit:
                is_all = False
                break
            count, repairable = count + 1, repairable + letter.is_repairable
            print(json.dumps(_as_json(letter), ensure_ascii=False) if arguments.json else _line(letter), flush=True)
    if not arguments.json:
        print("\n".join(_footer(arguments.topic, count, repairable, is_all=is_all)))
    return left


def _as_json(letter: DeadLetter) -> dict[str, Any]:
    return {
        "partition": letter.partition,
        "offset": letter.offset,
        "timestamp": letter.timestamp_ms,
        "schema_id": letter.schema_id or None,
        "reason": letter.reason or None,
        "repairable": letter.is_repairable,
        "key": bytes_as_json(letter.key),
        "value": bytes_as_json(letter.value) if (text := _text(letter)) is None else text,
        "value_size": letter.value_size,
    }


def _line(letter: DeadLetter) -> str:
    position = f"{letter.partition}/{letter.offset}"
    schema = f"schema {letter.schema_id}" if letter.schema_id else ""
    reason = printable(letter.reason) or REPAIRABLE  # escaped: producers choose the field names that it contains
    if letter.reason and letter.is_repairable:
        reason += "; some of it can be repaired"
    return f"{position:<10}  {human_time(letter.timestamp_ms)}  {schema:<9}  {_value(letter):<40}  {reason}"


def _value(letter: DeadLetter) -> str:
    """Returns a value as text if it is UTF-8, else in hexadecimal."""
    if letter.value is None:
        return "null"
    text = _text(letter)
    shown = text if text and text.isprintable() else letter.value.hex()
    return shown if letter.value_size <= len(letter.value) else f"{shown}… ({human_size(letter.value_size)})"


def _text(letter: DeadLetter) -> str | None:
    """Returns None if the value is not UTF-8. A value that was cut may end inside a character."""
    is_whole = letter.value_size <= len(letter.value or b"")
    try:
        return codecs.utf_8_decode(letter.value, "strict", is_whole)[0] if letter.value is not None else None
    except UnicodeDecodeError:
        return None


def _footer(topic: str, count: int, repairable: int, *, is_all: bool) -> Iterator[str]:
    if not count:
        yield f"topic {topic}: no dead letters"
    if repairable:
        yield f"{repairable:,} of these can be repaired: lakestream table repair {topic}"
    if not is_all:
        yield f"more than these {count:,} exist: raise --limit, or continue with --partition and --from-offset"
