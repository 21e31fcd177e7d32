"""`lakestream wal show OBJECT`: prints the content of a WAL object or segment, and verifies every checksum.

Byte positions are those in the file or object, as in claims.
"""

import argparse
import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from lakestream.cli.output.text import columns, human_size, human_time, plural, printable
from lakestream.clock import RandomIds, SystemClock
from lakestream.data.wal.format import (
    HEADER_SIZE,
    VERSION,
    DecodedFrame,
    FrameKind,
    Range,
    decode,
    decode_header,
    walk_segment,
)
from lakestream.errors import Corrupt, Missing, Unavailable
from lakestream.model import Buffer
from lakestream.records.batch import RecordBatch, is_commit, split, verify
from lakestream.storage.open_store import open_store


class Shown(NamedTuple):
    """A WAL object or segment with verified checksums."""

    name: str
    size: int
    frames: list[DecodedFrame]
    is_segment: bool
    sealed: bool
    torn_size: int


def configure_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "objects", metavar="OBJECT", nargs="+", help="path of a file, or URL: file:///… s3://… gs://… az://…"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document each")
    parser.add_argument("--batches", action="store_true", help="also every record batch, checksum checked")
    parser.set_defaults(run=show)


def show(arguments: argparse.Namespace) -> int:
    for name in arguments.objects:
        shown = examine(load(name), name)
        if arguments.json:
            print(json.dumps(as_json(shown, arguments.batches), indent=2))
        else:
            # Complete before it is printed: a damaged batch is one error line, not half a listing.
            print("\n".join(list(as_text(shown, arguments.batches))))
    return 0


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def load(name: str) -> Buffer:
    parts = urlsplit(name) if "://" in name else None
    if parts is None:
        return _load_file(Path(name), name)
    if parts.scheme == "file" and not parts.netloc:
        return _load_file(Path(unquote(parts.path)), name)
    return asyncio.run(_load_object(name))


