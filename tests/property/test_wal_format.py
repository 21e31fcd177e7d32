"""WAL frames under any damage: decoding returns what was written, or raises Corrupt."""

import struct
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise

import pytest
from crc32c import crc32c
from hypothesis import example, given
from hypothesis import strategies as st

from lakestream.data.wal.format import (
    FRAME_SIZE_MIN,
    HEADER_SIZE,
    TRAILER_SIZE,
    VERSION,
    DecodedFrame,
    ExtentData,
    Frame,
    FrameFooter,
    FrameKind,
    MoreNeeded,
    decode,
    decode_footer,
    encode,
    encode_seal,
    walk_segment,
)
from lakestream.errors import Corrupt

NAME = "wal/some-object.wal"

identities = st.text(st.characters(codec="utf-8"), max_size=40)
numbers = st.integers(0, 2**63 - 1)
batches = st.binary(min_size=1, max_size=200)
parts = st.builds(
    ExtentData,
    identities,
    st.integers(0, 2**31 - 1),
    identities,
    st.lists(batches, min_size=1, max_size=4),
    st.integers(1, 2**31),
    st.just(()),  # no checksums: the bytes are not valid batches
)
some_parts = st.lists(parts, min_size=1, max_size=6)

ONE = [ExtentData("topic", 0, "claim", [b"0123456789", b"abc"], 5), ExtentData("topic", 1, "other", [b"xyz"], 1)]


def joined(frame: Frame) -> bytes:
    return b"".join(frame.buffers)


def an_object(given_parts: Sequence[ExtentData] = ONE, sequence: int = 3) -> bytes:
    return joined(encode(given_parts, writer_id="writer", sequence=sequence, stored_ms=1_700_000_000_000))


def a_segment(
    frames: Sequence[Sequence[ExtentData]], *, sealed: bool, writer_id: str = "writer"
) -> tuple[bytes, list[int]]:
    """Returns the bytes of a segment, and the start of each frame."""
    body, starts = b"", []
    for sequence, given_parts in enumerate(frames):
        starts.append(len(body))
        body += joined(
            encode(
                given_parts,
                writer_id=writer_id,
                sequence=sequence,
                stored_ms=7,
                kind=FrameKind.SEGMENT_FRAME,
                position=len(body),
            )
        )
    if sealed:
        starts.append(len(body))
        body += joined(encode_seal(writer_id=writer_id, sequence=len(frames), stored_ms=8, position=len(body)))
    return body, starts


def contents(frame: DecodedFrame) -> list[tuple[str, int, str, bytes, int]]:
    return [
        (part.topic_id, part.partition, part.claim_id, bytes(frame.bytes_of(part)), part.record_count)
        for part in frame.ranges
    ]


def wanted(given_parts: Sequence[ExtentData]) -> list[tuple[str, int, str, bytes, int]]:
    return [(part[0], part[1], part[2], b"".join(part.batches), part.record_count) for part in given_parts]


def flipped(body: bytes, bit: int) -> bytes:
    changed = bytearray(body)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# ── objects ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(some_parts, identities, numbers, numbers)
def test_objects_round_trip(given_parts: list[ExtentData], writer_id: str, sequence: int, stored_ms: int) -> None:
    frame = encode(given_parts, writer_id=writer_id, sequence=sequence, stored_ms=stored_ms)
    body = joined(frame)
    assert len(body) == frame.size
    read = decode(body, NAME)
    assert read.footer == frame.footer == FrameFooter(writer_id, sequence, stored_ms, frame.ranges)
    assert (read.kind, read.position, read.size) == (FrameKind.OBJECT, 0, len(body))
    assert contents(read) == wanted(given_parts)


def test_batches_are_not_copied() -> None:
    frame = encode(ONE, writer_id="w", sequence=1, stored_ms=1)
    given_batches = [batch for part in ONE for batch in part.batches]
    assert all(mine is theirs for mine, theirs in zip(frame.buffers[1:], given_batches, strict=False))


@given(some_parts, st.data())
def test_any_cut_is_corrupt(given_parts: list[ExtentData], data: st.DataObject) -> None:
    body = an_object(given_parts)
    start = data.draw(st.integers(0, len(body)))
    end = data.draw(st.integers(start, len(body)))
    if (start, end) != (0, len(body)):
        with pytest.raises(Corrupt, match=NAME):
            decode(body[start:end], NAME)


def test_every_single_cut_and_every_added_byte_is_corrupt() -> None:
    body = an_object()
    for size in range(len(body)):
        for cut in (body[:size], body[size + 1 :], body[:size] + body[size + 1 :], body[:size] + b"\0" + body[size:]):
            with pytest.raises(Corrupt, match=NAME):
                decode(cut, NAME)
    with pytest.raises(Corrupt):
        decode(body + b"\0", NAME)


