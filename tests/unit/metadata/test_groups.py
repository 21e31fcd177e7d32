"""Groups and offsets in the metadata store: take-overs, and late writes of former coordinators."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from lakestream.errors import Conflict, Corrupt
from lakestream.metadata import keys
from lakestream.metadata.group_records import (
    ClassicSide,
    ConsumerGroupRecord,
    ConsumerMember,
    Progress,
    TopicShape,
    packed_group,
)
from lakestream.metadata.groups import Committed, GroupRecord, Groups, GroupState, Member, MemberProtocol
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
from lakestream.metadata.store import ABSENT, put_one
from lakestream.model import PartitionId

P, Q = PartitionId("aa", 0), PartitionId("bb", 1)
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


async def test_next_coordinator_reads_what_was_written(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    written = await groups.write("g/1", "a", ABSENT, [(P, at(5), ABSENT), (Q, at(6), ABSENT)], (STABLE, ABSENT))
    assert written.lost == frozenset()
    claimed = await groups.claim("g/1", "b")
    assert claimed.group is not None
    assert claimed.group.record == STABLE
    assert claimed.group.version != written.group, "a former coordinator cannot change it"
    assert claimed.versions == written.versions
    assert claimed.owner != written.owner
    assert {one: stored.committed for one, stored in (await groups.offsets("g/1")).items()} == {P: at(5), Q: at(6)}
    assert [named.name for named in await groups.names()] == ["g/1"]


async def test_reading_a_missing_group_writes_nothing(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    claimed = await groups.claim("g", "a")
    assert (claimed.group, claimed.versions, claimed.owner) == (None, {}, ABSENT)
    assert await groups.get("g") is None
    assert await store.get(keys.owner_key("g")) is None
    assert await groups.names() == []


async def test_write_conflicts_after_a_takeover(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    old = await groups.write("g", "a", ABSENT, [(P, at(5), ABSENT)], (STABLE, ABSENT))
    new = await groups.claim("g", "b")
    with pytest.raises(Conflict):
        await groups.write("g", "a", old.owner, [(Q, at(6), ABSENT)], None)
    with pytest.raises(Conflict):
        await groups.write("g", "a", old.owner, [], None)
    await groups.write("g", "b", new.owner, [(P, at(7), new.versions[P])], None)


async def test_late_write_never_replaces_a_newer_offset(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    old = await groups.write("g", "a", ABSENT, [(P, at(5), ABSENT)], (STABLE, ABSENT))
    new = await groups.claim("g", "b")
    await groups.write("g", "b", new.owner, [(P, at(9, 2), new.versions[P])], None)
    with pytest.raises(Conflict):
        await groups.write("g", "a", old.owner, [(P, at(6), old.versions[P])], None)
    assert (await groups.offsets("g"))[P].committed == at(9, 2)


async def test_only_one_of_two_concurrent_creates_of_a_group_succeeds(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    await groups.write("g", "a", ABSENT, [(P, at(5), ABSENT)], (STABLE, ABSENT))
    with pytest.raises(Conflict):
        await groups.write("g", "b", ABSENT, [(Q, at(6), ABSENT)], (STABLE, ABSENT))


async def test_write_reports_offsets_with_another_version_as_lost(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    written = await groups.write("g", "a", ABSENT, [(P, at(5), ABSENT)], (STABLE, ABSENT))
    await put_one(store, keys.offset_key("g", P), b"\x95\x09\x00\xa0\x05\x01")
    second = await groups.write("g", "a", written.owner, [(P, at(6), written.versions[P]), (Q, at(1), ABSENT)], None)
    assert (second.lost, set(second.versions)) == (frozenset([P]), {Q})


async def test_remove_deletes_all_records_of_a_group(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    for name in ("g", "gg"):
        await groups.write(name, "a", ABSENT, [(P, at(5), ABSENT)], (STABLE, ABSENT))
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
    written = await groups.write("g", "a", ABSENT, [(P, at(5), ABSENT), (Q, at(6), ABSENT)], (STABLE, ABSENT))
    await groups.remove_offsets("g", {P: written.versions[P]})
    assert set(await groups.offsets("g")) == {Q}
    with pytest.raises(Conflict):
        await groups.remove_offsets("g", {Q: written.versions[Q] + 1000})


@pytest.mark.parametrize("name", ["", "%", "a/b", "a.b", "~", "Ünïcödé", "a b", "owner", "%25"])
async def test_group_names_may_be_any_text(store: MemoryMetadataStore, name: str) -> None:
    groups = Groups(store)
    await groups.write(name, "a", ABSENT, [(P, at(5), ABSENT)], (STABLE, ABSENT))
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
    await put_one(store, keys.offset_key("g", P), b"\xff")
    with pytest.raises(Corrupt, match=r"/offsets/g/aa\.0000000000"):
        await groups.offsets("g")


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
    await groups.write("g", "me", ABSENT, [], (record, ABSENT))
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
    await groups.write("g", "a", ABSENT, [(P, at(5), ABSENT)], (STABLE, ABSENT), {"m": 7})
    claimed = await groups.claim("g", "b")
    assert claimed.heard_ms == {"m": 7}
    assert list(claimed.versions) == [P]
    await groups.put_heartbeats("g", {"m": 9})
    claimed = await groups.claim("g", "c")
    assert claimed.heard_ms == {"m": 9}
    assert claimed.group is not None
    await groups.remove("g", claimed.group.version, claimed.owner)
    assert await store.get(keys.heartbeats_key("g")) is None


async def test_group_of_an_older_broker_has_no_last_heartbeats(store: MemoryMetadataStore) -> None:
    groups = Groups(store)
    await groups.write("g", "a", ABSENT, [], (STABLE, ABSENT))
    assert (await groups.claim("g", "b")).heard_ms == {}