def _load_file(path: Path, name: str) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise Missing(f"{name}: no such file") from None
    except (OSError, ValueError) as error:
        raise Unavailable(f"{name}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


async def _load_object(url: str) -> Buffer:
    folder, _, key = url.rpartition("/")
    store = open_store(folder, SystemClock(), RandomIds())
    try:
        return await store.get(key)
    finally:
        await store.close()


def examine(body: Buffer, name: str) -> Shown:
    if _is_segment(body, name):
        segment = walk_segment(body, name)
        return Shown(name, len(body), segment.frames, True, segment.sealed, segment.torn_size)
    return Shown(name, len(body), [decode(body, name)], False, False, 0)


def _is_segment(body: Buffer, name: str) -> bool:
    """Decides by the first header, or by the name if the header is damaged."""
    try:
        return decode_header(body[:HEADER_SIZE], name).kind is not FrameKind.OBJECT
    except Corrupt:
        return name.endswith(".seg")


def batches_of(shown: Shown, frame: DecodedFrame, part: Range) -> Iterator[tuple[int, RecordBatch]]:
    """Yields each batch of a range with its position."""
    position = frame.position + part.byte_start
    for data in split(frame.bytes_of(part), f"{shown.name} at byte {position}"):
        yield position, verify(data, f"{shown.name} at byte {position}")
        position += len(data)


# ── for people ───────────────────────────────────────────────────────────────────────────────────────────────────────

_RANGE_TITLES = ("topic id", "partition", "claim id", "bytes", "size", "records")
_BATCH_TITLES = ("batch at", "size", "records", "producer", "epoch", "sequences", "codec", "what", "first", "last")


def as_text(shown: Shown, with_batches: bool) -> Iterator[str]:
    yield printable(shown.name)
    yield from columns(list(_facts(shown)), frozenset())
    for frame in shown.frames:
        yield ""
        if shown.is_segment:
            yield f"  {_frame_line(frame)}"
        if frame.ranges:
            yield from columns([_RANGE_TITLES, *_range_rows(frame)], frozenset({1, 4, 5}))
        if with_batches:
            for part in frame.ranges:
                rows = [_batch_row(position, batch) for position, batch in batches_of(shown, frame, part)]
                yield ""
                yield f"    {printable(part.topic_id)} / {part.partition}"
                yield from columns([_BATCH_TITLES, *rows], frozenset({0, 1, 2, 3, 4}), "    ")


def _facts(shown: Shown) -> Iterator[tuple[str, str]]:
    footers = [frame.footer for frame in shown.frames]
    yield "kind", f"{'segment' if shown.is_segment else 'object'}, format version {VERSION}"
    yield "size", human_size(shown.size) + (f" ({shown.size:,} bytes)" if shown.size >= 1024 else "")
    if footers:
        yield "writer", printable(footers[0].writer_id)
        yield "sequence", f"{footers[0].sequence}" + (f" to {footers[-1].sequence}" if len(footers) > 1 else "")
        yield "stored", human_time(footers[0].stored_ms)
    yield "checksum", "ok" if shown.frames else "-"
    if shown.is_segment:
        yield "frames", f"{sum(frame.kind is FrameKind.SEGMENT_FRAME for frame in shown.frames):,}"
        yield "closed", "cleanly (sealed)" if shown.sealed else "no: still being written, or its writer died"
    if shown.torn_size:
        yield (
            "torn tail",
            f"{human_size(shown.torn_size)} of an incomplete write; nothing in it was acknowledged",
        )
    ranges = [part for frame in shown.frames for part in frame.ranges]
    records = sum(part.record_count for part in ranges)
    data_size = sum(part.span.size for part in ranges)
    yield "holds", f"{plural(records, 'record')} in {plural(len(ranges), 'range')}, {human_size(data_size)}"


def _frame_line(frame: DecodedFrame) -> str:
    what = "seal" if frame.kind is FrameKind.SEGMENT_SEAL else "frame"
    footer = frame.footer
    return (
        f"{what} {footer.sequence} at byte {frame.position:,}, {human_size(frame.size)}, {human_time(footer.stored_ms)}"
    )


def _range_rows(frame: DecodedFrame) -> Iterator[tuple[str, ...]]:
    for part in frame.ranges:
        yield (
            printable(part.topic_id),
            str(part.partition),
            printable(part.claim_id),
            f"{frame.position + part.byte_start:,} to {frame.position + part.byte_end:,}",
            human_size(part.span.size),
            f"{part.record_count:,}",
        )


def _batch_row(position: int, batch: RecordBatch) -> tuple[str, ...]:
    has_sequence = batch.base_sequence >= 0
    return (
        f"{position:,}",
        human_size(batch.size),
        f"{batch.record_count:,}",
        str(batch.producer_id) if batch.has_producer else "-",
        str(batch.producer_epoch) if batch.has_producer else "-",
        f"{batch.base_sequence} to {batch.last_sequence}" if has_sequence else "-",
        batch.compression,
        _batch_type(batch),
        human_time(batch.base_timestamp),
        human_time(batch.max_timestamp),
    )


def _batch_type(batch: RecordBatch) -> str:
    if batch.is_control:
        return "commit" if is_commit(batch) else "abort"
    return "transactional" if batch.is_transactional else "plain"


# ── for programs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def as_json(shown: Shown, with_batches: bool) -> dict[str, Any]:
    return {
        "name": shown.name,
        "kind": "segment" if shown.is_segment else "object",
        "version": VERSION,
        "size": shown.size,
        "sealed": shown.sealed,
        "torn_size": shown.torn_size,
        "frames": [_frame_json(shown, frame, with_batches) for frame in shown.frames],
    }


def _frame_json(shown: Shown, frame: DecodedFrame, with_batches: bool) -> dict[str, Any]:
    footer = frame.footer
    return {
        "kind": frame.kind.name.lower(),
        "position": frame.position,
        "size": frame.size,
        "writer_id": footer.writer_id,
        "sequence": footer.sequence,
        "stored_ms": footer.stored_ms,
        "ranges": [_range_json(shown, frame, part, with_batches) for part in footer.ranges],
    }


def _range_json(shown: Shown, frame: DecodedFrame, part: Range, with_batches: bool) -> dict[str, Any]:
    content: dict[str, Any] = {
        "topic_id": part.topic_id,
        "partition": part.partition,
        "claim_id": part.claim_id,
        "byte_start": frame.position + part.byte_start,
        "byte_end": frame.position + part.byte_end,
        "record_count": part.record_count,
    }
    if with_batches:
        content["batches"] = [_batch_json(position, batch) for position, batch in batches_of(shown, frame, part)]
    return content


def _batch_json(position: int, batch: RecordBatch) -> dict[str, Any]:
    return {
        "byte_start": position,
        "byte_end": position + batch.size,
        "record_count": batch.record_count,
        "producer_id": batch.producer_id,
        "producer_epoch": batch.producer_epoch,
        "base_sequence": batch.base_sequence,
        "last_sequence": batch.last_sequence,
        "compression": batch.compression,
        "transactional": batch.is_transactional,
        "control": batch.is_control,
        "base_timestamp": batch.base_timestamp,
        "max_timestamp": batch.max_timestamp,
    }
