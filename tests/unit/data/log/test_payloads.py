"""What doctor reads of a log: every batch against its own checksum."""

import random

import pytest
from tests.unit.data.brokers import World, plain

from lakestream.data.log import payloads as payloads_module
from lakestream.data.log.inspect import Inspector
from lakestream.data.log.payloads import BY_CHANCE, NEWEST, Payloads
from lakestream.errors import Missing
from lakestream.model import PartitionId
from lakestream.settings import Profile


def payloads(world: World, *, full: bool) -> Payloads:
    return Payloads(world.server.client(), world.objects, world.segments(), random.Random(1), full=full)


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
async def test_a_flipped_bit_is_found(world: World, full: bool) -> None:
    partition = await filled(world, 5)
    assert (await payloads(world, full=full).check(partition)).troubles == []
    name = (await world.names())[2]
    await flip(world, name, b"value 0002")
    (trouble,) = (await payloads(world, full=full).check(partition)).troubles
    assert trouble.startswith(f"offsets 2 to 2: {name}: record batch has checksum ")
    assert trouble.endswith(
        f"restore {name} from a backup, or give these records up: delete the partition's records before offset 3"
    )


async def test_full_is_all_of_it_and_else_some(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads_module, "PAGE_CLAIMS", 7)
    monkeypatch.setattr(payloads_module, "READ_BYTES", 300)
    partition = await filled(world, 50)
    some = await payloads(world, full=False).check(partition)
    every = await payloads(world, full=True).check(partition)
    assert (some.claims, every.claims) == (NEWEST + BY_CHANCE, 50)
    assert every.bytes > 3 * some.bytes
    for name in (await world.names())[10:13]:
        await world.objects.delete([name])
    troubles = (await payloads(world, full=True).check(partition)).troubles
    assert [trouble.partition(":")[0] for trouble in troubles] == [f"offsets {at} to {at}" for at in (10, 11, 12)]
    await flip(world, (await world.names())[-1], b"value")
    assert len((await payloads(world, full=False).check(partition)).troubles) >= 1  # the newest is always among them


async def test_a_segment(world: World) -> None:
    world.profile = Profile.LATENCY
    partition = await filled(world, 3)
    assert (await payloads(world, full=True).check(partition)).claims == 3
    (file,) = world.disk.files.values()
    at = bytes(file.data).index(b"value 0001")
    file.data[at] ^= 1
    (trouble,) = (await payloads(world, full=True).check(partition)).troubles
    assert trouble.startswith("offsets 1 to 1: ")


async def test_what_was_trimmed_meanwhile_is_no_trouble(world: World) -> None:
    partition, log = await world.log(), await world.broker()
    for number in range(4):
        await log.append(partition, plain(f"value {number:04d}"))
    names = await world.names()

    class Late(Payloads):
        async def _wrong(self, claim):  # type: ignore[no-untyped-def]
            if claim.offset_start == 0:
                await world.move(log, partition, 2)
                await world.objects.delete(names[:2])
            return await super()._wrong(claim)

    late = Late(world.server.client(), world.objects, None, random.Random(1), full=True)
    assert (await late.check(partition)).troubles == []


async def test_a_log_that_is_gone(world: World) -> None:
    with pytest.raises(Missing, match="is gone"):
        await payloads(world, full=True).check(PartitionId("nobody", 0))


async def test_a_segment_that_grows_beside_the_doctor_holds_what_is_claimed(world: World) -> None:
    world.profile = Profile.LATENCY
    one, two = await world.topic(2)
    log = await world.broker()
    inspector = Inspector(world.server.client(), world.objects, world.segments())
    for partition in (one, two):  # the second one's frame comes when the segment has been looked at
        await log.append(partition, plain("a"))
        assert (await inspector.inspect(partition)).troubles == []
