"""Several brokers change one registry concurrently, stall, are killed between two writes, or lose responses.

Every change must be valid for the state before it, and no broker may see half of a change. The tests check the log
change by change, and compare it with the responses."""

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from tests.harness.typed.toy_schema_format import FieldList, InProcessParser, read_fields, registry_over, wanted

from lakestream.clock import SeededIds, SystemClock
from lakestream.coordination.schema_registry.delete import delete_subject, delete_version
from lakestream.coordination.schema_registry.fingerprint import digest
from lakestream.coordination.schema_registry.registry import SchemaRegistry
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.coordination.schema_registry.state import LATEST, SchemaId, State, SubjectVersion
from lakestream.coordination.schema_registry.subjects import parse
from lakestream.errors import Conflict, LakestreamError, Missing, Rejected, Unavailable
from lakestream.metadata.memory import MemoryMetadataStore, MemoryServer
from lakestream.metadata.schemas import Change, Configured, Deleted, Pointer, Registered, Removed, SchemaLog
from lakestream.metadata.sqlite.store import SqliteStore
from lakestream.metadata.store import ANY, Key, MetadataStore, Put, Record, Scanned, Stored
from lakestream.schemas.model import Format, Source
from lakestream.testing.fault_injection import CALM, FaultRates, Line
from lakestream.testing.faulty_metadata import FaultyMetadata
from lakestream.testing.simulation import Died, SimClock, SimLoop, simulate

T = TypeVar("T")

STEPS = 12
SUBJECTS = ("a", "b", "c")
FAULTS = {
    "calm": CALM,
    "lossy": FaultRates(slow=0.1, refused=0.05, lost_there=0.05, lost_back=0.08, late=0.03, late_s_max=600.0),
    "crashes": FaultRates(slow=0.05, lost_back=0.02, kill=0.03, stall=0.03, stall_s_max=600.0),
}


class Registration(NamedTuple):
    """A response to a client."""

    subject: str
    version: int
    id: int
    text: str


class Client:
    def __init__(self, registry: SchemaRegistry, rng: random.Random) -> None:
        self._registry = registry
        self._rng = rng
        self.registered: list[Registration] = []
        self.deleted: list[tuple[str, tuple[int, ...]]] = []
        self.rejected = 0

    async def run(self) -> None:
        for _ in range(STEPS):
            try:
                await self._rng.choice(
                    [self._register, self._register, self._register, self._delete, self._configure]
                )()
            except (Rejected, Missing):
                self.rejected += 1
            except Unavailable:
                continue
            await asyncio.sleep(self._rng.random() / 100)

    async def _register(self) -> None:
        subject = self._rng.choice(SUBJECTS)
        fields = sorted(self._rng.sample(["k", "l?", "m?", "n"], self._rng.randint(1, 3)))
        pointers: tuple[Pointer, ...] = ()
        if self._rng.random() < 0.3:
            pointers = (Pointer("other", self._rng.choice(SUBJECTS), LATEST),)
        found = await self._registry.register(wanted(subject, *fields, references=pointers))
        self.registered.append(Registration(subject, found.version.number, found.version.id, found.text.text))

    async def _delete(self) -> None:
        subject, permanent = parse(self._rng.choice(SUBJECTS)), self._rng.random() < 0.6
        number = self._rng.choice([None, 1, 2, LATEST])

        def decide(state: State) -> Change:
            if number is None:
                return delete_subject(state, subject, permanent=permanent)
            return delete_version(state, subject, number, permanent=permanent)

        change = await self._registry.change(decide)
        assert isinstance(change, Deleted | Removed)
        self.deleted.append((str(subject), change.versions))

    async def _configure(self) -> None:
        level = self._rng.choice(["NONE", "BACKWARD", "FULL_TRANSITIVE"])
        await self._registry.change(lambda state: Configured(self._rng.choice(SUBJECTS), {"compatibilityLevel": level}))


