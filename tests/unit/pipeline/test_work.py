"""What a worker makes of a move: the same rows however the bytes lie, and nothing left behind where it fails."""

import random
from itertools import pairwise

import pytest
from tests.unit.data.table.plain import CODECS, Record
from tests.unit.pipeline.moving import Log, log_of_all_codecs, records, rows_of

from lakestream.catalog.locations import Locations
from lakestream.clock import RandomIds, SystemClock
from lakestream.data.wal.names import segment_name
from lakestream.metadata.claims import Medium
from lakestream.model import KiB, Span
from lakestream.pipeline.job import LocalJob, WorkSettings
from lakestream.pipeline.tasks import Moved, Outcome, Piece, Stuck
from lakestream.pipeline.work import JOIN_BYTES_MAX, Work, windows_of
from lakestream.storage.memory import MemoryStore
from lakestream.storage.object_store import Body
from lakestream.testing.memory_segments import MemoryDisk, MemorySegments
from lakestream.testing.object_faults import Faults, FaultyObjectStore

ROOT = "file:///lake"
LOCATIONS = Locations(ROOT)


class Place:
    """Stores in memory, and work over them."""

    def __init__(self, **settings: int) -> None:
        self.memory = MemoryStore(SystemClock())
        self.objects = FaultyObjectStore(self.memory, random.Random(1), Faults())
        self.disk = MemoryDisk()
        self.segments = MemorySegments(self.disk, SystemClock(), random.Random(1))
        self.work = Work(
            self.objects,
            self.segments,
            LOCATIONS,
            RandomIds(),
            WorkSettings(storage_url=ROOT, segments_dir=None, **settings),
        )

    async def run(self, *logs: Log) -> list[Outcome]:
        for log in logs:
            await log.store(self.memory)
        return await LocalJob(self.work).run([log.move(ROOT) for log in logs])

    async def files(self) -> list[str]:
        return [found.key async for page in self.memory.walk("tables") for found in page]


async def moved(place: Place, *logs: Log) -> list[Moved]:
    outcomes = await place.run(*logs)
    for outcome, log in zip(outcomes, logs, strict=True):
        assert isinstance(outcome, Moved), outcome
        assert outcome.record_count == len(log.records)
        assert await rows_of(outcome, place.memory, LOCATIONS) == log.records
    return [outcome for outcome in outcomes if isinstance(outcome, Moved)]


async def stuck(place: Place, log: Log) -> Stuck:
    (outcome,) = await place.run(log)
    assert isinstance(outcome, Stuck)
    assert await place.files() == []
    return outcome


async def test_all_codecs_become_rows() -> None:
    place = Place()
    (outcome,) = await moved(place, log_of_all_codecs())
    (file,) = outcome.files
    assert (file.partition, file.offset_first, file.offset_last) == (0, 0, 999)
    assert file.location.startswith(f"{ROOT}/tables/default/t-1/data/")
    assert [LOCATIONS.key_of(file.location)] == await place.files()


async def test_many_windows_and_many_moves_give_the_same_rows() -> None:
    place = Place(window_bytes=4 * KiB, room_bytes=16 * KiB, at_once=4)
    await moved(place, *(log_of_all_codecs(number, batches=number + 1) for number in range(12)))


