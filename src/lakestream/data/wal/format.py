"""Encodes and decodes WAL frames, objects and segments. Pure: buffers in, buffers out.

Before: writer.py, with the batches of one flush.  After: an object store or a segment file.

The unit is the **frame**. An object is exactly one frame; a segment is frames back to back, the last of them a seal if
the segment was closed cleanly. All numbers are big-endian.

    header   magic "LKWF" · version u16 · kind u16 · position u64 · length u64 · footer length u32 · header crc u32
    batches  back to back, exactly as the clients sent them
    footer   msgpack: [writer id, sequence, stored_ms, [[topic id, partition, claim id, start, end, records] ...]]
    trailer  footer crc u32 · footer length u32 · version u16 · kind u16 · magic "LKWE" · frame crc u32

Each checksum is CRC-32C. The frame's covers everything before it; the footer's covers the footer and the trailer up to
the magic, so a footer can be verified without reading the batches. `position` is where the frame starts in its segment:
at any other position it is invalid. That distinguishes a torn tail (a writer died in its last append; nothing in it was
acknowledged) from damage in the middle, even if records contain bytes that look like a frame.

Invalid bytes raise Corrupt with the name of the object. Lengths are validated before they are used.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple, NoReturn

import msgspec

from lakestream.errors import Corrupt
from lakestream.model import Buffer, Span
from lakestream.records.batch import checksum_with
from lakestream.records.crc32c import crc32c

VERSION: Final = 1

_MAGIC = b"LKWF"
_END_MAGIC = b"LKWE"
_HEADER = struct.Struct(">4sHHQQII")
_TRAILER = struct.Struct(">IIHH4sI")
_CRC = struct.Struct(">I")
_FOOTER_CHECKED = struct.Struct(">IHH4s")
"""The part of the trailer that the footer's checksum covers."""

HEADER_SIZE: Final = _HEADER.size
TRAILER_SIZE: Final = _TRAILER.size
FRAME_SIZE_MIN: Final = HEADER_SIZE + TRAILER_SIZE
TAIL_SIZE: Final = 64 * 1024
"""First ranged read of an object's footer: enough for about 800 ranges."""


class FrameKind(IntEnum):
    OBJECT = 1
    SEGMENT_FRAME = 2
    SEGMENT_SEAL = 3