def test_every_flipped_bit_is_corrupt() -> None:
    body = an_object()
    for bit in range(len(body) * 8):
        with pytest.raises(Corrupt, match=NAME):
            decode(flipped(body, bit), NAME)


@given(some_parts, st.data())
def test_any_overwritten_stretch_is_corrupt(given_parts: list[ExtentData], data: st.DataObject) -> None:
    body = an_object(given_parts)
    start = data.draw(st.integers(0, len(body) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=len(body) - start))
    changed = body[:start] + noise + body[start + len(noise) :]
    if changed != body:
        with pytest.raises(Corrupt, match=NAME):
            decode(changed, NAME)


@given(st.binary(max_size=400))
@example(b"")
@example(b"LKWF")
@example(b"LKWF" + b"\xff" * 100)
@example(b"\0" * FRAME_SIZE_MIN)
def test_garbage_is_corrupt(garbage: bytes) -> None:
    with pytest.raises(Corrupt, match=NAME):
        decode(garbage, NAME)
    with pytest.raises(Corrupt, match=NAME):
        decode(b"LKWF" + garbage, NAME)
    if len(garbage) >= TRAILER_SIZE:
        with pytest.raises(Corrupt, match=NAME):
            decode_footer(garbage, len(garbage), NAME)


@given(st.integers(VERSION + 1, 2**16 - 1))
def test_newer_version_is_corrupt_and_asks_for_an_upgrade(version: int) -> None:
    body = bytearray(an_object())
    struct.pack_into(">H", body, 4, version)
    with pytest.raises(Corrupt, match=f"{NAME}.* version {version},.*upgrade"):
        decode(body, NAME)
    struct.pack_into(">H", body, len(body) - 12, version)
    with pytest.raises(Corrupt, match=f"{NAME}.* version {version},.*upgrade"):
        decode_footer(body, len(body), NAME)


def test_version_zero_is_corrupt() -> None:
    body = bytearray(an_object())
    struct.pack_into(">H", body, 4, 0)
    with pytest.raises(Corrupt, match="does not exist"):
        decode(body, NAME)


# ── footers, read from the end ───────────────────────────────────────────────────────────────────────────────────────


@given(some_parts, st.data())
def test_decode_footer_returns_the_footer_or_the_bytes_it_needs(
    given_parts: list[ExtentData], data: st.DataObject
) -> None:
    body = an_object(given_parts)
    tail_size = data.draw(st.integers(0, len(body)))
    answer = decode_footer(body[len(body) - tail_size :], len(body), NAME)
    for _ in range(2):
        if isinstance(answer, MoreNeeded):
            assert tail_size < answer.size <= len(body)
            tail_size = answer.size
            answer = decode_footer(body[len(body) - tail_size :], len(body), NAME)
    assert answer == decode(body, NAME).footer


def test_a_flipped_bit_in_the_tail_never_changes_the_footer() -> None:
    body = an_object()
    footer = decode(body, NAME).footer
    frame_crc_start = len(body) - 4
    for bit in range(len(body) * 8):
        try:
            read = decode_footer(flipped(body, bit), len(body), NAME)
        except Corrupt:
            continue
        # Only what the footer's checksum does not cover: the header, the batches, the frame's checksum.
        assert read == footer
        assert bit // 8 < HEADER_SIZE + 16 or bit // 8 >= frame_crc_start


@given(st.integers(0, 300))
def test_a_tail_of_an_object_of_another_size_is_corrupt(size: int) -> None:
    body = an_object()
    if size != len(body):
        with pytest.raises(Corrupt, match=NAME):
            decode_footer(body[-size:] if size else b"", size, NAME)


# ── invalid footers with valid checksums ─────────────────────────────────────────────────────────────────────────────


def forged(
    footer: bytes, *, batches_size: int = 16, length: int | None = None, footer_length: int | None = None
) -> bytes:
    """Returns an object with valid checksums and an invalid footer."""
    said = len(footer) if footer_length is None else footer_length
    size = HEADER_SIZE + batches_size + len(footer) + TRAILER_SIZE
    head = struct.pack(">4sHHQQI", b"LKWF", VERSION, FrameKind.OBJECT, 0, size if length is None else length, said)
    checked = struct.pack(">IHH4s", said, VERSION, FrameKind.OBJECT, b"LKWE")
    body = head + struct.pack(">I", crc32c(head)) + b"x" * batches_size + footer
    body += struct.pack(">I", crc32c(footer + checked)) + checked
    return body + struct.pack(">I", crc32c(body))


def packed(ranges: bytes) -> bytes:
    return b"\x94\xa1w\x01\x02" + ranges