async def check(store: MetadataStore, clients: list[Client]) -> int:
    """Checks the log against the responses of the clients, and returns the number of changes."""
    log = SchemaLog(store)
    changes = await log.read(0)
    state = State()
    owners: dict[int, str] = {}
    for change in changes:
        check_step(state, change, owners)
        state.apply(change)
        check_consistent(state)
    for schema_id, schema in state.contexts["."].schemas.items():
        text = await log.text(schema.text_id)
        assert text is not None, f"the text of {schema_id} is missing"
        kind = Format(schema.format)
        assert digest(kind, text.text, schema.references, text.metadata, text.rule_set) == schema.digest
    registered = {(one.subject, one.version, one.id) for one in changes if isinstance(one, Registered)}
    gone = Counter((one.subject, one.versions) for one in changes if isinstance(one, Deleted | Removed))
    texts: dict[int, set[str]] = {}
    for client in clients:
        for registration in client.registered:
            assert registration[:3] in registered, f"{registration} was answered and is not in the log"
            texts.setdefault(registration.id, set()).add(registration.text)
        for deleted in client.deleted:
            assert gone[deleted], f"{deleted} was answered and is not in the log"
    assert all(len(of_one) == 1 for of_one in texts.values()), "an id always stands for the same schema"
    return len(changes)


def check_step(state: State, change: Change, owners: dict[int, str]) -> None:
    """Checks that a change is valid for the state before it."""
    if isinstance(change, Deleted | Removed):
        for number in change.versions:
            referrers = state.referrers(SubjectVersion(change.subject, number), deleted=isinstance(change, Removed))
            assert all(is_own(state, referrer, change.subject) for referrer in referrers), (
                f"{change} removes what {referrers} referrer"
            )
    if not isinstance(change, Registered):
        return
    versions = state.subjects.get(change.subject, {})
    assert change.version == max(versions, default=0) + 1
    if change.schema is None:
        assert change.id in state.contexts["."].schemas
        return
    assert owners.setdefault(change.id, change.schema.digest) == change.schema.digest, "an id is assigned once"
    assert change.schema.digest not in state.contexts["."].ids, "the same schema has the same id"
    for pointer in change.schema.references:
        assert pointer.version in state.subjects[pointer.subject], "the referenced version exists"


def check_consistent(state: State) -> None:
    for name, versions in state.subjects.items():
        for version in versions.values():
            assert version.id in state.contexts["."].schemas
            assert SubjectVersion(name, version.number) in state.contexts["."].uses[version.id]


def is_own(state: State, referrer: SchemaId, subject: str) -> bool:
    return all(use.subject == subject for use in state.uses(referrer, deleted=True))


async def check_compatible(store: MetadataStore) -> None:
    """Checks that each version can read the one before it: all were registered with the default level."""
    log = SchemaLog(store)
    state = State()
    for change in await log.read(0):
        before = state.versions(parse(change.subject)) if isinstance(change, Registered) else []
        state.apply(change)
        if isinstance(change, Registered) and before:
            new, old = [await schema_of(log, state, one) for one in (change.id, before[-1].id)]
            assert new.incompatibilities_reading(old) == []


async def schema_of(log: SchemaLog, state: State, schema_id: int) -> FieldList:
    text = await log.text(state.contexts["."].schemas[schema_id].text_id)
    assert text is not None
    schema = read_fields(Source(Format.JSON, text.text))
    assert isinstance(schema, FieldList)
    return schema


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("seed", range(12))
def test_log_is_consistent_when_brokers_change_it_under_faults(faults: str, seed: int) -> None:
    async def scenario(loop: SimLoop) -> int:
        tally = Counter[str]()
        server = MemoryServer(SimClock(loop))
        clients, tasks = [], []
        for number in range(4):
            machine = loop.machine(f"m{number}")
            store = FaultyMetadata(server, Line(loop, machine, "metadata", FAULTS[faults], tally))
            ids = SeededIds(random.Random(seed * 100 + number))
            clients.append(
                Client(SchemaRegistry(store, ids, InProcessParser(read_fields)), random.Random(seed * 7 + number))
            )
            tasks.append(machine.call(clients[-1].run()))
            if seed % 3 == 0 and number == 1:
                loop.after(0.05, store.depose, server.snapshot(), 5.0)
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(outcome is None or isinstance(outcome, Died) for outcome in outcomes), outcomes
        await asyncio.sleep(24 * 3600)  # all delayed writes have arrived by then
        return await check(server.client(), clients)

    changes = simulate(seed, scenario)
    assert faults != "calm" or changes > 15


Open = Callable[[], Awaitable[MetadataStore]]


@pytest.fixture(params=["memory", "sqlite"])
async def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    server = MemoryServer(SystemClock())

    async def open_one() -> MetadataStore:
        if request.param == "memory":
            return server.client()
        return await SqliteStore.open(tmp_path / "meta.db", SystemClock())

    return open_one


