import random
from collections.abc import Sequence

import pytest

from lakestream.clock import SystemClock
from lakestream.data.wal.footers import may_be_sealed, object_footer, segment_footers
from lakestream.data.wal.format import TAIL_SIZE, ExtentData, Frame, FrameKind, encode, encode_seal, walk_segment
from lakestream.data.wal.names import object_key, parse_object_key, parse_segment_name, segment_name
from lakestream.errors import Corrupt, Missing
from lakestream.model import Buffer, Span
from lakestream.storage.memory import MemoryObjectStore
from lakestream.testing.memory_segments import MemoryDisk, MemorySegments

NAME = segment_name(5, "writer", 1)
PARTS = [ExtentData("topic", 0, "claim", [b"0123456789" * 50], 5), ExtentData("topic", 1, "other", [b"xyz"], 1)]


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
def files(disk: MemoryDisk) -> MemorySegments:
    return MemorySegments(disk, SystemClock(), random.Random(1))


async def write(files: MemorySegments, count: int, *, sealed: bool) -> list[Frame]:
    segment = await files.create(NAME)
    frames = []
    for number in range(count):
        frame = encode(
            PARTS,
            writer_id="writer",
            sequence=number,
            stored_ms=1,
            kind=FrameKind.SEGMENT_FRAME,
            position=segment.size,
        )
        await segment.append(frame.buffers)
        frames.append(frame)
    if sealed:
        seal = encode_seal(writer_id="writer", sequence=count, stored_ms=1, position=segment.size)
        await segment.append(seal.buffers)
    return frames


@pytest.mark.parametrize("count", [1, 700, 3000])
async def test_an_objects_footer(count: int) -> None:
    parts = [ExtentData("t" * 32, number, "c" * 32, [b"x" * 10], 1) for number in range(count)]
    frame = encode(parts, writer_id="w", sequence=1, stored_ms=1)
    assert count < 1000 or frame.size > TAIL_SIZE * 2
    store = MemoryObjectStore(SystemClock())
    await store.put("wal/o", frame.buffers)
    assert await object_footer(store, "wal/o", frame.size) == frame.footer


async def test_damaged_object_raises_corrupt_and_missing_one_missing() -> None:
    frame = encode(PARTS, writer_id="w", sequence=1, stored_ms=1)
    store = MemoryObjectStore(SystemClock())
    await store.put("wal/o", [b"".join(frame.buffers)[:-1]])
    with pytest.raises(Corrupt, match="wal/o"):
        await object_footer(store, "wal/o", frame.size - 1)
    await store.put("wal/o", [b""])
    with pytest.raises(Corrupt, match="wal/o"):
        await object_footer(store, "wal/o", 0)
    with pytest.raises(Missing):
        await object_footer(store, "wal/nothing", 100)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("count", [0, 1, 5])
async def test_a_segments_footers(files: MemorySegments, count: int, sealed: bool) -> None:
    frames = await write(files, count, sealed=sealed)
    assert await segment_footers(files, NAME) == ([frame.footer for frame in frames], sealed, 0)


async def test_many_small_frames_take_few_reads(files: MemorySegments, monkeypatch: pytest.MonkeyPatch) -> None:
    frames = await write(files, 1_000, sealed=True)
    read = files.read
    spans: list[Span] = []

    async def counted(name: str, wanted: Sequence[Span]) -> list[Buffer]:
        spans.extend(wanted)
        return await read(name, wanted)

    monkeypatch.setattr(files, "read", counted)
    assert (await segment_footers(files, NAME)).footers == [frame.footer for frame in frames]
    assert len(spans) < 10
    assert sum(span.size for span in spans) < 1.1 * sum(frame.size for frame in frames)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("count", [0, 3])
async def test_may_be_sealed_reads_only_the_last_bytes(files: MemorySegments, count: int, sealed: bool) -> None:
    await write(files, count, sealed=sealed)
    assert await may_be_sealed(files, NAME) is sealed


async def test_footers_agree_with_a_full_walk_at_every_cut(files: MemorySegments, disk: MemoryDisk) -> None:
    await write(files, 3, sealed=True)
    whole = bytes(disk.files[NAME].data)
    for cut in range(len(whole)):
        disk.files[NAME].data = bytearray(whole[:cut])
        walked = walk_segment(whole[:cut], NAME)
        read = await segment_footers(files, NAME)
        assert read == ([frame.footer for frame in walked.frames], walked.sealed, walked.torn_size)


async def test_a_damaged_footer_before_good_frames_is_corrupt(files: MemorySegments, disk: MemoryDisk) -> None:
    frames = await write(files, 3, sealed=False)
    disk.files[NAME].data[frames[0].size - 30] ^= 1
    with pytest.raises(Corrupt, match=NAME):
        await segment_footers(files, NAME)


async def test_missing_segment_raises_missing(files: MemorySegments) -> None:
    with pytest.raises(Missing):
        await segment_footers(files, NAME)


def test_names_round_trip() -> None:
    assert object_key(12, "ab-cd", 3) == "wal/000000000000012-ab-cd-0000000003.wal"
    assert parse_object_key(object_key(12, "ab-cd", 3)) == (12, "ab-cd", 3)
    assert segment_name(12, "w", 10**7) == "000000000000012-w-10000000.seg"
    assert parse_segment_name(segment_name(12, "w", 10**7)) == (12, "w", 10**7)
    assert parse_segment_name("wal/" + NAME) is None
    assert parse_object_key(NAME) is None
    assert segment_name(9, "z", 1) < segment_name(10, "a", 1)