def a_range(start: int, end: int, *, partition: bytes = b"\x00", count: bytes = b"\x01") -> bytes:
    return b"\x96\xa1t" + partition + b"\xa1c" + bytes((start, end)) + count


def test_forged_object_with_valid_ranges_decodes() -> None:
    assert len(decode(forged(packed(b"\x91" + a_range(32, 48))), NAME).ranges) == 1


@pytest.mark.parametrize(
    "footer",
    [
        b"",
        b"\xc0",
        b"\xc1",
        b"\x90",
        b"\x94",
        b"\x91" * 100_000,
        packed(b"\x90"),
        packed(b"\xdd\xff\xff\xff\xff"),
        packed(b"\xdf\xff\xff\xff\xff"),
        packed(b"\xc6\xff\xff\xff\xff"),
        packed(b"\xdb\xff\xff\xff\xff"),
        packed(b"\x91" + a_range(32, 48))[:-1],
        packed(b"\x91" + a_range(32, 48)) + b"\0",
        packed(b"\x91" + a_range(31, 48)),
        packed(b"\x91" + a_range(32, 47)),
        packed(b"\x91" + a_range(32, 49)),
        packed(b"\x91" + a_range(48, 32)),
        packed(b"\x92" + a_range(32, 40) + a_range(41, 48)),
        packed(b"\x92" + a_range(32, 48) + a_range(32, 48)),
        packed(b"\x92" + a_range(32, 48) + a_range(48, 48)),
        packed(b"\x91" + a_range(32, 48, count=b"\x00")),
        packed(b"\x91" + a_range(32, 48, count=b"\xff")),
        packed(b"\x91" + a_range(32, 48, partition=b"\xff")),
        packed(b"\x91" + a_range(32, 48, partition=b"\xa1x")),
        packed(b"\x91" + a_range(32, 48, partition=b"\xcb\x7f\xf0\0\0\0\0\0\0")),
        b"\x94\xa2\xff\xff\x01\x02\x91" + a_range(32, 48),
        b"\x95\xa1w\x01\x02\x91" + a_range(32, 48) + b"\x91" * 50_000,
    ],
)
def test_invalid_footer_with_a_valid_checksum_is_corrupt(footer: bytes) -> None:
    body = forged(footer)
    tracemalloc.start()
    try:
        with pytest.raises(Corrupt, match=NAME):
            decode(body, NAME)
        with pytest.raises(Corrupt, match=NAME):
            decode_footer(body, len(body), NAME)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("length", [0, 1, FRAME_SIZE_MIN, 2**32, 2**63, 2**64 - 1])
def test_invalid_length_with_a_valid_checksum_is_corrupt(length: int) -> None:
    with pytest.raises(Corrupt, match=NAME):
        decode(forged(packed(b"\x91" + a_range(32, 48)), length=length), NAME)
    with pytest.raises(Corrupt, match=NAME):
        walk_segment(
            forged(packed(b"\x91" + a_range(32, 48)), footer_length=length % 2**32) + a_segment([ONE], sealed=True)[0],
            NAME,
        )


@pytest.mark.parametrize("footer_length", [0, 1, 100, 2**31, 2**32 - 1])
def test_invalid_footer_length_with_a_valid_checksum_is_corrupt(footer_length: int) -> None:
    body = forged(packed(b"\x91" + a_range(32, 48)), footer_length=footer_length)
    with pytest.raises(Corrupt, match=NAME):
        decode(body, NAME)
    with pytest.raises(Corrupt, match=NAME):
        decode_footer(body, len(body), NAME)


# ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────────────

some_frames = st.lists(some_parts, max_size=4)


@given(some_frames, st.booleans())
def test_segments_round_trip(frames: list[list[ExtentData]], sealed: bool) -> None:
    body, starts = a_segment(frames, sealed=sealed)
    segment = walk_segment(body, NAME)
    assert [frame.position for frame in segment.frames] == starts
    assert [contents(frame) for frame in segment.frames] == [wanted(each) for each in frames] + [[]] * sealed
    assert (segment.sealed, segment.good_size, segment.torn_size) == (sealed, len(body), 0)


@given(some_frames, st.booleans(), st.data())
def test_frames_before_a_torn_tail_are_returned(
    frames: list[list[ExtentData]], sealed: bool, data: st.DataObject
) -> None:
    body, starts = a_segment(frames, sealed=sealed)
    cut = data.draw(st.integers(0, len(body)))
    # Blocks that never reached the disk read as zeros.
    torn = body[:cut] + b"\0" * data.draw(st.integers(0, 100))
    if sealed and cut == len(body) < len(torn):
        return  # bytes behind a seal: below
    segment = walk_segment(torn, NAME)
    whole = [start for start, end in pairwise([*starts, len(body)]) if end <= cut]
    assert [frame.position for frame in segment.frames] == whole
    assert segment.good_size + segment.torn_size == len(torn)


