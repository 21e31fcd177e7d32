"""Tests moves in a worker: rows do not depend on the layout of the bytes, and failed moves leave no files."""

import random
from itertools import pairwise

import pytest
from tests.harness.log.hand_written_logs import Log, log_of_all_codecs, records, rows_of
from tests.harness.table.reference_codec import CODECS, Record

from lakestream.catalog.locations import Locations
from lakestream.clock import RandomIds, SystemClock
from lakestream.data.wal.names import segment_name
from lakestream.metadata.claims import Medium
from lakestream.model import KiB, Span
from lakestream.pipeline.spark.job import LocalJob
from lakestream.pipeline.tasks import MoveFailed, MoveResult, Outcome, Piece, WorkSettings
from lakestream.pipeline.worker import JOIN_BYTES_MAX, Work, open_work, windows_of
from lakestream.storage.memory import MemoryObjectStore
from lakestream.storage.object_store import Body
from lakestream.storage.retrying import PATIENT, RetryingStore
from lakestream.testing.faulty_object_store import Faults, FaultyObjectStore
from lakestream.testing.memory_segments import MemoryDisk, MemorySegments

ROOT = "file:///lake"
LOCATIONS = Locations(ROOT)


class WorkerSetup:
    """Stores in memory, and a worker over them."""

    def __init__(self, **settings: int) -> None:
        self.memory = MemoryObjectStore(SystemClock())
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


async def moved(setup: WorkerSetup, *logs: Log) -> list[MoveResult]:
    outcomes = await setup.run(*logs)
    for outcome, log in zip(outcomes, logs, strict=True):
        assert isinstance(outcome, MoveResult), outcome
        assert outcome.record_count == len(log.records)
        assert await rows_of(outcome, setup.memory, LOCATIONS) == log.records
    return [outcome for outcome in outcomes if isinstance(outcome, MoveResult)]


async def failed(setup: WorkerSetup, log: Log) -> MoveFailed:
    (outcome,) = await setup.run(log)
    assert isinstance(outcome, MoveFailed)
    assert await setup.files() == []
    return outcome


async def test_batches_of_all_codecs_become_rows() -> None:
    setup = WorkerSetup()
    (outcome,) = await moved(setup, log_of_all_codecs())
    (file,) = outcome.files
    assert (file.partition, file.offset_first, file.offset_last) == (0, 0, 999)
    assert file.location.startswith(f"{ROOT}/tables/default/t-1/data/")
    assert [LOCATIONS.key_of(file.location)] == await setup.files()


async def test_rows_are_the_same_with_many_windows_and_concurrent_moves() -> None:
    setup = WorkerSetup(window_bytes=4 * KiB, memory_bytes=16 * KiB, at_once=4)
    await moved(setup, *(log_of_all_codecs(number, batches=number + 1) for number in range(12)))