async def test_brokers_get_one_id_when_they_register_the_same_schema(open_store: Open) -> None:
    stores = [await open_store() for _ in range(4)]
    registries = [registry_over(store) for store in stores]
    try:
        found = await asyncio.gather(*(one.register(wanted("s", "x")) for one in registries for _ in range(5)))
        assert {(one.version.id, one.version.number) for one in found} == {(1, 1)}
        assert len(await SchemaLog(stores[0]).read(0)) == 1
    finally:
        await close(stores, registries)


async def test_brokers_get_consecutive_ids_when_they_register_different_schemas(open_store: Open) -> None:
    stores = [await open_store() for _ in range(4)]
    registries = [registry_over(store) for store in stores]
    try:
        requests = [wanted(f"s{number % 3}", "x", f"y{number}?") for number in range(20)]
        found = await asyncio.gather(
            *(registries[number % 4].register(request) for number, request in enumerate(requests))
        )
        assert sorted(one.version.id for one in found) == list(range(1, 21))
        for subject in ("s0", "s1", "s2"):
            numbers = sorted(one.version.number for one in found if one.subject == subject)
            assert numbers == list(range(1, len(numbers) + 1))
        await check_compatible(stores[0])
    finally:
        await close(stores, registries)


async def test_one_of_two_incompatible_concurrent_schemas_is_rejected(open_store: Open) -> None:
    stores = [await open_store() for _ in range(2)]
    registries = [registry_over(store) for store in stores]
    try:
        for round_ in range(10):
            outcomes = await asyncio.gather(
                *(one.register(wanted(f"s{round_}", field)) for one, field in zip(registries, "xy", strict=True)),
                return_exceptions=True,
            )
            refused = [outcome for outcome in outcomes if isinstance(outcome, LakestreamError)]
            assert len(refused) == 1, outcomes
            assert "is incompatible with an earlier schema" in str(refused[0])
        await check_compatible(stores[0])
    finally:
        await close(stores, registries)


async def close(stores: list[MetadataStore], registries: list[SchemaRegistry]) -> None:
    for registry in registries:
        await registry.close()
    for store in stores:
        await store.close()


class Killed(BaseException):
    """The process was killed."""


class KilledAtWrite(MemoryMetadataStore):
    """A client whose process is killed before or after its n-th write."""

    def __init__(self, real: MetadataStore, at: int, *, after: bool) -> None:
        self._real = real
        self._left = at
        self._after = after

    async def put(self, puts: Sequence[Put]) -> list[Stored | Conflict | Missing | Unavailable]:
        return await self._write(lambda: self._real.put(puts))

    async def delete(self, key: Key, expected: int | None = ANY) -> bool:
        return await self._write(lambda: self._real.delete(key, expected))

    async def _write(self, how: Callable[[], Awaitable[T]]) -> T:
        self._left -= 1
        if self._left < 0 and not self._after:
            raise Killed
        done = await how()
        if self._left < 0:
            raise Killed
        return done

    async def get(self, key: Key, *, confirmed: bool = False) -> Record | None:
        return await self._real.get(key, confirmed=confirmed)

    async def scan(self, *words: Any, **more: Any) -> Scanned:
        return await self._real.scan(*words, **more)


@pytest.mark.parametrize("after", [False, True])
async def test_state_is_consistent_when_a_broker_is_killed_between_writes(open_store: Open, after: bool) -> None:
    store = await open_store()
    alive = registry_over(store)
    try:
        for at in range(3):
            name = f"s{at}"
            for step in (register_one, register_again, remove):
                killed = registry_over(KilledAtWrite(store, at, after=after))
                with contextlib.suppress(Killed):
                    await step(killed, name)
                await killed.close()
                await alive.reader.catch_up(confirmed=True)
                check_consistent(alive.state)
                for schema_id in alive.state.contexts["."].schemas:
                    assert await SchemaReader(store).source_of(".", schema_id)
                await step(alive, name)  # a retry completes the interrupted operation
        assert await check(store, []) >= 9
    finally:
        await close([store], [alive])


async def register_one(registry: SchemaRegistry, name: str) -> None:
    found = await registry.register(wanted(name, "x"))
    assert found.version.number == 1


async def register_again(registry: SchemaRegistry, name: str) -> None:
    found = await registry.register(wanted(name, "x", "y?", f"{name}?"))
    assert found.version.number == 2


async def remove(registry: SchemaRegistry, name: str) -> None:
    for permanent in (False, True):
        with contextlib.suppress(Missing):  # it was already deleted
            await registry.change(partial(delete_subject, subject=parse(name), permanent=permanent))