@given(st.lists(some_parts, min_size=2, max_size=4), st.booleans(), st.data())
def test_damage_before_the_last_frame_is_corrupt(
    frames: list[list[ExtentData]], sealed: bool, data: st.DataObject
) -> None:
    body, starts = a_segment(frames, sealed=sealed)
    bit = data.draw(st.integers(0, starts[-1] * 8 - 1))
    with pytest.raises(Corrupt, match=NAME):
        walk_segment(flipped(body, bit), NAME)


@given(st.lists(some_parts, min_size=1, max_size=3), st.data())
def test_damage_in_the_last_frame_is_torn_or_corrupt_never_wrong(
    frames: list[list[ExtentData]], data: st.DataObject
) -> None:
    body, starts = a_segment(frames, sealed=False)
    bit = data.draw(st.integers(starts[-1] * 8, len(body) * 8 - 1))
    try:
        segment = walk_segment(flipped(body, bit), NAME)
    except Corrupt:
        assert bit // 8 - starts[-1] in (4, 5)  # it looks like a newer version, which is never dropped
        return
    assert [frame.position for frame in segment.frames] == starts[:-1]
    assert segment.torn_size == len(body) - starts[-1]


def test_removed_frame_is_corrupt() -> None:
    body, starts = a_segment([ONE, ONE, ONE], sealed=True)
    for gone in range(3):
        with pytest.raises(Corrupt, match="was written for byte"):
            walk_segment(body[: starts[gone]] + body[starts[gone + 1] :], NAME)


@given(st.data())
def test_removed_bytes_are_corrupt(data: st.DataObject) -> None:
    body, starts = a_segment([ONE, ONE, ONE], sealed=True)
    start = data.draw(st.integers(0, starts[-1] - 1))
    end = data.draw(st.integers(start + 1, starts[-1]))
    with pytest.raises(Corrupt, match=NAME):
        walk_segment(body[:start] + body[end:], NAME)


def test_records_that_hold_a_segment_do_not_confuse_a_torn_tail() -> None:
    inner, _ = a_segment([ONE, ONE], sealed=True, writer_id="another")
    body, starts = a_segment([ONE, [ExtentData("topic", 0, "claim", [inner, inner], 1)]], sealed=False)
    segment = walk_segment(body[:-1], NAME)
    assert [frame.position for frame in segment.frames] == starts[:1]
    assert segment.torn_size == len(body) - 1 - starts[1]


def test_bytes_behind_a_seal_are_corrupt() -> None:
    body, _ = a_segment([ONE], sealed=True)
    with pytest.raises(Corrupt, match="unexpected bytes"):
        walk_segment(body + b"\0", NAME)
    late = encode(ONE, writer_id="writer", sequence=9, stored_ms=1, kind=FrameKind.SEGMENT_FRAME, position=len(body))
    with pytest.raises(Corrupt, match="after the segment's seal"):
        walk_segment(body + joined(late), NAME)


def test_newer_frame_is_not_taken_for_a_torn_tail() -> None:
    body, starts = a_segment([ONE, ONE], sealed=False)
    changed = bytearray(body)
    struct.pack_into(">H", changed, starts[-1] + 4, VERSION + 1)
    with pytest.raises(Corrupt, match="upgrade"):
        walk_segment(changed, NAME)


@pytest.mark.parametrize(("writer_id", "sequence"), [("writer", 0), ("another", 9)])
def test_frames_of_other_writers_or_lower_numbers_are_corrupt(writer_id: str, sequence: int) -> None:
    body, _ = a_segment([ONE], sealed=False)
    wrong = encode(
        ONE, writer_id=writer_id, sequence=sequence, stored_ms=1, kind=FrameKind.SEGMENT_FRAME, position=len(body)
    )
    with pytest.raises(Corrupt, match="follows"):
        walk_segment(body + joined(wrong), NAME)


def test_object_is_not_decoded_as_a_segment_nor_the_reverse() -> None:
    segment, _ = a_segment([ONE], sealed=False)
    with pytest.raises(Corrupt, match="frame of a segment"):
        decode(segment, NAME)
    with pytest.raises(Corrupt, match="frame of a segment"):
        decode_footer(segment, len(segment), NAME)


@given(st.binary(max_size=300))
def test_garbage_alone_is_a_torn_tail(garbage: bytes) -> None:
    segment = walk_segment(garbage, NAME)
    assert (segment.frames, segment.torn_size) == ([], len(garbage))
