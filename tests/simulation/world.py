"""The simulated world: brokers on machines of their own, and the stores that they share.

A broker that dies is replaced by a new one on a new machine. Clients live outside of all machines and reach a broker by
`ask`, as over a network: the broker may stall or die meanwhile, or the client gives up first.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulation.tables import LOCATIONS
from tests.simulation.witness import TrueRecord, Witness, WitnessedDisk, WitnessedObjects, WitnessedServer

from lakestream.catalog.catalog import Catalog
from lakestream.clock import SeededIds
from lakestream.data.log.log import Log
from lakestream.data.log.sweeper import Sweeper
from lakestream.data.table.history import TableHistory
from lakestream.errors import Unavailable, Uncertain
from lakestream.metadata.claims import Claims
from lakestream.model import PartitionId
from lakestream.settings import LogSettings, Profile, WalSettings
from lakestream.testing.faults import CALM, Fate, FaultyMetadata, FaultyObjects, FaultySegments, Line, Weather, spread
from lakestream.testing.simulation import Died, SimClock, SimLoop

if TYPE_CHECKING:
    from tests.simulation.dialects import Dialect

T = TypeVar("T")

REQUEST_S = 60.0
"""How long a client waits for an answer."""

WORK_S_MAX = 120.0
"""No request may take a broker longer than this, by its own clock."""


CLOSE_S_MAX = 600.0

POINTERS = "/catalog/tables/"

BATCH_BYTES_MAX = 600
"""The largest batch that a producer sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mood:
    """What a run is like; drawn from its seed."""

    name: str
    weather: Weather = CALM
    drivers_weather: Weather | None = None
    """Where those who move records into tables have another."""
    storage_weather: Weather | None = None
    """Where it is another on the way to bytes than to metadata."""
    pointers_weather: Weather | None = None
    """What drivers meet when they move the pointers of tables, and nowhere else: or they would never come so far."""
    brokers: int = 3
    partitions: int = 2
    plain: int = 1
    idempotent: int = 2
    transactional: int = 1
    readers: int = 2
    pipelines: int = 1
    engines: int = 0
    """Foreign ones, that change tables."""
    batches: int = 6
    """That each producer sends."""
    think_s_max: float = 600.0
    """Between two sends."""
    move_s_max: float = 900.0
    """Between two runs of a pipeline."""
    moves: float = 1.0
    """Chance that a run of a pipeline does more than sweep."""
    depositions: int = 0
    deletes_topic: bool = False
    switches_profile: bool = False
    latency: float = 0.3
    """Chance that a topic has the latency profile."""
    damages: int = 0
    restarts: int = 0
    """Brokers that are stopped in good order."""
    disk_fails: bool = False
    kafka: bool = False
    """Everything goes through Kafka requests (tests/simulation/kafka)."""
    cuts: float = 0.0
    """Chance per Kafka request that its connection is cut soon."""
    arrivals: int = 0
    """Topics that are made late, and used at once."""
    deletes: int = 0
    """How often records are deleted from each topic."""
    members: int = 0
    """Of a group; then there are groups and transactions (tests/simulation/kafka/coordination.py)."""
    followers: int = 0
    """Members of a group of the new protocol."""
    programs: int = 0
    """That read, transform and write exactly once, in a group of their own."""
    transactors: int = 0
    typed: float = 0.0
    """Chance that a topic has schemas, and columns in its table (dialects.py)."""
    arranged: float = 0.0
    """Chance that the table of such a topic is partitioned and sorted as its settings say (layouts.py)."""
    keyed: float = 0.0
    """Chance that its keys have schemas, too."""
    stops: float = 0.0
    """Chance that what does not fit its schema holds it up, for a while."""
    protobuf: float = 0.0
    """Chance that some of its schemas are Protobuf."""


class PointerLine(Line):
    """To a metadata store that is well, but when a table's pointer is moved, and looked at next."""

    _is_bad = False
    _moved = False

    async def cross(self, what: str, effect: Callable[[], T], *, writes: bool) -> T:
        self._is_bad = POINTERS in what and (writes or self._moved)
        if POINTERS in what:
            self._moved = writes
        return await super().cross(what, effect, writes=writes)

    def _draw(self) -> Fate:
        return super()._draw() if self._is_bad else Fate.ARRIVES