async def test_large_move_becomes_several_files() -> None:
    setup = WorkerSetup(file_bytes_max=1)
    log = Log()
    for first in range(0, 40, 10):
        log.append(records(10, first, size=4_000_000 // 10))
    (outcome,) = await moved(setup, log)
    assert len(outcome.files) > 1
    assert all(one.offset_last < other.offset_first for one, other in pairwise(outcome.files))


async def test_move_without_rows_has_no_files() -> None:
    setup = WorkerSetup()
    assert (await moved(setup, Log()))[0].files == ()


async def test_batches_in_segments_become_rows() -> None:
    setup = WorkerSetup()
    name = segment_name(1, "0" * 16, 0)
    log = Log(medium=Medium.SEGMENT)
    log.append(records(5), into=name)
    log.append(records(5, 5), "zstd", into=name, gap=100)
    segment = await setup.segments.create(name)
    await segment.append([bytes(log.objects.pop(name))])
    await moved(setup, log)


async def test_batches_that_alternate_between_objects_become_rows() -> None:
    """Two brokers append in turns, so offsets alternate between two objects."""
    setup, log = WorkerSetup(), Log()
    for place_in_log in range(10):
        log.append(records(10, 10 * place_in_log), into=f"wal/{place_in_log % 2}.wal")
    await moved(setup, log)


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_damaged_batch_fails_only_its_own_move() -> None:
    setup = WorkerSetup(file_bytes_max=1)
    log, intact = Log(0), Log(1)
    log.append(records(10, size=2_000_000), into="wal/0.wal")
    log.append(records(10, 10, size=2_000_000), into="wal/0.wal")
    intact.append(records(10), into="wal/1.wal")
    log.objects["wal/0.wal"][-1] ^= 1
    bad, good = await setup.run(log, intact)
    assert isinstance(bad, MoveFailed)
    assert isinstance(good, MoveResult)
    assert not bad.temporary
    assert "wal/0.wal" in bad.reason
    assert bad.reason.endswith("or skip it: delete the partition's records up to and including it")
    assert await setup.files() == [LOCATIONS.key_of(file.location) for file in good.files]


@pytest.mark.parametrize("gap", [0, 7, JOIN_BYTES_MAX, JOIN_BYTES_MAX + 1])
async def test_error_has_the_byte_position_in_the_object(gap: int) -> None:
    setup, log = WorkerSetup(), Log()
    log.append(records(10), gap=gap)
    log.append(records(10, 10), gap=gap)
    (_, (start, end, offset)) = log.placed["wal/1.wal"]
    log.objects["wal/1.wal"][end - 1] ^= 1
    assert (
        f"wal/1.wal: record batch at byte {start} (offset {offset}) is damaged: " in (await failed(setup, log)).reason
    )


async def test_move_fails_when_its_object_is_missing_or_truncated() -> None:
    setup, log = WorkerSetup(), Log()
    log.append(records(10))
    data = log.objects.pop("wal/1.wal")
    outcome = await failed(setup, log)
    assert (outcome.temporary, "wal/1.wal" in outcome.reason, "missing" in outcome.reason) == (False, True, True)
    log.objects["wal/1.wal"] = data[:-1]
    outcome = await failed(setup, log)
    assert (outcome.temporary, "shorter" in outcome.reason) == (False, True)


async def test_failure_is_temporary_when_the_store_is_unavailable() -> None:
    setup, log = WorkerSetup(), Log()
    log.append(records(10))
    setup.objects.faults = Faults(error_before=1)
    assert (await failed(setup, log)).temporary
    setup.objects.faults = Faults()
    await moved(setup, log)


class LosesResponses(MemoryObjectStore):
    """Stores each object and loses the response."""

    async def create(self, key: str, body: Body) -> None:
        await super().create(key, body)
        raise TimeoutError("no answer")


async def test_stored_files_are_removed_when_the_move_fails() -> None:
    setup, log = WorkerSetup(), Log()
    setup.memory = LosesResponses(SystemClock())
    setup.work = Work(setup.memory, None, LOCATIONS, RandomIds(), WorkSettings(storage_url=ROOT, segments_dir=None))
    log.append(records(10))
    outcome = await failed(setup, log)
    assert "TimeoutError: no answer (test_worker.py" in outcome.reason


async def test_move_fails_when_batches_contain_other_offsets_than_claimed() -> None:
    setup, log = WorkerSetup(), Log()
    log.append(records(10))
    await log.store(setup.memory)
    move = log.move(ROOT)
    log.records = log.records[:5]
    outcome = await failed(setup, log)
    assert "contain records 0 to 9" in outcome.reason
    assert isinstance((await LocalJob(setup.work).run([move]))[0], MoveResult)


async def test_move_of_a_segment_fails_without_a_wal_folder() -> None:
    setup = WorkerSetup()
    setup.work = Work(setup.memory, None, LOCATIONS, RandomIds(), WorkSettings(storage_url=ROOT, segments_dir=None))
    log = Log(medium=Medium.SEGMENT)
    log.append(records(1))
    assert "--wal-dir" in (await failed(setup, log)).reason


# ── windows ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def piece(name: str, *batches: tuple[int, int, int]) -> Piece:
    starts, ends, offsets = zip(*batches, strict=True)
    return Piece(Medium.OBJECT, name, starts, ends, offsets)


def shown(pieces: list[Piece], bytes_max: int = 1_000_000) -> list[list[tuple[str, Span, list[int]]]]:
    return [
        [(batches.piece.name, batches.span, batches.base_offsets.tolist()) for batches in window]
        for window in windows_of(pieces, bytes_max)
    ]


def test_near_batches_are_read_together_and_distant_ones_separately() -> None:
    far = 20 + JOIN_BYTES_MAX + 1
    found = shown([piece("a", (0, 10, 0), (12, 20, 1), (far, far + 5, 2))])
    assert found == [[("a", Span(0, 20), [0, 1]), ("a", Span(far, far + 5), [2])]]


def test_windows_are_ordered_by_offset_and_limited_in_size() -> None:
    pieces = [piece("a", (0, 10, 0), (10, 20, 20)), piece("b", (0, 10, 10), (5_000, 5_010, 30))]
    assert shown(pieces, 20) == [
        [("a", Span(0, 10), [0]), ("b", Span(0, 10), [10])],
        [("a", Span(10, 20), [20]), ("b", Span(5_000, 5_010), [30])],
    ]
    assert [len(window) for window in windows_of(pieces, 1)] == [1, 1, 1, 1]


def test_bytes_between_batches_count_for_the_window() -> None:
    window = 10_000
    assert len(shown([piece("a", (0, 10, 0), (window, window + 10, 1))], window)) == 2


def test_batches_in_another_order_than_offsets_are_read_separately() -> None:
    assert shown([piece("a", (10, 20, 0), (0, 10, 1))]) == [[("a", Span(10, 20), [0]), ("a", Span(0, 10), [1])]]


def test_no_window_without_pieces() -> None:
    assert shown([]) == []


@pytest.mark.parametrize("codec", CODECS)
async def test_extreme_records_become_rows(codec: str) -> None:
    odd = [Record(0, -1, 0, None, None), Record(1, 2**63 - 1, 0, b"", b"", ((b"\xff", None), (b"h", b""), (b"h", b"")))]
    setup, log = WorkerSetup(), Log()
    log.append(odd, codec)
    await moved(setup, log)


async def test_workers_are_patient_with_their_store() -> None:
    work = open_work(WorkSettings(storage_url="file:///tmp", segments_dir=None))
    assert isinstance(work._objects, RetryingStore)
    assert work._objects._settings == PATIENT
    await work.close()
