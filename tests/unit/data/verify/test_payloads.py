"""Verification of record batches against their checksums."""

import random

import pytest
from tests.harness.log.brokers import World, plain

from lakestream.config.settings import Profile
from lakestream.data.verify import payloads as payloads_module
from lakestream.data.verify.log import LogVerifier
from lakestream.data.verify.payloads import NEWEST, SAMPLE, PayloadVerifier
from lakestream.errors import Missing
from lakestream.model import PartitionId


def payloads(world: World, *, full: bool) -> PayloadVerifier:
    return PayloadVerifier(world.server.client(), world.objects, world.segments(), random.Random(1), full=full)


async def flip(world: World, name: str, needle: bytes) -> None:
    body = bytearray(await world.objects.get(name))
    body[body.index(needle)] ^= 1
    await world.objects.put(name, [bytes(body)])


async def filled(world: World, count: int) -> PartitionId:
    partition, log = await world.log(), await world.broker()
    for number in range(count):
        await log.append(partition, plain(f"value {number:04d}"))
    return partition


@pytest.mark.parametrize("full", [False, True])
async def test_flipped_bit_is_reported(world: World, full: bool) -> None:
    partition = await filled(world, 5)
    assert (await payloads(world, full=full).check(partition)).problems == []
    name = (await world.names())[2]
    await flip(world, name, b"value 0002")
    (problem,) = (await payloads(world, full=full).check(partition)).problems
    assert problem.startswith(f"offsets 2 to 2: {name}: record batch has checksum ")
    assert problem.endswith(
        f"restore {name} from a backup, or give these records up: delete the partition's records before offset 3"
    )


async def test_full_check_reads_all_claims_and_a_sample_some(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads_module, "PAGE_CLAIMS", 7)
    monkeypatch.setattr(payloads_module, "READ_BYTES", 300)
    partition = await filled(world, 50)
    some = await payloads(world, full=False).check(partition)
    every = await payloads(world, full=True).check(partition)
    assert (some.claims, every.claims) == (NEWEST + SAMPLE, 50)
    assert every.bytes > 3 * some.bytes
    for name in (await world.names())[10:13]:
        await world.objects.delete([name])
    problems = (await payloads(world, full=True).check(partition)).problems
    assert [problem.partition(":")[0] for problem in problems] == [f"offsets {at} to {at}" for at in (10, 11, 12)]
    await flip(world, (await world.names())[-1], b"value")
    assert len((await payloads(world, full=False).check(partition)).problems) >= 1  # the newest is always among them


async def test_flipped_bit_in_a_segment_is_reported(world: World) -> None:
    world.profile = Profile.LATENCY
    partition = await filled(world, 3)
    assert (await payloads(world, full=True).check(partition)).claims == 3
    (file,) = world.disk.files.values()
    at = bytes(file.data).index(b"value 0001")
    file.data[at] ^= 1
    (problem,) = (await payloads(world, full=True).check(partition)).problems
    assert problem.startswith("offsets 1 to 1: ")


async def test_claims_trimmed_meanwhile_are_not_reported(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    for number in range(4):
        await log.append(partition, plain(f"value {number:04d}"))
    names = await world.names()

    class Late(PayloadVerifier):
        async def _error_of(self, claim):  # type: ignore[no-untyped-def]
            if claim.offset_start == 0:
                await world.move(log, partition, 2)
                await world.objects.delete(names[:2])
            return await super()._error_of(claim)

    late = Late(world.server.client(), world.objects, None, random.Random(1), full=True)
    assert (await late.check(partition)).problems == []


async def test_check_raises_missing_for_a_deleted_partition(world: World) -> None:
    with pytest.raises(Missing, match="does not exist"):
        await payloads(world, full=True).check(PartitionId("missing", 0))


async def test_growing_segment_is_read_again_for_later_claims(world: World) -> None:
    world.profile = Profile.LATENCY
    one, two = await world.topic(2)
    log = await world.broker()
    verifier = LogVerifier(world.server.client(), world.objects, world.segments())
    for partition in (one, two):  # the second frame is appended after the segment was read
        await log.append(partition, plain("a"))
        assert (await verifier.verify(partition)).problems == []