class Host:
    """One machine with its lines to the stores: a broker or a pipeline."""

    def __init__(self, world: "World", name: str) -> None:
        loop = world.loop
        self.name = name
        self.machine = loop.machine(name)
        self.clock = SimClock(loop, self.machine, skew_ms=loop.luck.randint(-20_000, 20_000))
        kinds = ("metadata", "objects", "disk")
        self.lines = [Line(loop, self.machine, kind, world.weather_of(name, kind), world.tally) for kind in kinds]
        if world.mood.pointers_weather and name.startswith("pipeline") and not world.healed:
            self.lines[0] = PointerLine(loop, self.machine, "metadata", world.mood.pointers_weather, world.tally)
        self.metadata = FaultyMetadata(world.server, self.lines[0])
        self.objects = FaultyObjects(world.objects, self.lines[1])
        self.segments = FaultySegments(world.disk, world.clock, self.lines[2])
        self.catalog = Catalog(self.metadata, self.objects, LOCATIONS, self.clock, SeededIds(loop.luck))
        self.history = TableHistory(self.catalog, self.objects, world.settings.history_bytes_max)
        self.claims = Claims(self.metadata)
        self.log = Log(
            self.metadata,
            self.objects,
            self.segments,
            world.settings,
            self.clock,
            SeededIds(loop.luck),
            profile_of=world.profile_of,
            history=self.history,
        )
        self.sweeper = Sweeper(
            self.metadata, self.objects, self.segments, read_grace_ms=world.settings.wal.read_grace_ms
        )
        self.started = False
        self._world = world

    def set_weather(self, weather: Weather) -> None:
        for line in self.lines:
            line.weather = weather

    async def start(self) -> None:
        """Until it works: stores that cannot be reached at first are tried again."""
        while not self.started:
            try:
                await self.log.start()
                self.started = True
            except Unavailable:
                await asyncio.sleep(1.0)
                self.clock.set_right()

    async def ask(self, work: Callable[[Log], Coroutine[Any, Any, T]], *, may_cancel: bool = True) -> T:
        """A client's request. Unavailable, Uncertain: as a client sees a broker that is gone or does not answer. Who
        gives up closes the connection, and the broker may notice that and cancel the work."""
        if not self.started or not self.machine.alive:
            await asyncio.sleep(0.1)
            raise Unavailable(f"{self.name} is not there")
        try:
            cancels = may_cancel and self._world.luck.random() < 0.5
            async with asyncio.timeout(REQUEST_S):
                return await self.machine.call(self._bounded(work, WORK_S_MAX), cancels=cancels)
        except TimeoutError:
            self._world.tally["requests without an answer"] += 1
            raise Uncertain(f"{self.name} did not answer in {REQUEST_S} s") from None
        except Died as error:
            raise Uncertain(f"{self.name} died") from error

    async def _bounded(self, work: Callable[[Log], Coroutine[Any, Any, T]], seconds_max: float) -> T:
        """On the broker: every request ends in time, apart from the time in which the machine stood still."""
        loop = self._world.loop
        began, stalled = loop.now, self.machine.stalled_s
        try:
            return await work(self.log)
        finally:
            took = loop.now - began - (self.machine.stalled_s - stalled)
            if self.machine.alive and took > seconds_max:
                self._world.witness.accuse("every wait ends", f"a request to {self.name} took {took:.0f} s")
            self._check_bytes_held()

    def _check_bytes_held(self) -> None:
        limit = max(self._world.settings.wal.buffer_bytes_max, BATCH_BYTES_MAX)
        held = max(writer.bytes_held for writer in self.log._writers.values())
        if held > limit:
            self._world.witness.accuse("queues are bounded", f"{self.name} holds {held} bytes, {limit} are allowed")

    async def restart(self) -> None:
        """Stop in good order: take nothing more, answer what was taken, go."""
        if not self.started or not self.machine.alive:
            return
        self.started = False
        try:
            await self.machine.call(self._bounded(Log.close, CLOSE_S_MAX))
        except Died:
            return
        self._world.tally["brokers stopped"] += 1
        self.machine.kill()