async def test_a_move_of_several_files() -> None:
    place = Place(file_bytes_max=1)
    log = Log()
    for first in range(0, 40, 10):
        log.append(records(10, first, size=4_000_000 // 10))
    (outcome,) = await moved(place, log)
    assert len(outcome.files) > 1
    assert all(one.offset_last < other.offset_first for one, other in pairwise(outcome.files))


async def test_a_range_without_rows_is_moved_without_files() -> None:
    place = Place()
    assert (await moved(place, Log()))[0].files == ()


async def test_segments() -> None:
    place = Place()
    name = segment_name(1, "0" * 16, 0)
    log = Log(medium=Medium.SEGMENT)
    log.append(records(5), into=name)
    log.append(records(5, 5), "zstd", into=name, gap=100)
    segment = await place.segments.create(name)
    await segment.append([bytes(log.objects.pop(name))])
    await moved(place, log)


async def test_brokers_that_append_in_turns() -> None:
    """Their batches lie in two objects, and offsets alternate between them."""
    place, log = Place(), Log()
    for place_in_log in range(10):
        log.append(records(10, 10 * place_in_log), into=f"wal/{place_in_log % 2}.wal")
    await moved(place, log)


# ── what goes wrong ──────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_damaged_batch_stops_its_move_alone() -> None:
    place = Place(file_bytes_max=1)
    log, well = Log(0), Log(1)
    log.append(records(10, size=2_000_000), into="wal/0.wal")
    log.append(records(10, 10, size=2_000_000), into="wal/0.wal")
    well.append(records(10), into="wal/1.wal")
    log.objects["wal/0.wal"][-1] ^= 1
    bad, good = await place.run(log, well)
    assert isinstance(bad, Stuck)
    assert isinstance(good, Moved)
    assert not bad.temporary
    assert "wal/0.wal" in bad.reason
    assert bad.reason.endswith("or give it up: delete the partition's records up to behind it")
    assert await place.files() == [LOCATIONS.key_of(file.location) for file in good.files]


@pytest.mark.parametrize("gap", [0, 7, JOIN_BYTES_MAX, JOIN_BYTES_MAX + 1])
async def test_the_place_of_the_damage_is_that_in_the_object(gap: int) -> None:
    place, log = Place(), Log()
    log.append(records(10), gap=gap)
    log.append(records(10, 10), gap=gap)
    (_, (start, end, offset)) = log.placed["wal/1.wal"]
    log.objects["wal/1.wal"][end - 1] ^= 1
    assert f"wal/1.wal: record batch at byte {start} (offset {offset}) is damaged: " in (await stuck(place, log)).reason


async def test_an_object_that_is_gone_or_cut_off() -> None:
    place, log = Place(), Log()
    log.append(records(10))
    data = log.objects.pop("wal/1.wal")
    outcome = await stuck(place, log)
    assert (outcome.temporary, "wal/1.wal" in outcome.reason, "missing" in outcome.reason) == (False, True, True)
    log.objects["wal/1.wal"] = data[:-1]
    outcome = await stuck(place, log)
    assert (outcome.temporary, "shorter" in outcome.reason) == (False, True)


async def test_a_store_that_does_not_answer_is_tried_again_later() -> None:
    place, log = Place(), Log()
    log.append(records(10))
    place.objects.faults = Faults(error_before=1)
    assert (await stuck(place, log)).temporary
    place.objects.faults = Faults()
    await moved(place, log)


class LosesAnswers(MemoryStore):
    """Takes what it is given, and says that it did not."""

    async def create(self, key: str, body: Body) -> None:
        await super().create(key, body)
        raise TimeoutError("no answer")


async def test_what_was_stored_before_the_failure_is_removed() -> None:
    place, log = Place(), Log()
    place.memory = LosesAnswers(SystemClock())
    place.work = Work(place.memory, None, LOCATIONS, RandomIds(), WorkSettings(storage_url=ROOT, segments_dir=None))
    log.append(records(10))
    outcome = await stuck(place, log)
    assert "TimeoutError: no answer (test_work.py" in outcome.reason


async def test_batches_that_hold_other_offsets_than_the_log_says() -> None:
    place, log = Place(), Log()
    log.append(records(10))
    await log.store(place.memory)
    move = log.move(ROOT)
    log.records = log.records[:5]
    outcome = await stuck(place, log)
    assert "hold records 0 to 9" in outcome.reason
    assert isinstance((await LocalJob(place.work).run([move]))[0], Moved)


async def test_no_segments_without_a_folder() -> None:
    place = Place()
    place.work = Work(place.memory, None, LOCATIONS, RandomIds(), WorkSettings(storage_url=ROOT, segments_dir=None))
    log = Log(medium=Medium.SEGMENT)
    log.append(records(1))
    assert "--wal-dir" in (await stuck(place, log)).reason


# ── what is read together ────────────────────────────────────────────────────────────────────────────────────────────


def piece(name: str, *batches: tuple[int, int, int]) -> Piece:
    starts, ends, offsets = zip(*batches, strict=True)
    return Piece(Medium.OBJECT, name, starts, ends, offsets)


def shown(pieces: list[Piece], bytes_max: int = 1_000_000) -> list[list[tuple[str, Span, list[int]]]]:
    return [
        [(batches.piece.name, batches.span, batches.base_offsets.tolist()) for batches in window]
        for window in windows_of(pieces, bytes_max)
    ]


def test_near_batches_are_one_read_and_far_ones_two() -> None:
    far = 20 + JOIN_BYTES_MAX + 1
    found = shown([piece("a", (0, 10, 0), (12, 20, 1), (far, far + 5, 2))])
    assert found == [[("a", Span(0, 20), [0, 1]), ("a", Span(far, far + 5), [2])]]


def test_windows_go_by_offset_and_by_size() -> None:
    pieces = [piece("a", (0, 10, 0), (10, 20, 20)), piece("b", (0, 10, 10), (5_000, 5_010, 30))]
    assert shown(pieces, 20) == [
        [("a", Span(0, 10), [0]), ("b", Span(0, 10), [10])],
        [("a", Span(10, 20), [20]), ("b", Span(5_000, 5_010), [30])],
    ]
    assert [len(window) for window in windows_of(pieces, 1)] == [1, 1, 1, 1]


def test_what_lies_between_counts() -> None:
    window = 10_000
    assert len(shown([piece("a", (0, 10, 0), (window, window + 10, 1))], window)) == 2


def test_batches_that_lie_in_the_wrong_order_are_read_apart() -> None:
    assert shown([piece("a", (10, 20, 0), (0, 10, 1))]) == [[("a", Span(10, 20), [0]), ("a", Span(0, 10), [1])]]


def test_nothing_is_read_of_nothing() -> None:
    assert shown([]) == []


@pytest.mark.parametrize("codec", CODECS)
async def test_records_as_odd_as_they_come(codec: str) -> None:
    odd = [Record(0, -1, 0, None, None), Record(1, 2**63 - 1, 0, b"", b"", ((b"\xff", None), (b"h", b""), (b"h", b"")))]
    place, log = Place(), Log()
    log.append(odd, codec)
    await moved(place, log)
