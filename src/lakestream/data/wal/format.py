"""The WAL's bytes. Pure: buffers in, buffers out.

Before: the writer, with the batches of one flush.  After: an object store or a segment file.

Everything is made of **frames**. An object is exactly one frame; a segment is frames back to back, the last of them a
seal if the segment was closed cleanly. All numbers are big-endian.

    header   magic "LKWF" · version u16 · kind u16 · position u64 · length u64 · footer length u32 · header crc u32
    batches  back to back, exactly as the clients sent them
    footer   msgpack: [writer id, sequence, stored_ms, [[topic id, partition, claim id, start, end, records] ...]]
    trailer  footer crc u32 · footer length u32 · version u16 · kind u16 · magic "LKWE" · frame crc u32

Each checksum is CRC-32C. The frame's covers all that stands before it; the footer's covers the footer and the trailer
up to the magic, so a footer can be trusted without reading the batches. `position` is where the frame starts in its
segment: a frame that is found anywhere else is not one. That tells a torn tail (a writer died in its last append;
nothing in it was acknowledged) from damage in the middle, even if records hold bytes that look like a frame.

Whatever is wrong with the bytes is Corrupt and names the object. Lengths are checked before they are believed.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple, NoReturn

import msgspec

from lakestream.batch import checksum_with
from lakestream.checksum import crc32c
from lakestream.errors import Corrupt
from lakestream.model import Buffer, Span

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
"""A good first guess for the ranged read of an object's footer: about 800 ranges."""


class Kind(IntEnum):
    OBJECT = 1
    SEGMENT_FRAME = 2
    SEGMENT_SEAL = 3


