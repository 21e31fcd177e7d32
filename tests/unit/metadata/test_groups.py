"""Groups and offsets in the metadata store: take-overs, and late writes of former coordinators."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from msgspec.structs import replace

from lakestream.errors import Conflict, Corrupt
from lakestream.metadata import keys
from lakestream.metadata.group_records import (
    BLOCK_PARTITIONS,
    BlockId,
    ClassicSide,
    CommitSequence,
    ConsumerGroupRecord,
    ConsumerMember,
    Progress,
    TopicShape,
    offset_of,
    packed_block,
    packed_group,
    packed_offset,
)
from lakestream.metadata.groups import Committed, GroupRecord, Groups, GroupState, Member, MemberProtocol, OffsetBlock
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
from lakestream.metadata.store import ABSENT, put_one
from lakestream.model import PartitionId

P, Q = PartitionId("aa", 0), PartitionId("bb", 1)
OF_P, OF_Q = BlockId.of(P), BlockId.of(Q)
STABLE = GroupRecord(
    state=GroupState.STABLE,
    generation=3,
    protocol_type="consumer",
    protocol="range",
    leader="m",
    members={"m": Member("m", None, "client", "/host", 10, 20, (MemberProtocol("range", b"\0\1"),), b"mine")},
    since_ms=7,
)


class Clock:
    def now_ms(self) -> int:
        return 1_000


@pytest_asyncio.fixture
async def store() -> AsyncIterator[MemoryMetadataStore]:
    store = MemoryServer(Clock()).client()
    yield store
    await store.close()


def at(offset: int, generation: int = 1) -> Committed:
    return Committed(offset, 0, "note", 5, generation)


def new(*offsets: tuple[PartitionId, Committed]) -> dict[BlockId, OffsetBlock]:
    blocks: dict[BlockId, OffsetBlock] = {}
    for partition, committed in offsets:
        blocks.setdefault(BlockId.of(partition), OffsetBlock({}, ABSENT)).offsets[partition.number] = committed
    return blocks


async def test_next_coordinator_reads_what_was_written(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    written = await groups.write("g/1", "a", ABSENT, new((P, at(5)), (Q, at(6))), (STABLE, ABSENT))
    assert written.lost == frozenset()
    claimed = await groups.claim("g/1", "b")
    assert claimed.group is not None
    assert claimed.group.record == STABLE
    assert claimed.group.version != written.group, "a former coordinator cannot change it"
    assert {one: block.version for one, block in claimed.blocks.items()} == written.versions
    assert claimed.owner != written.owner
    assert {one: stored.committed for one, stored in (await groups.offsets("g/1")).items()} == {P: at(5), Q: at(6)}
    assert [named.name for named in await groups.names()] == ["g/1"]


async def test_reading_a_missing_group_writes_nothing(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    claimed = await groups.claim("g", "a")
    assert (claimed.group, claimed.blocks, claimed.owner) == (None, {}, ABSENT)
    assert await groups.get("g") is None
    assert await store.get(keys.owner_key("g")) is None
    assert await groups.names() == []


async def test_write_conflicts_after_a_takeover(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    old = await groups.write("g", "a", ABSENT, new((P, at(5))), (STABLE, ABSENT))
    taken = await groups.claim("g", "b")
    with pytest.raises(Conflict):
        await groups.write("g", "a", old.owner, new((Q, at(6))), None)
    with pytest.raises(Conflict):
        await groups.write("g", "a", old.owner, {}, None)
    await groups.write("g", "b", taken.owner, {OF_P: OffsetBlock({0: at(7)}, taken.blocks[OF_P].version)}, None)


async def test_late_write_never_replaces_a_newer_offset(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    old = await groups.write("g", "a", ABSENT, new((P, at(5))), (STABLE, ABSENT))
    taken = await groups.claim("g", "b")
    await groups.write("g", "b", taken.owner, {OF_P: OffsetBlock({0: at(9, 2)}, taken.blocks[OF_P].version)}, None)
    with pytest.raises(Conflict):
        await groups.write("g", "a", old.owner, {OF_P: OffsetBlock({0: at(6)}, old.versions[OF_P])}, None)
    assert (await groups.offsets("g"))[P].committed == at(9, 2)


async def test_only_one_of_two_concurrent_creates_of_a_group_succeeds(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    await groups.write("g", "a", ABSENT, new((P, at(5))), (STABLE, ABSENT))
    with pytest.raises(Conflict):
        await groups.write("g", "b", ABSENT, new((Q, at(6))), (STABLE, ABSENT))


async def test_write_reports_blocks_with_another_version_as_lost(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    written = await groups.write("g", "a", ABSENT, new((P, at(5))), (STABLE, ABSENT))
    await put_one(store, keys.offset_block_key("g", *OF_P), packed_block({0: at(9)}))
    blocks = {OF_P: OffsetBlock({0: at(6)}, written.versions[OF_P])} | new((Q, at(1)))
    second = await groups.write("g", "a", written.owner, blocks, None)
    assert (second.lost, set(second.versions)) == (frozenset([OF_P]), {OF_Q})


async def test_remove_deletes_all_records_of_a_group(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    for name in ("g", "gg"):
        await groups.write(name, "a", ABSENT, new((P, at(5))), (STABLE, ABSENT))
    claimed = await groups.claim("g", "a")
    assert claimed.group is not None
    await groups.remove("g", claimed.group.version, claimed.owner)
    assert await groups.offsets("g") == {}
    assert await groups.get("g") is None
    assert await store.get(keys.owner_key("g")) is None
    assert [named.name for named in await groups.names()] == ["gg"]
    assert set(await groups.offsets("gg")) == {P}


async def test_offsets_are_deleted_only_at_their_version(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    written = await groups.write("g", "a", ABSENT, new((P, at(5)), (Q, at(6))), (STABLE, ABSENT))
    await groups.remove_blocks("g", {OF_P: written.versions[OF_P]})
    assert set(await groups.offsets("g")) == {Q}
    with pytest.raises(Conflict):
        await groups.remove_blocks("g", {OF_Q: written.versions[OF_Q] + 1000})
    version = (await put_one(store, keys.offset_key("g", P), packed_offset(at(7)))).version
    with pytest.raises(Conflict):
        await groups.remove_offsets("g", {P: version + 1000})
    await groups.remove_offsets("g", {P: version})
    assert set(await groups.offsets("g")) == {Q}


@pytest.mark.parametrize(("single", "block", "latest"), [(1, 2, 20), (2, 1, 10), (-1, -1, 20)])
async def test_committed_offset_is_the_one_with_the_later_sequence(
    store: MemoryMetadataStore, single: int, block: int, latest: int
) -> None:
    """Transactions, and earlier versions of Lakestream, put the offset of each partition as its own record."""
    groups = Groups(store)
    in_block = replace(at(20), sequence=CommitSequence(block, 0))
    await groups.write("g", "a", ABSENT, new((P, in_block)), (STABLE, ABSENT))
    own = packed_offset(replace(at(10), sequence=CommitSequence(single, 0)))
    version = (await put_one(store, keys.offset_key("g", P), own)).version
    stored = (await groups.offsets("g"))[P]
    assert (stored.committed.offset, stored.version) == (latest, version)


async def test_offsets_of_neighbouring_partitions_share_a_record(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    offsets = {PartitionId("aa", number): at(number) for number in range(2 * BLOCK_PARTITIONS)}
    await groups.write("g", "a", ABSENT, new(*offsets.items()), (STABLE, ABSENT))
    names = [record.name for record in (await store.scan(keys.offsets_folder("g"))).records]
    assert names == ["aa.block.0000000000", "aa.block.0000000001", keys.OWNER_NAME]
    assert {one: stored.committed for one, stored in (await groups.offsets("g")).items()} == offsets


async def test_block_is_no_offset_of_a_partition(store: MemoryMetadataStore) -> None:
    """A broker that does not know blocks reads every record before the owner as the offset of one partition. It reports
    an error instead of the older offsets that it knows."""
    await Groups(store).write("g", "a", ABSENT, new((P, at(5))), (STABLE, ABSENT))
    (record, _) = (await store.scan(keys.offsets_folder("g"))).records
    keys.offset_partition(record.name)
    with pytest.raises(Corrupt, match=r"/offsets/g/aa\.block\.0000000000 is not an offset"):
        offset_of(record)


@pytest.mark.parametrize("name", ["", "%", "a/b", "a.b", "~", "Ünïcödé", "a b", "owner", "%25"])
async def test_group_names_may_be_any_text(store: MemoryMetadataStore, name: str) -> None:
    groups = Groups(store)
    await groups.write(name, "a", ABSENT, new((P, at(5))), (STABLE, ABSENT))
    assert [named.name for named in await groups.names()] == [name]
    assert set(await groups.offsets(name)) == {P}
    assert keys.group_text(keys.group_name(name)) == name


async def test_names_reads_more_than_one_page(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    for number in range(1_001):
        await put_one(store, keys.group_name_key(f"g{number}"), b"")
    assert len({named.name for named in await groups.names()}) == 1_001


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x81\xa6format\x02"])
async def test_damaged_record_is_corrupt_and_named_in_the_message(store: MemoryMetadataStore, body: bytes) -> None:
    groups = Groups(store)
    await put_one(store, keys.group_key("g"), body)
    with pytest.raises(Corrupt, match="/groups/g"):
        await groups.get("g")
    for key in (keys.offset_key("g", P), keys.offset_block_key("g", *OF_P)):
        await put_one(store, key, body or b"\xff")
        with pytest.raises(Corrupt, match=key.path):
            await groups.offsets("g")
        await store.delete(key)


async def test_consumer_group_record_is_read_as_it_was_written(store: MemoryMetadataStore) -> None:
    partitions = frozenset(PartitionId(topic, number) for topic in ("aa", "bb") for number in range(3))
    members = {
        "new": ConsumerMember(
            instance_id="i",
            rack="r",
            client_id="c",
            host="/h",
            rebalance_ms=5,
            names=("a", "b"),
            pattern="a.*",
            assignor="range",
            epoch=4,
            epoch_before=3,
            progress=Progress.REVOKING,
            assigned=partitions,
            revoking=frozenset({PartitionId("cc", 9)}),
            target=partitions | {PartitionId("cc", 9)},
        ),
        "same": ConsumerMember(names=("a", "b"), assigned=partitions, target=partitions),
        "old": ConsumerMember(classic=ClassicSide(10, (MemberProtocol("range", b"m"),))),
    }
    record = ConsumerGroupRecord(
        epoch=5, target_epoch=4, members=members, topics={"a": TopicShape("aa", 3)}, since_ms=7
    )
    groups = Groups(store)
    await groups.write("g", "me", ABSENT, {}, (record, ABSENT))
    stored = await groups.get("g")
    assert stored is not None
    assert stored.record == record


def test_a_thousand_members_fit_into_one_record() -> None:
    ids = [f"{number:032x}" for number in range(10)]
    members = {
        f"{number:022}": ConsumerMember(
            client_id="consumer",
            host="/10.0.0.1",
            names=tuple(f"topic-with-a-long-name-{place}" for place in range(10)),
            assigned=frozenset(PartitionId(topic_id, number) for topic_id in ids),
            target=frozenset(PartitionId(topic_id, number) for topic_id in ids),
        )
        for number in range(1_000)
    }
    assert len(packed_group(ConsumerGroupRecord(members=members))) < 200_000


async def test_next_coordinator_reads_the_last_heartbeats(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    await groups.write("g", "a", ABSENT, new((P, at(5))), (STABLE, ABSENT), {"m": 7})
    claimed = await groups.claim("g", "b")
    assert claimed.heard_ms == {"m": 7}
    assert list(claimed.blocks) == [OF_P]
    await groups.put_heartbeats("g", {"m": 9})
    claimed = await groups.claim("g", "c")
    assert claimed.heard_ms == {"m": 9}
    assert claimed.group is not None
    await groups.remove("g", claimed.group.version, claimed.owner)
    assert await store.get(keys.heartbeats_key("g")) is None


async def test_group_of_an_older_broker_has_no_last_heartbeats(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    await groups.write("g", "a", ABSENT, {}, (STABLE, ABSENT))
    assert (await groups.claim("g", "b")).heard_ms == {}
