"""The simulated world: brokers on separate machines, and the stores that they share.

A broker that dies is replaced by a new one on a new machine. Clients run outside of all machines and reach a broker
with `call`, as over a network: the broker may stall or die during the call, or the client may give up first.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tests.simulation.oracle import ObservedDisk, ObservedObjects, ObservedServer, Oracle, TrueRecord
from tests.simulation.tables import LOCATIONS

from lakestream.catalog.catalog import Catalog
from lakestream.clock import SeededIds
from lakestream.config.settings import LogSettings, Profile, WalSettings
from lakestream.data.log.garbage_collector import WalGarbageCollector
from lakestream.data.log.log import Log
from lakestream.data.table.history import TableHistory
from lakestream.errors import Unavailable, Uncertain
from lakestream.metadata.claims import Claims
from lakestream.model import PartitionId
from lakestream.testing.fault_injection import CALM, CallOutcome, FaultRates, Line, log_uniform
from lakestream.testing.faulty_metadata import FaultyMetadata
from lakestream.testing.faulty_object_store import FaultyObjects
from lakestream.testing.faulty_segments import FaultySegments
from lakestream.testing.simulation import Died, SimClock, SimLoop

if TYPE_CHECKING:
    from tests.simulation.value_generators import ValueGenerator

T = TypeVar("T")

REQUEST_S = 60.0
"""How long a client waits for a response."""

WORK_S_MAX = 120.0
"""No request may take a broker longer than this, by the broker's clock."""

CLOSE_S_MAX = 600.0

POINTERS = "/catalog/tables/"

BATCH_BYTES_MAX = 600
"""The largest batch that a producer sends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Parameters of a run, drawn from its seed."""

    name: str
    faults: FaultRates = CALM
    driver_faults: FaultRates | None = None
    """Fault rates of the pipeline drivers, if they differ."""
    storage_faults: FaultRates | None = None
    """Fault rates of object stores and segments, if they differ from those of metadata."""
    pointer_faults: FaultRates | None = None
    """Fault rates of a driver's writes to table pointers. Its other calls succeed, so that it reaches such a write."""
    brokers: int = 3
    partitions: int = 2
    plain: int = 1
    idempotent: int = 2
    transactional: int = 1
    readers: int = 2
    pipelines: int = 1
    engines: int = 0
    """External engines, which change tables."""
    batches: int = 6
    """Batches that each producer sends."""
    think_s_max: float = 600.0
    """Longest time between two sends."""
    move_s_max: float = 900.0
    """Longest time between two runs of a pipeline."""
    moves: float = 1.0
    """Chance that a run of a pipeline does more than collect garbage."""
    depositions: int = 0
    deletes_topic: bool = False
    switches_profile: bool = False
    latency: float = 0.3
    """Chance that a topic has the latency profile."""
    damages: int = 0
    restarts: int = 0
    """Brokers that are shut down cleanly."""
    disk_fails: bool = False
    kafka: bool = False
    """All clients use Kafka requests (tests/simulation/kafka)."""
    cuts: float = 0.0
    """Chance per Kafka request that its connection is cut soon after."""
    arrivals: int = 0
    """Topics that are created during the run and used immediately."""
    deletes: int = 0
    """How often records are deleted from each topic."""
    members: int = 0
    """Members of a classic group. If there are any, the run has groups and transactions (kafka/coordination.py)."""
    consumer_members: int = 0
    """Members of a group of the consumer protocol (KIP-848)."""
    programs: int = 0
    """Programs that read, transform and write exactly once, in one group."""
    transactional_ids: int = 0
    typed: float = 0.0
    """Chance that a topic has schemas, and its table columns (value_generators.py)."""
    layouts: float = 0.0
    """Chance that the table of such a topic is partitioned and sorted by its settings (layouts.py)."""
    keyed: float = 0.0
    """Chance that the keys of such a topic have schemas, too."""
    stops: float = 0.0
    """Chance that an invalid record stops such a topic for a while."""
    protobuf: float = 0.0
    """Chance that some schemas of such a topic are Protobuf."""


class PointerLine(Line):
    """Line to the metadata store with faults only when a table's pointer is written, and at the next read of one."""

    _is_faulty = False
    _was_write = False

    async def cross(self, what: str, effect: Callable[[], T], *, writes: bool) -> T:
        self._is_faulty = POINTERS in what and (writes or self._was_write)
        if POINTERS in what:
            self._was_write = writes
        return await super().cross(what, effect, writes=writes)

    def _draw(self) -> CallOutcome:
        return super()._draw() if self._is_faulty else CallOutcome.ARRIVES