class Range(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition's batches inside a frame; bytes count from the frame's start."""

    topic_id: str
    partition: int
    claim_id: str
    byte_start: int
    byte_end: int
    record_count: int

    @property
    def span(self) -> Span:
        return Span(self.byte_start, self.byte_end)


class Footer(msgspec.Struct, frozen=True, array_like=True):
    writer_id: str
    sequence: int
    """Number of the frame in its writer; grows, may leave gaps."""
    stored_ms: int
    ranges: tuple[Range, ...]


class Part(NamedTuple):
    """What goes into a frame for one partition."""

    topic_id: str
    partition: int
    claim_id: str
    batches: Sequence[Buffer]
    record_count: int
    crcs: Sequence[int] = ()
    """The checksum that each batch carries, if the batches were held against them."""


class Frame(NamedTuple):
    """An encoded frame, ready to be written."""

    buffers: list[Buffer]
    """Header, every batch as it was given, footer with trailer: never joined."""
    size: int
    footer: Footer

    @property
    def ranges(self) -> tuple[Range, ...]:
        return self.footer.ranges


class Decoded(NamedTuple):
    """A frame that was read and checked whole."""

    kind: Kind
    position: int
    size: int
    footer: Footer
    body: memoryview

    @property
    def ranges(self) -> tuple[Range, ...]:
        return self.footer.ranges

    def bytes_of(self, part: Range) -> memoryview:
        return self.body[part.byte_start : part.byte_end]


class MoreNeeded(NamedTuple):
    """The tail was too short: read this many bytes from the end and try again."""

    size: int


class Segment(NamedTuple):
    frames: list[Decoded]
    sealed: bool
    """Closed cleanly. If not, its writer still writes or has died."""
    good_size: int
    torn_size: int
    """Bytes behind the last good frame that a dying writer left; nothing in them was acknowledged."""


class Header(NamedTuple):
    kind: Kind
    position: int
    length: int
    footer_length: int

    @property
    def tail_size(self) -> int:
        """Footer and trailer."""
        return self.footer_length + TRAILER_SIZE

    def belongs_at(self, position: int) -> bool:
        return self.kind is not Kind.OBJECT and self.position == position


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Footer)


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode(
    parts: Sequence[Part],
    *,
    writer_id: str,
    sequence: int,
    stored_ms: int,
    kind: Kind = Kind.OBJECT,
    position: int = 0,
) -> Frame:
    """`position`: size of the segment so far, 0 in an object."""
    assert bool(parts) != (kind is Kind.SEGMENT_SEAL), "a frame holds batches, a seal none"
    buffers: list[Buffer] = [b""]
    ranges = []
    end = HEADER_SIZE
    for topic_id, partition, claim_id, batches, record_count, _ in parts:
        start = end
        for batch in batches:
            end += len(batch)
        assert end > start, "a claim is never empty"
        assert record_count > 0, "a claim is never empty"
        buffers += batches
        ranges.append(Range(topic_id, partition, claim_id, start, end, record_count))
    footer = Footer(writer_id, sequence, stored_ms, tuple(ranges))
    packed = _encoder.encode(footer)
    size = end + len(packed) + TRAILER_SIZE
    buffers[0] = _pack_header(kind, position, size, len(packed))
    buffers.append(packed + _pack_footer_check(packed, kind))
    crc = crc32c(buffers[0])
    for part in parts:
        crc = _checksum_with(crc, part)
    buffers.append(_CRC.pack(crc32c(buffers[-1], crc)))
    return Frame(buffers, size, footer)


def _checksum_with(crc: int, part: Part) -> int:
    if part.crcs:
        for batch, own_crc in zip(part.batches, part.crcs, strict=True):
            crc = checksum_with(crc, batch, own_crc)
    else:
        for batch in part.batches:
            crc = crc32c(batch, crc)
    return crc


def encode_seal(*, writer_id: str, sequence: int, stored_ms: int, position: int) -> Frame:
    """The frame that ends a segment."""
    return encode(
        (), writer_id=writer_id, sequence=sequence, stored_ms=stored_ms, kind=Kind.SEGMENT_SEAL, position=position
    )


def _pack_header(kind: Kind, position: int, size: int, footer_length: int) -> bytes:
    plain = _HEADER.pack(_MAGIC, VERSION, kind, position, size, footer_length, 0)[: -_CRC.size]
    return plain + _CRC.pack(crc32c(plain))


def _pack_footer_check(packed: bytes, kind: Kind) -> bytes:
    checked = _FOOTER_CHECKED.pack(len(packed), VERSION, kind, _END_MAGIC)
    return _CRC.pack(crc32c(checked, crc32c(packed))) + checked


# ── reading an object ────────────────────────────────────────────────────────────────────────────────────────────────


def decode(body: Buffer, name: str) -> Decoded:
    """A whole object, everything in it checked (the batches' own checksums are left to whoever opens them)."""
    view = memoryview(body)
    header = decode_header(view, name)
    if header.kind is not Kind.OBJECT:
        raise Corrupt(f"{name}: holds a segment's frame where an object was expected")
    if header.length != len(view):
        raise Corrupt(f"{name}: {header.length} bytes were written, {len(view)} are there")
    return _decode_frame(view, 0, header, name)


def decode_footer(tail: Buffer, size: int, name: str) -> Footer | MoreNeeded:
    """The footer of an object of `size` bytes, from its last bytes. It is proven, the batches are not."""
    view = memoryview(tail)
    if size < FRAME_SIZE_MIN or len(view) > size:
        raise Corrupt(f"{name}: {size} bytes are too few for a WAL object")
    if len(view) < TRAILER_SIZE:
        return MoreNeeded(TRAILER_SIZE)
    kind, footer_length = _decode_trailer(view, name)
    if kind is not Kind.OBJECT:
        raise Corrupt(f"{name}: ends with a segment's frame where an object was expected")
    needed = footer_length + TRAILER_SIZE
    if needed > size - HEADER_SIZE:
        raise Corrupt(f"{name}: its footer claims {footer_length} bytes of an object of {size}")
    if len(view) < needed:
        return MoreNeeded(needed)
    return _decode_footer(view[len(view) - needed :], size, kind, name)


# ── reading a segment ────────────────────────────────────────────────────────────────────────────────────────────────


def walk_segment(body: Buffer, name: str) -> Segment:
    """All good frames of a segment, in order. A torn tail is measured, damage before the tail is Corrupt."""
    view = memoryview(body)
    size = len(view)
    frames: list[Decoded] = []
    last: Footer | None = None
    sealed = False
    at = 0
    while at < size:
        try:
            frame = _decode_segment_frame(view, at, name)
        except Corrupt:
            if sealed:
                raise Corrupt(f"{name}: {size - at} stray bytes behind the segment's seal") from None
            if not _is_torn(view, at, last):
                raise
            break
        check_follows(last, sealed, frame.footer, f"{name} at byte {at}")
        frames.append(frame)
        last, sealed = frame.footer, frame.kind is Kind.SEGMENT_SEAL
        at += frame.size
    return Segment(frames, sealed, at, size - at)


def _decode_segment_frame(view: memoryview, at: int, name: str) -> Decoded:
    where = f"{name} at byte {at}"
    header = decode_header(view[at : at + HEADER_SIZE], where)
    if header.kind is Kind.OBJECT:
        raise Corrupt(f"{where}: holds an object where a segment's frame was expected")
    if header.position != at:
        raise Corrupt(f"{where}: frame was written for byte {header.position}")
    if header.length > len(view) - at:
        raise Corrupt(f"{where}: frame is cut off: {header.length} bytes were written, {len(view) - at} are there")
    return _decode_frame(view[at : at + header.length], at, header, where)


def check_follows(last: Footer | None, sealed: bool, footer: Footer, where: str) -> None:
    """A segment has one writer, whose frames are numbered upwards, and ends with its seal."""
    if sealed:
        raise Corrupt(f"{where}: frame behind the segment's seal")
    if last is not None and (footer.writer_id != last.writer_id or footer.sequence <= last.sequence):
        raise Corrupt(
            f"{where}: frame {footer.sequence} of writer {footer.writer_id} follows"
            f" frame {last.sequence} of writer {last.writer_id}"
        )


def _is_torn(view: memoryview, at: int, last: Footer | None) -> bool:
    """Whether the bytes from `at` on can be what a dying writer left of its last append."""
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


def _is_later_frame(view: memoryview, at: int, last: Footer | None) -> bool:
    """Whether a later append began here. It begins only when the one before is durable: what is before it is not torn.

    At its own position a header is proof enough. Elsewhere (bytes were lost in between) it must be a whole frame of the
    same writer, or it is only a record that holds a segment.
    """
    header = _try_header(view, at)
    if header is None or header.kind is Kind.OBJECT:
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


def _try_header(view: memoryview, at: int) -> Header | None:
    try:
        return decode_header(view[at : at + HEADER_SIZE], "")
    except Corrupt:
        return None


def _is_newer(head: memoryview) -> bool:
    """Starts like a frame of a version that this program does not know: never take it for a torn tail."""
    return len(head) >= 6 and bytes(head[:4]) == _MAGIC and int.from_bytes(head[4:6], "big") > VERSION


# ── the pieces ───────────────────────────────────────────────────────────────────────────────────────────────────────


def decode_header(head: Buffer, name: str) -> Header:
    if len(head) < HEADER_SIZE:
        raise Corrupt(f"{name}: {len(head)} bytes are too few for a WAL frame")
    magic, version, kind, position, length, footer_length, crc = _HEADER.unpack_from(head)
    if magic != _MAGIC:
        raise Corrupt(f"{name}: does not start like a WAL frame")
    if version != VERSION:
        _refuse_version(version, name)
    if crc32c(memoryview(head)[: HEADER_SIZE - _CRC.size]) != crc:
        raise Corrupt(f"{name}: header is damaged (checksum)")
    if footer_length + FRAME_SIZE_MIN > length:
        raise Corrupt(f"{name}: header claims a footer of {footer_length} bytes in a frame of {length}")
    return Header(_kind(kind, name), position, length, footer_length)


def _decode_frame(frame: memoryview, position: int, header: Header, name: str) -> Decoded:
    """`frame` is exactly as long as its header says."""
    size = len(frame)
    (crc,) = _CRC.unpack_from(frame, size - _CRC.size)
    if crc32c(frame[: size - _CRC.size]) != crc:
        raise Corrupt(f"{name}: frame is damaged (checksum)")
    return Decoded(header.kind, position, size, decode_frame_footer(frame, header, name), frame)


def decode_frame_footer(frame: Buffer, header: Header, name: str) -> Footer:
    """The footer of a frame whose header is known, from the frame or its last `header.tail_size` bytes."""
    view = memoryview(frame)
    if len(view) < header.tail_size:
        raise Corrupt(f"{name}: {len(view)} bytes are too few for a footer of {header.footer_length}")
    kind, footer_length = _decode_trailer(view, name)
    if kind is not header.kind or footer_length != header.footer_length:
        raise Corrupt(f"{name}: header and trailer do not agree")
    return _decode_footer(view[len(view) - header.tail_size :], header.length, kind, name)


def ends_like_a_seal(end: Buffer) -> bool:
    """By the trailer alone, unchecked."""
    try:
        return _decode_trailer(memoryview(end), "")[0] is Kind.SEGMENT_SEAL
    except Corrupt:
        return False


def _decode_trailer(tail: memoryview, name: str) -> tuple[Kind, int]:
    at = len(tail) - TRAILER_SIZE
    _footer_crc, footer_length, version, kind, magic, _crc = _TRAILER.unpack_from(tail, at)
    if magic != _END_MAGIC:
        raise Corrupt(f"{name}: does not end like a WAL frame")
    if version != VERSION:
        _refuse_version(version, name)
    return _kind(kind, name), footer_length


def _decode_footer(tail: memoryview, size: int, kind: Kind, name: str) -> Footer:
    """`tail` is exactly footer and trailer, the end of a frame of `size` bytes."""
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


def _check_ranges(footer: Footer, batches_end: int, kind: Kind, name: str) -> None:
    """Ranges lie back to back and fill the frame: no byte belongs to nobody."""
    end = HEADER_SIZE
    for part in footer.ranges:
        if part.byte_start != end or part.byte_end <= end or part.record_count < 1 or part.partition < 0:
            raise Corrupt(f"{name}: footer lists a wrong range: {part}")
        end = part.byte_end
    if end != batches_end:
        raise Corrupt(f"{name}: footer lists batches up to byte {end}, they end at {batches_end}")
    if bool(footer.ranges) == (kind is Kind.SEGMENT_SEAL):
        raise Corrupt(f"{name}: a frame holds batches, a seal none")


def _kind(number: int, name: str) -> Kind:
    try:
        return Kind(number)
    except ValueError:
        raise Corrupt(f"{name}: unknown kind of frame: {number}") from None


def _refuse_version(version: int, name: str) -> NoReturn:
    if version > VERSION:
        raise Corrupt(f"{name}: written in format version {version}, this program knows up to {VERSION}: upgrade it")
    raise Corrupt(f"{name}: format version {version} does not exist")