class World:
    def __init__(self, loop: SimLoop, mood: Mood) -> None:
        self.loop = loop
        self.luck = luck = loop.luck
        self.mood = mood
        self.weather = mood.weather
        self.tally: Counter[str] = Counter()
        self.clock = SimClock(loop)
        self.witness = Witness(loop, self.tally)
        self.server = WitnessedServer(self.clock, self.witness)
        self.objects = WitnessedObjects(self.clock, self.witness)
        self.disk = WitnessedDisk(self.witness)
        self.settings = LogSettings(
            fold_every_claims=luck.choice((2, 3, 5, 1000)),
            tail_claims_max=luck.choice((1, 2, 8)),
            cache_bytes_max=luck.choice((200, 2_000, 1_000_000)),
            history_bytes_max=luck.choice((200, 5_000, 1_000_000)),
            wal=WalSettings(
                flush_bytes_max=luck.choice((150, 400, 1_000_000)),
                buffer_bytes_max=luck.choice((600, 5_000, 1_000_000)),
                read_grace_ms=luck.choice((1_000, 60_000)),
            ),
        )
        self.latency_topics: set[str] = set()
        self.dialects: dict[str, Dialect] = self.witness.dialects
        self.registries: dict[Host, object] = {}
        """Of schemas, one at each broker."""
        self.partitions: list[PartitionId] = []
        self.brokers: list[Host] = []
        self.pipelines: list[Host] = []
        self.engines: list[Host] = []
        self.damaged: set[str] = set()
        """Objects and segments that were damaged, at least for a while."""
        self.outcomes = self.witness.tables.outcomes
        self.producers_made: set[tuple[int, int]] = set()
        """Producer ids and epochs that brokers gave to clients."""
        self.deposed_until = 0.0
        self.healed = False
        self.quiet = False
        """The clients are done."""
        self.over = False
        """Nobody sleeps any more, nothing is under way."""
        self._births = 0

    def profile_of(self, partition: PartitionId) -> Profile:
        return Profile.LATENCY if partition.topic_id in self.latency_topics else Profile.COST

    # ── brokers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        hosts: list[Host],
        place: int,
        role: str,
        then: Callable[[Any], Coroutine[Any, Any, None]],
        kind: type[Host] = Host,
    ) -> None:
        """Put a new machine at that place; when it dies another one comes."""
        self._births += 1
        host = kind(self, f"{role}-{self._births}")
        hosts[place : place + 1] = [host]
        host.machine.on_death.append(lambda: self._replace(hosts, place, role, then, kind))
        host.machine.spawn(then(host))

    def retire_brokers(self) -> None:
        """They are killed, and nobody comes in their place."""
        retired, self.brokers = self.brokers, []
        self.over = True
        for broker in retired:
            broker.machine.kill()

    def _replace(
        self,
        hosts: list[Host],
        place: int,
        role: str,
        then: Callable[[Any], Coroutine[Any, Any, None]],
        kind: type[Host],
    ) -> None:
        if self.over:
            return
        self.tally[f"{role}s killed"] += 1
        self.loop.after(spread(self.luck, 0.1, 120.0), self.start, hosts, place, role, then, kind)

    def weather_of(self, name: str, kind: str) -> Weather:
        """On the way from a machine of that name to a store of that kind."""
        if self.healed:
            return self.weather
        driver = self.mood.drivers_weather if name.startswith("pipeline") else None
        storage = self.mood.storage_weather if kind != "metadata" else None
        return driver or storage or self.weather

    def any_broker(self) -> Host:
        return self.luck.choice(self.brokers)

    def living(self) -> list[PartitionId]:
        """Of all topics that there are now."""
        return [partition for named in self.witness.topics.values() for partition in named.topic.partitions()]

    def any_partition(self) -> PartitionId:
        return self.luck.choice(self.partitions)

    def is_committed(self, record: TrueRecord) -> bool:
        return self.witness.tables.is_committed(record)

    # ── what happens to them ─────────────────────────────────────────────────────────────────────────────────────────

    def depose(self) -> None:
        """The metadata store's leader is deposed; some machines do not know it for a while."""
        seconds = spread(self.luck, 1.0, 7200.0)
        snapshot = self.server.snapshot()
        self.tally["depositions"] += 1
        self.deposed_until = max(self.deposed_until, self.loop.now + seconds)
        for host in (*self.brokers, *self.pipelines, *self.engines):
            if self.luck.random() < 0.6:
                host.metadata.depose(snapshot, seconds)

    def size_of(self, name: str) -> int:
        file = self.disk.files.get(name)
        return len(self.objects._objects[name][0]) if file is None else len(file.data)

    def flip(self, name: str, place: int, bit: int) -> None:
        """Flip a bit of an object or segment, if it is still there; flipped twice, it is whole again."""
        if self.witness.flipped.pop(name, None) is None:
            self.witness.flipped[name] = (place, bit)
        if name in self.disk.files:
            self.disk.files[name].data[place] ^= bit
        elif name in self.objects._objects:
            body, modified_ms = self.objects._objects[name]
            changed = bytearray(body)
            changed[place] ^= bit
            self.objects._objects[name] = (bytes(changed), modified_ms)

    def heal(self) -> None:
        """From here on nothing new goes wrong; what is late still arrives, and who is stalled still wakes up."""
        self.healed = True
        self.weather = CALM
        self.disk.syncs_fail = False
        for host in (*self.brokers, *self.pipelines, *self.engines):
            host.set_weather(CALM)
            host.clock.set_right()