class Host:
    """One machine with its lines to the stores: a broker, a pipeline driver or an engine."""

    def __init__(self, world: "World", name: str) -> None:
        loop = world.loop
        self.name = name
        self.machine = loop.machine(name)
        self.clock = SimClock(loop, self.machine, skew_ms=loop.rng.randint(-20_000, 20_000))
        kinds = ("metadata", "objects", "disk")
        self.lines = [Line(loop, self.machine, kind, world.faults_of(name, kind), world.tally) for kind in kinds]
        if world.scenario.pointer_faults and name.startswith("pipeline") and not world.healed:
            self.lines[0] = PointerLine(loop, self.machine, "metadata", world.scenario.pointer_faults, world.tally)
        self.metadata = FaultyMetadata(world.server, self.lines[0])
        self.objects = FaultyObjects(world.objects, self.lines[1])
        self.segments = FaultySegments(world.disk, world.clock, self.lines[2])
        self.catalog = Catalog(self.metadata, self.objects, LOCATIONS, self.clock, SeededIds(loop.rng))
        self.history = TableHistory(self.catalog, self.objects, world.settings.history_bytes_max)
        self.claims = Claims(self.metadata)
        self.log = Log(
            self.metadata,
            self.objects,
            self.segments,
            world.settings,
            self.clock,
            SeededIds(loop.rng),
            profile_of=world.profile_of,
            history=self.history,
            on_partition_deleted=self._partition_deleted,
        )
        self.gc = WalGarbageCollector(
            self.metadata, self.objects, self.segments, read_grace_ms=world.settings.wal.read_grace_ms
        )
        self.started = False
        self._world = world

    def _partition_deleted(self, partition: PartitionId) -> None:
        """Does nothing: this host has no cache."""

    def set_faults(self, faults: FaultRates) -> None:
        for line in self.lines:
            line.rates = faults

    async def start(self) -> None:
        """Starts the log. Retries while a store is unavailable."""
        while not self.started:
            try:
                await self.log.start()
                self.started = True
            except Unavailable:
                await asyncio.sleep(1.0)
                self.clock.synchronize()

    async def call(self, work: Callable[[Log], Coroutine[Any, Any, T]], *, may_cancel: bool = True) -> T:
        """Runs a client's request. Raises Unavailable and Uncertain as a client sees a broker that is down or does not
        respond. A client that gives up closes the connection; the broker may detect that and cancel the work."""
        if not self.started or not self.machine.alive:
            await asyncio.sleep(0.1)
            raise Unavailable(f"{self.name} is down")
        try:
            cancels = may_cancel and self._world.rng.random() < 0.5
            async with asyncio.timeout(REQUEST_S):
                return await self.machine.call(self._bounded(work, WORK_S_MAX), cancels=cancels)
        except TimeoutError:
            self._world.tally["requests without a response"] += 1
            raise Uncertain(f"{self.name} did not respond in {REQUEST_S} s") from None
        except Died as error:
            raise Uncertain(f"{self.name} died") from error

    async def _bounded(self, work: Callable[[Log], Coroutine[Any, Any, T]], seconds_max: float) -> T:
        """Runs work on the broker and checks that it ends in time. Pauses of the machine do not count."""
        loop = self._world.loop
        began, stalled = loop.now, self.machine.stalled_s
        try:
            return await work(self.log)
        finally:
            took = loop.now - began - (self.machine.stalled_s - stalled)
            if self.machine.alive and took > seconds_max:
                self._world.oracle.report("requests end in time", f"a request to {self.name} took {took:.0f} s")
            self._check_buffer_limit()

    def _check_buffer_limit(self) -> None:
        limit = max(self._world.settings.wal.buffer_bytes_max, BATCH_BYTES_MAX)
        buffered = max(writer.bytes_in_flight for writer in self.log._writers.values())
        if buffered > limit:
            self._world.oracle.report(
                "queues are bounded", f"{self.name} buffers {buffered} bytes, the limit is {limit}"
            )

    async def restart(self) -> None:
        """Shuts the broker down cleanly: rejects new requests, completes pending ones, then ends its machine."""
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
    def __init__(self, loop: SimLoop, scenario: Scenario) -> None:
        self.loop = loop
        self.rng = rng = loop.rng
        self.scenario = scenario
        self.faults = scenario.faults
        self.tally: Counter[str] = Counter()
        self.clock = SimClock(loop)
        self.oracle = Oracle(loop, self.tally)
        self.server = ObservedServer(self.clock, self.oracle)
        self.objects = ObservedObjects(self.clock, self.oracle)
        self.disk = ObservedDisk(self.oracle)
        self.settings = LogSettings(
            fold_every_claims=rng.choice((2, 3, 5, 1000)),
            tail_claims_max=rng.choice((1, 2, 8)),
            cache_bytes_max=rng.choice((200, 2_000, 1_000_000)),
            history_bytes_max=rng.choice((200, 5_000, 1_000_000)),
            wal=WalSettings(
                flush_bytes_max=rng.choice((150, 400, 1_000_000)),
                buffer_bytes_max=rng.choice((600, 5_000, 1_000_000)),
                read_grace_ms=rng.choice((1_000, 60_000)),
            ),
        )
        self.latency_topics: set[str] = set()
        self.generators: dict[str, ValueGenerator] = self.oracle.generators
        self.registries: dict[Host, object] = {}
        """Schema registry of each broker."""
        self.partitions: list[PartitionId] = []
        self.brokers: list[Host] = []
        self.pipelines: list[Host] = []
        self.engines: list[Host] = []
        self.damaged: set[str] = set()
        """Objects and segments that were damaged, even if they are restored now."""
        self.outcomes = self.oracle.tables.outcomes
        self.producer_ids: set[tuple[int, int]] = set()
        """Producer ids and epochs that brokers returned to clients."""
        self.deposed_until = 0.0
        self.healed = False
        self.clients_done = False
        self.finished = False
        """No machine is paused and no call is pending."""
        self._machines_started = 0

    def profile_of(self, partition: PartitionId) -> Profile:
        return Profile.LATENCY if partition.topic_id in self.latency_topics else Profile.COST

    # ── brokers ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def start(
        self,
        hosts: list[Host],
        index: int,
        role: str,
        then: Callable[[Any], Coroutine[Any, Any, None]],
        kind: type[Host] = Host,
    ) -> None:
        """Starts a new machine as `hosts[index]`. When it dies, another one replaces it."""
        self._machines_started += 1
        host = kind(self, f"{role}-{self._machines_started}")
        hosts[index : index + 1] = [host]
        host.machine.on_death.append(lambda: self._replace(hosts, index, role, then, kind))
        host.machine.spawn(then(host))

    def kill_brokers(self) -> None:
        """Kills all brokers without replacement."""
        killed, self.brokers = self.brokers, []
        self.finished = True
        for broker in killed:
            broker.machine.kill()

    def _replace(
        self,
        hosts: list[Host],
        index: int,
        role: str,
        then: Callable[[Any], Coroutine[Any, Any, None]],
        kind: type[Host],
    ) -> None:
        if self.finished:
            return
        self.tally[f"{role}s killed"] += 1
        self.loop.after(log_uniform(self.rng, 0.1, 120.0), self.start, hosts, index, role, then, kind)

    def faults_of(self, name: str, kind: str) -> FaultRates:
        """Returns the fault rates of calls from a machine to a kind of store."""
        if self.healed:
            return self.faults
        driver = self.scenario.driver_faults if name.startswith("pipeline") else None
        storage = self.scenario.storage_faults if kind != "metadata" else None
        return driver or storage or self.faults

    def any_broker(self) -> Host:
        return self.rng.choice(self.brokers)

    def live_partitions(self) -> list[PartitionId]:
        """Returns the partitions of all topics that exist now."""
        return [partition for live in self.oracle.topics.values() for partition in live.topic.partitions()]

    def any_partition(self) -> PartitionId:
        return self.rng.choice(self.partitions)

    def is_committed(self, record: TrueRecord) -> bool:
        return self.oracle.tables.is_committed(record)

    # ── disturbances ─────────────────────────────────────────────────────────────────────────────────────────────────

    def depose(self) -> None:
        """Deposes the metadata store's leader. Some machines read from the old one for a while."""
        seconds = log_uniform(self.rng, 1.0, 7200.0)
        snapshot = self.server.snapshot()
        self.tally["depositions"] += 1
        self.deposed_until = max(self.deposed_until, self.loop.now + seconds)
        for host in (*self.brokers, *self.pipelines, *self.engines):
            if self.rng.random() < 0.6:
                host.metadata.depose(snapshot, seconds)

    def size_of(self, name: str) -> int:
        file = self.disk.files.get(name)
        return len(self.objects._objects[name][0]) if file is None else len(file.data)

    def flip(self, name: str, position: int, bit: int) -> None:
        """Flips a bit of an object or segment, if it still exists. A second flip restores it."""
        if self.oracle.flipped.pop(name, None) is None:
            self.oracle.flipped[name] = (position, bit)
        if name in self.disk.files:
            self.disk.files[name].data[position] ^= bit
        elif name in self.objects._objects:
            body, modified_ms = self.objects._objects[name]
            changed = bytearray(body)
            changed[position] ^= bit
            self.objects._objects[name] = (bytes(changed), modified_ms)

    def heal(self) -> None:
        """Stops all new faults. Late calls still arrive, and paused machines still resume."""
        self.healed = True
        self.faults = CALM
        self.disk.syncs_fail = False
        for host in (*self.brokers, *self.pipelines, *self.engines):
            host.set_faults(CALM)
            host.clock.synchronize()
