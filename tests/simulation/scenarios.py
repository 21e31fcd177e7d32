"""One run of the simulation: draws a scenario from the seed, runs clients and disturbances, heals, then checks."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation import value_generators as generators
from tests.simulation.checkers import check_all
from tests.simulation.kafka import kafka_scenario
from tests.simulation.lake import start_pipelines
from tests.simulation.layouts import small_windows
from tests.simulation.oracle import Violation
from tests.simulation.producers import IdempotentProducer, PlainProducer, TransactionalProducer
from tests.simulation.readers import Reader
from tests.simulation.world import Host, Scenario, World

from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.topics import Topic, Topics
from lakestream.testing.fault_injection import CALM, FaultRates, log_uniform
from lakestream.testing.simulation import SimLoop

HOUR = 3600.0
ACTIVE_S_MAX = 10 * HOUR
HEALED_S_MAX = 13 * HOUR
"""All clients must finish in this time: there are no new faults, and every paused machine has resumed."""

UNEXPECTED = "no unexpected exception"
"""The rule that an exception breaks if no caller expects it."""

UNRETRIEVED = "no task fails silently"

LOSSY = FaultRates(
    slow=0.1, refused=0.03, lost_there=0.03, lost_back=0.05, late=0.02, event_lost=0.3, event_doubled=0.2
)
ZOMBIES = FaultRates(slow=0.05, lost_back=0.01, stall=0.02)
CRASHES = FaultRates(slow=0.05, lost_back=0.01, kill=0.012, event_lost=0.1, watch_broken=0.05)
SLEEPERS = FaultRates(stall=0.03, stall_s_min=2 * HOUR)
RESTARTS = FaultRates(slow=0.3, kill=0.03, stall=0.03, stall_s_min=1.0, stall_s_max=20.0)
LOST_RESPONSES = FaultRates(slow=0.05, lost_back=0.15)
LATE = FaultRates(slow=0.1, lost_there=0.02, lost_back=0.04, late=0.08, late_s_max=1 * HOUR)
STORM = FaultRates(
    slow=0.08, refused=0.02, lost_there=0.02, lost_back=0.04, late=0.03, stall=0.01, kill=0.006, event_lost=0.3
)
TABLES = FaultRates(
    slow=0.2, refused=0.01, lost_there=0.01, lost_back=0.03, late=0.01, stall=0.005, kill=0.004, late_s_max=1 * HOUR
)


TWO_COORDINATORS = FaultRates(
    slow=0.1, stall=0.01, stall_s_min=3.0, stall_s_max=15.0, kill=0.006, event_lost=0.9, events_made_up_s_max=20.0
)
"""Brokers start and die, and most watch events are lost: two brokers act as coordinator of one group."""


def _shorter(faults: FaultRates) -> FaultRates:
    """Shortens delays and pauses for runs with Kafka requests; hours are covered by the runs without.

    Lost events are made up for, as by every real store: deleted records must not be returned for ever."""
    return replace(faults, late_s_max=0.25 * HOUR, stall_s_max=0.25 * HOUR, events_made_up_s_max=20.0)


KAFKA = Scenario(
    name="",
    kafka=True,
    move_s_max=20.0,
    transactional=0,
    plain=2,
    idempotent=3,
    batches=12,
    think_s_max=8.0,
    cuts=0.01,
    deletes=3,
)

GROUPS = replace(
    KAFKA,
    plain=0,
    idempotent=2,
    batches=8,
    think_s_max=4.0,
    deletes=0,
    members=3,
    consumer_members=2,
    programs=2,
    transactional_ids=2,
)
"""Members, programs and transactions, with coordinators that die and stall, and with two coordinators of one group."""


def _within_minutes(faults: FaultRates) -> FaultRates:
    """Limits delays and pauses to two minutes, which is longer than sessions and transactions last."""
    return replace(faults, late_s_max=120.0, stall_s_max=120.0, events_made_up_s_max=20.0)


SCENARIOS = (
    Scenario(name="calm"),
    Scenario(name="lossy", faults=LOSSY),
    Scenario(name="zombies", faults=ZOMBIES, move_s_max=300.0),
    Scenario(name="crashes", faults=CRASHES, move_s_max=300.0),
    Scenario(name="late", faults=LATE, move_s_max=60.0, think_s_max=60.0),
    Scenario(name="trims", faults=ZOMBIES, partitions=1, move_s_max=20.0, think_s_max=60.0, pipelines=2),
    Scenario(
        name="sleepers",
        faults=SLEEPERS,
        plain=3,
        idempotent=1,
        think_s_max=HOUR,
        move_s_max=0.5 * HOUR,
        moves=0.2,
        pipelines=2,
    ),
    Scenario(name="restarts", faults=RESTARTS, think_s_max=3.0, move_s_max=2.0, pipelines=2, batches=12),
    Scenario(
        name="fast trims",
        faults=LOST_RESPONSES,
        driver_faults=CALM,  # so that a trim can follow a lost response immediately
        plain=3,
        idempotent=1,
        transactional=0,
        think_s_max=10.0,
        move_s_max=2.0,
    ),
    Scenario(name="deposed", faults=replace(LOSSY, late=0.005), depositions=8, think_s_max=120.0, move_s_max=120.0),
    Scenario(name="storm", faults=STORM, depositions=3, pipelines=2, move_s_max=200.0),
    Scenario(
        name="tables",
        faults=TABLES,
        pipelines=2,
        engines=1,
        readers=4,
        batches=12,
        think_s_max=20.0,
        move_s_max=10.0,
    ),
    Scenario(
        name="unknown commits",
        faults=FaultRates(slow=0.05, lost_back=0.05, late=0.02, late_s_max=1 * HOUR),
        storage_faults=FaultRates(slow=0.05, kill=0.002),
        pointer_faults=FaultRates(slow=0.05, lost_back=0.4, late=0.05, late_s_max=1 * HOUR),
        pipelines=2,
        engines=1,
        think_s_max=30.0,
        move_s_max=10.0,
    ),
    Scenario(
        name="slow readers",
        faults=FaultRates(slow=0.3, slow_s_max=4.0, stall=0.03, stall_s_min=5.0, stall_s_max=50.0),
        driver_faults=FaultRates(slow=0.1, slow_s_max=1.0),
        engines=2,
        readers=6,
        transactional=0,
        batches=20,
        think_s_max=3.0,
        move_s_max=3.0,
    ),
    Scenario(
        name="stale tables", faults=LATE, depositions=5, pipelines=2, engines=1, think_s_max=60.0, move_s_max=20.0
    ),
    Scenario(
        name="typed",
        typed=1.0,
        faults=TABLES,
        pipelines=2,
        engines=2,
        readers=3,
        batches=12,
        think_s_max=20.0,
        move_s_max=10.0,
    ),
    Scenario(
        name="new columns",
        typed=1.0,
        faults=FaultRates(slow=0.05, lost_back=0.03),
        driver_faults=FaultRates(slow=0.1, refused=0.01, lost_back=0.03, late=0.01, kill=0.008, late_s_max=1 * HOUR),
        pipelines=2,
        batches=12,
        think_s_max=10.0,
        move_s_max=5.0,
    ),
    replace(KAFKA, name="kafka calm", cuts=0.0),
    replace(KAFKA, name="kafka cuts", faults=FaultRates(slow=0.05, event_doubled=0.2), cuts=0.1),
    replace(KAFKA, name="kafka lossy", faults=_shorter(LOSSY)),
    replace(KAFKA, name="kafka crashes", faults=_shorter(CRASHES)),
    replace(KAFKA, name="kafka zombies", faults=_shorter(ZOMBIES)),
    replace(KAFKA, name="kafka deposed", faults=_shorter(replace(LOSSY, late=0.005)), depositions=8),
    replace(KAFKA, name="kafka storm", faults=_shorter(STORM), depositions=2, cuts=0.03),
    replace(GROUPS, name="groups calm", cuts=0.0),
    replace(GROUPS, name="groups lossy", faults=_within_minutes(LOSSY), cuts=0.03),
    replace(GROUPS, name="groups crashes", faults=_within_minutes(CRASHES)),
    replace(GROUPS, name="groups zombies", faults=_within_minutes(ZOMBIES)),
    replace(GROUPS, name="groups late", faults=_within_minutes(LATE)),
    replace(GROUPS, name="groups deposed", faults=_within_minutes(replace(LOSSY, late=0.005)), depositions=4),
    replace(GROUPS, name="groups two coordinators", faults=TWO_COORDINATORS),
    replace(GROUPS, name="groups storm", faults=_within_minutes(STORM), depositions=1, cuts=0.03),
    # After the others, so that seeds draw the same scenarios as before these two were added.
    Scenario(
        name="layouts",
        typed=1.0,
        layouts=0.9,
        keyed=0.5,
        faults=TABLES,
        pipelines=2,
        engines=1,
        readers=3,
        batches=10,
        think_s_max=20.0,
        move_s_max=10.0,
    ),
    Scenario(
        name="invalid records",
        typed=1.0,
        layouts=0.3,
        keyed=0.6,
        stops=0.8,
        protobuf=0.6,
        faults=FaultRates(slow=0.05, lost_back=0.02),
        driver_faults=FaultRates(slow=0.1, refused=0.01, lost_back=0.03, late=0.01, kill=0.004, late_s_max=1 * HOUR),
        pipelines=2,
        batches=10,
        think_s_max=15.0,
        move_s_max=5.0,
    ),
)


RARE_SCENARIOS = (
    replace(
        KAFKA,
        name="kafka new topics",
        faults=FaultRates(slow=0.1, refused=0.3, event_lost=1.0, events_made_up_s_max=20.0),
        cuts=0.05,
        plain=0,
        readers=0,
        deletes=0,
        batches=4,
        arrivals=6,
    ),
    Scenario(
        name="tables deposed",
        faults=FaultRates(slow=0.05),
        depositions=20,
        transactional=0,
        readers=6,
        batches=20,
        think_s_max=3.0,
        move_s_max=3.0,
    ),
)
"""Scenarios for rules that rarely matter: drawn only by name."""


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    scenario: str
    digest: str
    tally: Counter[str]
    virtual_s: float
    steps: int
    violation: Violation | None
    """The first violation."""
    lines: list[str]


def scenario_of(rng: random.Random, names: tuple[str, ...] = ()) -> Scenario:
    scenario = rng.choice(
        [scenario for scenario in (*SCENARIOS, *RARE_SCENARIOS) if scenario.name in names] if names else SCENARIOS
    )
    faults = scenario.faults
    if faults.event_lost and not scenario.kafka:
        faults = replace(faults, events_made_up_s_max=rng.choice((None, 20.0)))
    return replace(
        scenario,
        faults=faults,
        brokers=rng.choice((2, 3, 3, 4)),
        partitions=rng.choice((1, 1, 2, 3)),
        deletes_topic=rng.random() < (0.4 if scenario.kafka else 0.1),
        switches_profile=rng.random() < 0.25,
        latency=rng.choice((0.0, 0.3, 1.0)),
        pipelines=rng.choice((0, 0, 1, 2)) if scenario.kafka else scenario.pipelines,
        engines=scenario.engines or rng.choice((0, 0, 1, 2)),
        damages=0 if scenario.kafka else rng.choice((0, 0, 0, 2)),
        restarts=rng.choice((0, 0, 3)),
        disk_fails=rng.random() < 0.1,
        typed=scenario.typed or (0.0 if scenario.kafka else rng.choice((0.0, 0.0, 0.0, 0.5))),
    )


def brief(scenario: Scenario) -> Scenario:
    """Returns the scenario with few clients and batches, and the same disturbances."""
    few = {name: min(getattr(scenario, name), 1) for name in ("plain", "idempotent", "transactional", "readers")}
    return replace(scenario, batches=2, think_s_max=min(scenario.think_s_max, 60.0), **few)


def run(seed: int, *, scenarios: tuple[str, ...] = (), trace: bool = False, is_brief: bool = False) -> Outcome:
    """Runs one seed. `scenarios`: names of the scenarios to draw from; empty for all."""
    loop = SimLoop(seed)
    if trace:
        loop.trace.lines = []
    chosen = scenario_of(loop.rng, scenarios)
    if is_brief:
        chosen = brief(chosen)
    world = World(loop, chosen)
    violation: Violation | None = None
    try:
        with small_windows(chosen):
            loop.run_until_complete(kafka_scenario.play(world, _disturbances(world)) if chosen.kafka else _play(world))
    except AssertionError as error:
        violation = error if isinstance(error, Violation) else Violation(type(error).__name__, str(error))
    except Exception as error:
        violation = Violation(UNEXPECTED, repr(error))
        violation.__cause__ = error
    finally:
        failures = [*loop.failures, *({"exception": error} for error in loop.unretrieved())]
        loop.shutdown()
        loop.close()
    if world.oracle.violations:
        violation = world.oracle.violations[0]
    elif failures and violation is None:
        violation = Violation(UNRETRIEVED, str(failures[0]))
        violation.__cause__ = failures[0].get("exception")
    if failures and violation is not None and violation.__cause__ is None:
        violation.__cause__ = failures[0].get("exception")  # may be the cause of the violation
    digest, lines = loop.trace.digest(), loop.trace.lines or []
    return Outcome(seed, chosen.name, digest, world.tally, loop.now, loop.steps, violation, lines)


async def _play(world: World) -> None:
    loop, scenario, rng = world.loop, world.scenario, world.rng
    await _create_topics(world, "t", scenario.partitions)
    for index in range(scenario.brokers):
        world.start(world.brokers, index, "broker", Host.start)
    start_pipelines(world)
    producers = [loop.create_task(work) for work in _producers(world)]
    others = [loop.create_task(work) for work in (*_readers(world), *_disturbances(world))]
    await asyncio.wait(producers, timeout=log_uniform(rng, 60.0, ACTIVE_S_MAX))
    world.heal()
    done, late = await asyncio.wait([*producers, *others], timeout=HEALED_S_MAX)
    for task in done:
        task.result()
    if late:
        world.oracle.report("every client finishes", f"{len(late)} do not finish after the faults have stopped")
        return
    world.clients_done = True
    await check_all(world)


async def _create_topics(world: World, name: str, partition_count: int) -> None:
    """Creates a topic per partition, with separate profiles and deletion, or one topic with one table for all."""
    topics = Topics(world.server.client())
    sizes = [partition_count] if world.rng.random() < 0.4 else [1] * partition_count
    for number, size in enumerate(sizes):
        is_typed = world.rng.random() < world.scenario.typed
        generator = generators.draw_generator(f"{name}{number}", world.rng, world.scenario) if is_typed else None
        settings = {} if generator is None or generator.late else generator.settings
        topic = await topics.create(f"{name}{number}", Topic(f"{name}{number}", size, settings))
        if generator is not None:
            world.generators[topic.topic_id] = generator
        for partition in topic.partitions():
            world.oracle.log(partition)
            world.partitions.append(partition)
        if world.rng.random() < world.scenario.latency:
            world.latency_topics.add(topic.topic_id)


def _producers(world: World) -> list[Coroutine[Any, Any, None]]:
    scenario = world.scenario
    partitions = [world.partitions[i % len(world.partitions)] for i in range(scenario.plain + scenario.idempotent)]
    clients = [PlainProducer(world, f"p{i}", partitions[i]).run() for i in range(scenario.plain)]
    clients += [
        IdempotentProducer(world, f"i{i}", partitions[scenario.plain + i], 100 + i).run()
        for i in range(scenario.idempotent)
    ]
    clients += [TransactionalProducer(world, f"x{i}", 200 + i).run() for i in range(scenario.transactional)]
    return clients


def _readers(world: World) -> list[Coroutine[Any, Any, None]]:
    return [Reader(world).run() for _ in range(world.scenario.readers)]


# ── disturbances besides the faults of each call ─────────────────────────────────────────────────────────────────────


def _disturbances(world: World) -> list[Coroutine[Any, Any, None]]:
    scenario = world.scenario
    disturbances = []
    if scenario.depositions:
        disturbances.append(_depose(world))
    if scenario.switches_profile and not scenario.kafka:
        disturbances.append(_switch_profiles(world))
    if scenario.deletes_topic and not scenario.kafka:
        disturbances.append(_delete_topic(world))
    if scenario.damages:
        disturbances.append(_damage(world))
    if scenario.restarts:
        disturbances.append(_restart(world))
    if scenario.disk_fails:
        disturbances.append(_fail_disk(world))
    disturbances += [generators.register_schemas(world, generator) for generator in world.generators.values()]
    disturbances += [work for generator in world.generators.values() for work in generators.changes(world, generator)]
    return disturbances


async def _depose(world: World) -> None:
    for _ in range(world.scenario.depositions):
        await asyncio.sleep(log_uniform(world.rng, 0.5, world.scenario.think_s_max))
        if world.healed:
            return
        world.depose()


async def _switch_profiles(world: World) -> None:
    for _ in range(5):
        await asyncio.sleep(log_uniform(world.rng, 0.1, world.scenario.think_s_max))
        world.latency_topics ^= {world.any_partition().topic_id}


async def _delete_topic(world: World) -> None:
    """Deletes a topic and creates another one in its place. Clients notice the deletion at their next request."""
    await asyncio.sleep(log_uniform(world.rng, 10.0, world.scenario.think_s_max * 5))
    deleted_id = world.partitions[0].topic_id
    world.partitions = [partition for partition in world.partitions if partition.topic_id != deleted_id]
    before = set(world.generators)
    await _create_topics(world, "again", 1)
    world.tally["topics deleted"] += 1
    await _delete(world, deleted_id)
    for topic_id in sorted(world.generators.keys() - before):
        for work in generators.changes(world, world.generators[topic_id]):
            await work


async def _delete(world: World, topic_id: str) -> None:
    while True:
        host = world.any_broker()
        topics = Topics(host.metadata)
        try:
            await host.call(lambda _, topics=topics: topics.delete(topic_id))  # type: ignore[misc]
        except Missing:
            return
        except LakestreamError:
            await asyncio.sleep(1.0)


async def _damage(world: World) -> None:
    """Flips a bit of a claimed object; later the object is restored from a backup."""
    for _ in range(world.scenario.damages):
        await asyncio.sleep(log_uniform(world.rng, 1.0, world.scenario.think_s_max))
        stored = {*world.objects._objects, *world.disk.files}
        claimed = [
            (partition, claim)
            for partition, log in world.oracle.logs.items()
            for claim in log.claims.values()
            if not log.deleted and claim.name in stored
        ]
        if world.healed or not claimed:
            return
        partition, claim = world.rng.choice(claimed)
        world.damaged.add(claim.name)
        world.tally["objects damaged"] += 1
        position, bit = world.rng.randrange(world.size_of(claim.name)), 1 << world.rng.randrange(8)
        world.flip(claim.name, position, bit)
        for _ in range(3):
            await Reader(world).read(world.any_broker(), partition, claim.offset_start)
        await asyncio.sleep(log_uniform(world.rng, 10.0, world.scenario.think_s_max))
        world.flip(claim.name, position, bit)


async def _restart(world: World) -> None:
    for _ in range(world.scenario.restarts):
        await asyncio.sleep(log_uniform(world.rng, 0.5, world.scenario.think_s_max))
        await world.any_broker().restart()


async def _fail_disk(world: World) -> None:
    await asyncio.sleep(log_uniform(world.rng, 0.1, world.scenario.think_s_max))
    world.disk.syncs_fail = not world.healed
    world.tally["disk failures"] += 1
    await asyncio.sleep(log_uniform(world.rng, 0.1, 100.0))
    world.disk.syncs_fail = False