class Range(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Byte range of one extent in a frame, from the frame's start."""

    topic_id: str
    partition: int
    claim_id: str
    byte_start: int
    byte_end: int
    record_count: int

    @property
    def span(self) -> Span:
        return Span(self.byte_start, self.byte_end)


class FrameFooter(msgspec.Struct, frozen=True, array_like=True):
    writer_id: str
    sequence: int
    """Number of the frame in its writer; grows, may leave gaps."""
    stored_ms: int
    ranges: tuple[Range, ...]


class ExtentData(NamedTuple):
    """Batches of one partition that are encoded into a frame."""

    topic_id: str
    partition: int
    claim_id: str
    batches: Sequence[Buffer]
    record_count: int
    crcs: Sequence[int] = ()
    """The checksum in each batch, if the batches were verified against them."""


class Frame(NamedTuple):
    """An encoded frame, ready to be written."""

    buffers: list[Buffer]
    """Header, every batch as it was given, footer with trailer: never joined."""
    size: int
    footer: FrameFooter

    @property
    def ranges(self) -> tuple[Range, ...]:
        return self.footer.ranges


class DecodedFrame(NamedTuple):
    """A frame that was read and verified whole."""

    kind: FrameKind
    position: int
    size: int
    footer: FrameFooter
    body: memoryview

    @property
    def ranges(self) -> tuple[Range, ...]:
        return self.footer.ranges

    def bytes_of(self, extent: Range) -> memoryview:
        return self.body[extent.byte_start : extent.byte_end]


class MoreNeeded(NamedTuple):
    """The tail was too short: read this many bytes from the end and retry."""

    size: int


class DecodedSegment(NamedTuple):
    frames: list[DecodedFrame]
    sealed: bool
    """Whether it was closed cleanly. If not, its writer still writes or has died."""
    good_size: int
    torn_size: int
    """Bytes after the last good frame, from an append that a crash cut short; nothing in them was acknowledged."""


class FrameHeader(NamedTuple):
    kind: FrameKind
    position: int
    length: int
    footer_length: int

    @property
    def tail_size(self) -> int:
        """Size of footer and trailer."""
        return self.footer_length + TRAILER_SIZE

    def belongs_at(self, position: int) -> bool:
        return self.kind is not FrameKind.OBJECT and self.position == position


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(FrameFooter)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode(
    extents: Sequence[ExtentData],
    *,
    writer_id: str,
    sequence: int,
    stored_ms: int,
    kind: FrameKind = FrameKind.OBJECT,
    position: int = 0,
) -> Frame:
    """Encodes a frame. `position` is the size of the segment so far, 0 in an object."""
    assert bool(extents) != (kind is FrameKind.SEGMENT_SEAL), "a frame has batches, a seal has none"
    buffers: list[Buffer] = [b""]
    ranges = []
    end = HEADER_SIZE
    for topic_id, partition, claim_id, batches, record_count, _ in extents:
        start = end
        for batch in batches:
            end += len(batch)
        assert end > start, "a claim is never empty"
        assert record_count > 0, "a claim is never empty"
        buffers += batches
        ranges.append(Range(topic_id, partition, claim_id, start, end, record_count))
    footer = FrameFooter(writer_id, sequence, stored_ms, tuple(ranges))
    packed = _encoder.encode(footer)
    size = end + len(packed) + TRAILER_SIZE
    buffers[0] = _pack_header(kind, position, size, len(packed))
    buffers.append(packed + _pack_footer_check(packed, kind))
    crc = crc32c(buffers[0])
    for extent in extents:
        crc = _checksum_with(crc, extent)
    buffers.append(_CRC.pack(crc32c(buffers[-1], crc)))
    return Frame(buffers, size, footer)


def _checksum_with(crc: int, extent: ExtentData) -> int:
    if extent.crcs:
        for batch, own_crc in zip(extent.batches, extent.crcs, strict=True):
            crc = checksum_with(crc, batch, own_crc)
    else:
        for batch in extent.batches:
            crc = crc32c(batch, crc)
    return crc


def encode_seal(*, writer_id: str, sequence: int, stored_ms: int, position: int) -> Frame:
    """Encodes the frame that ends a segment."""
    return encode(
        (), writer_id=writer_id, sequence=sequence, stored_ms=stored_ms, kind=FrameKind.SEGMENT_SEAL, position=position
    )


def _pack_header(kind: FrameKind, position: int, size: int, footer_length: int) -> bytes:
    plain = _HEADER.pack(_MAGIC, VERSION, kind, position, size, footer_length, 0)[: -_CRC.size]
    return plain + _CRC.pack(crc32c(plain))


def _pack_footer_check(packed: bytes, kind: FrameKind) -> bytes:
    checked = _FOOTER_CHECKED.pack(len(packed), VERSION, kind, _END_MAGIC)
    return _CRC.pack(crc32c(checked, crc32c(packed))) + checked


# ── reading an object ────────────────────────────────────────────────────────────────────────────────────────────────


def decode(body: Buffer, name: str) -> DecodedFrame:
    """Decodes a whole object and verifies it, except for the batches' own checksums."""
    view = memoryview(body)
    header = decode_header(view, name)
    if header.kind is not FrameKind.OBJECT:
        raise Corrupt(f"{name}: is a frame of a segment, expected an object")
    if header.length != len(view):
        raise Corrupt(f"{name}: has {len(view)} bytes, {header.length} were written")
    return _decode_frame(view, 0, header, name)


def decode_footer(tail: Buffer, size: int, name: str) -> FrameFooter | MoreNeeded:
    """Decodes the footer of an object of `size` bytes from its last bytes. Verifies the footer, not the batches."""
    view = memoryview(tail)
    if size < FRAME_SIZE_MIN or len(view) > size:
        raise Corrupt(f"{name}: {size} bytes are too few for a WAL object")
    if len(view) < TRAILER_SIZE:
        return MoreNeeded(TRAILER_SIZE)
    kind, footer_length = _decode_trailer(view, name)
    if kind is not FrameKind.OBJECT:
        raise Corrupt(f"{name}: ends with a frame of a segment, expected an object")
    needed = footer_length + TRAILER_SIZE
    if needed > size - HEADER_SIZE:
        raise Corrupt(f"{name}: its trailer has a footer length of {footer_length} in an object of {size} bytes")
    if len(view) < needed:
        return MoreNeeded(needed)
    return _decode_footer(view[len(view) - needed :], size, kind, name)


# ── reading a segment ────────────────────────────────────────────────────────────────────────────────────────────────


def walk_segment(body: Buffer, name: str) -> DecodedSegment:
    """Decodes all good frames of a segment, in order. Measures a torn tail; raises Corrupt for damage before it."""
    view = memoryview(body)
    size = len(view)
    frames: list[DecodedFrame] = []
    last: FrameFooter | None = None
    sealed = False
    at = 0
    while at < size:
        try:
            frame = _decode_segment_frame(view, at, name)
        except Corrupt:
            if sealed:
                raise Corrupt(f"{name}: {size - at} unexpected bytes after the segment's seal") from None
            if not _is_torn(view, at, last):
                raise
            break
        check_follows(last, sealed, frame.footer, f"{name} at byte {at}")
        frames.append(frame)
        last, sealed = frame.footer, frame.kind is FrameKind.SEGMENT_SEAL
        at += frame.size
    return DecodedSegment(frames, sealed, at, size - at)


def _decode_segment_frame(view: memoryview, at: int, name: str) -> DecodedFrame:
    where = f"{name} at byte {at}"
    header = decode_header(view[at : at + HEADER_SIZE], where)
    if header.kind is FrameKind.OBJECT:
        raise Corrupt(f"{where}: is an object, expected a frame of a segment")
    if header.position != at:
        raise Corrupt(f"{where}: frame was written for byte {header.position}")
    if header.length > len(view) - at:
        raise Corrupt(f"{where}: frame is cut off: {header.length} bytes were written, {len(view) - at} remain")
    return _decode_frame(view[at : at + header.length], at, header, where)


def check_follows(last: FrameFooter | None, sealed: bool, footer: FrameFooter, where: str) -> None:
    """Verifies that a segment has one writer, whose frames have increasing numbers, and ends with its seal."""
    if sealed:
        raise Corrupt(f"{where}: frame after the segment's seal")
    if last is not None and (footer.writer_id != last.writer_id or footer.sequence <= last.sequence):
        raise Corrupt(
            f"{where}: frame {footer.sequence} of writer {footer.writer_id} follows"
            f" frame {last.sequence} of writer {last.writer_id}"
        )


def _is_torn(view: memoryview, at: int, last: FrameFooter | None) -> bool:
    """Returns whether the bytes from `at` on can be the rest of an append that a crash cut short."""
    if _is_newer(view[at:]):
        return False
    header = _try_header(view, at)
    if header is not None and not header.belongs_at(at):
        return False
    body = view.obj if isinstance(view.obj, bytes | bytearray) and len(view.obj) == len(view) else bytes(view)
    after = body.find(_MAGIC, at + 1)
    while after >= 0:
        if _is_later_frame(view, after, last):
            return False
        after = body.find(_MAGIC, after + 1)
    return True


def _is_later_frame(view: memoryview, at: int, last: FrameFooter | None) -> bool:
    """Returns whether a later append starts here. It starts only when the one before is durable, which is therefore
    not torn.

    A header at its own position is sufficient. Elsewhere (bytes were lost in between) it must be a whole frame of the
    same writer, or it is only a record that contains a segment.
    """
    header = _try_header(view, at)
    if header is None or header.kind is FrameKind.OBJECT:
        return False
    if header.position == at:
        return True
    if header.length > len(view) - at:
        return False
    try:
        footer = _decode_frame(view[at : at + header.length], at, header, "").footer
    except Corrupt:
        return False
    return last is None or (footer.writer_id == last.writer_id and footer.sequence > last.sequence)


def _try_header(view: memoryview, at: int) -> FrameHeader | None:
    try:
        return decode_header(view[at : at + HEADER_SIZE], "")
    except Corrupt:
        return None


def _is_newer(head: memoryview) -> bool:
    """Returns whether the bytes start like a frame of a newer format version, which must not pass for a torn tail."""
    return len(head) >= 6 and bytes(head[:4]) == _MAGIC and int.from_bytes(head[4:6], "big") > VERSION


# ── header, footer, trailer ──────────────────────────────────────────────────────────────────────────────────────────


def decode_header(head: Buffer, name: str) -> FrameHeader:
    if len(head) < HEADER_SIZE:
        raise Corrupt(f"{name}: {len(head)} bytes are too few for a WAL frame")
    magic, version, kind, position, length, footer_length, crc = _HEADER.unpack_from(head)
    if magic != _MAGIC:
        raise Corrupt(f"{name}: does not start like a WAL frame")
    if version != VERSION:
        _raise_unsupported_version(version, name)
    if crc32c(memoryview(head)[: HEADER_SIZE - _CRC.size]) != crc:
        raise Corrupt(f"{name}: header is damaged (checksum)")
    if footer_length + FRAME_SIZE_MIN > length:
        raise Corrupt(f"{name}: header claims a footer of {footer_length} bytes in a frame of {length}")
    return FrameHeader(_kind(kind, name), position, length, footer_length)


def _decode_frame(frame: memoryview, position: int, header: FrameHeader, name: str) -> DecodedFrame:
    """Decodes a frame that is exactly as long as its header's length."""
    size = len(frame)
    (crc,) = _CRC.unpack_from(frame, size - _CRC.size)
    if crc32c(frame[: size - _CRC.size]) != crc:
        raise Corrupt(f"{name}: frame is damaged (checksum)")
    return DecodedFrame(header.kind, position, size, decode_frame_footer(frame, header, name), frame)


def decode_frame_footer(frame: Buffer, header: FrameHeader, name: str) -> FrameFooter:
    """Decodes the footer of a frame, from the frame or its last `header.tail_size` bytes."""
    view = memoryview(frame)
    if len(view) < header.tail_size:
        raise Corrupt(f"{name}: {len(view)} bytes are too few for a footer of {header.footer_length}")
    kind, footer_length = _decode_trailer(view, name)
    if kind is not header.kind or footer_length != header.footer_length:
        raise Corrupt(f"{name}: header and trailer do not agree")
    return _decode_footer(view[len(view) - header.tail_size :], header.length, kind, name)


def has_seal_trailer(end: Buffer) -> bool:
    """Checks only the trailer, without its checksums."""
    try:
        return _decode_trailer(memoryview(end), "")[0] is FrameKind.SEGMENT_SEAL
    except Corrupt:
        return False


def _decode_trailer(tail: memoryview, name: str) -> tuple[FrameKind, int]:
    at = len(tail) - TRAILER_SIZE
    _footer_crc, footer_length, version, kind, magic, _crc = _TRAILER.unpack_from(tail, at)
    if magic != _END_MAGIC:
        raise Corrupt(f"{name}: does not end like a WAL frame")
    if version != VERSION:
        _raise_unsupported_version(version, name)
    return _kind(kind, name), footer_length


def _decode_footer(tail: memoryview, size: int, kind: FrameKind, name: str) -> FrameFooter:
    """Decodes footer and trailer: `tail` is exactly both, the end of a frame of `size` bytes."""
    footer_end = len(tail) - TRAILER_SIZE
    (crc,) = _CRC.unpack_from(tail, footer_end)
    packed = tail[:footer_end]
    if crc32c(tail[footer_end + _CRC.size : len(tail) - _CRC.size], crc32c(packed)) != crc:
        raise Corrupt(f"{name}: footer is damaged (checksum)")
    try:
        footer = _decoder.decode(packed)
    except (ValueError, RecursionError) as error:  # msgspec's errors and undecodable text are ValueErrors
        raise Corrupt(f"{name}: footer cannot be read: {error}") from None
    _check_ranges(footer, size - len(tail), kind, name)
    return footer


def _check_ranges(footer: FrameFooter, batches_end: int, kind: FrameKind, name: str) -> None:
    """Verifies that the ranges are back to back and fill the frame."""
    end = HEADER_SIZE
    for extent in footer.ranges:
        if extent.byte_start != end or extent.byte_end <= end or extent.record_count < 1 or extent.partition < 0:
            raise Corrupt(f"{name}: footer lists an invalid range: {extent}")
        end = extent.byte_end
    if end != batches_end:
        raise Corrupt(f"{name}: footer lists batches up to byte {end}, they end at {batches_end}")
    if bool(footer.ranges) == (kind is FrameKind.SEGMENT_SEAL):
        raise Corrupt(f"{name}: a frame must have batches, a seal none")


def _kind(number: int, name: str) -> FrameKind:
    try:
        return FrameKind(number)
    except ValueError:
        raise Corrupt(f"{name}: unknown frame kind {number}") from None


def _raise_unsupported_version(version: int, name: str) -> NoReturn:
    if version > VERSION:
        raise Corrupt(f"{name}: has format version {version}, this broker reads up to {VERSION}: upgrade it")
    raise Corrupt(f"{name}: format version {version} does not exist")
