"""One run of the simulation: a mood drawn from the seed, clients and disturbances, then healing, then the checks."""

import asyncio
import random
from collections import Counter
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any

from tests.simulation import dialects
from tests.simulation.checkers import check_all
from tests.simulation.kafka import scenario as kafka
from tests.simulation.lake import start_pipelines
from tests.simulation.layouts import small_windows
from tests.simulation.producers import IdempotentProducer, PlainProducer, TransactionalProducer
from tests.simulation.readers import Reader
from tests.simulation.witness import Violation
from tests.simulation.world import Host, Mood, World

from lakestream.errors import LakestreamError, Missing
from lakestream.metadata.topics import Topic, Topics
from lakestream.testing.faults import CALM, Weather, spread
from lakestream.testing.simulation import SimLoop

HOUR = 3600.0
ACTIVE_S_MAX = 10 * HOUR
HEALED_S_MAX = 13 * HOUR
"""Producers must be done then: nothing is wrong any more, and who slept has woken up."""

SURPRISE = "no surprise"
"""The rule that is broken by any exception that no caller was told of."""

UNHEARD = "no task fails unheard"

LOSSY = Weather(slow=0.1, refused=0.03, lost_there=0.03, lost_back=0.05, late=0.02, event_lost=0.3, event_doubled=0.2)
ZOMBIES = Weather(slow=0.05, lost_back=0.01, stall=0.02)
CRASHES = Weather(slow=0.05, lost_back=0.01, kill=0.012, event_lost=0.1, watch_broken=0.05)
SLEEPERS = Weather(stall=0.03, stall_s_min=2 * HOUR)
RESTARTS = Weather(slow=0.3, kill=0.03, stall=0.03, stall_s_min=1.0, stall_s_max=20.0)
SWIFT = Weather(slow=0.05, lost_back=0.15)
LATE = Weather(slow=0.1, lost_there=0.02, lost_back=0.04, late=0.08, late_s_max=1 * HOUR)
STORM = Weather(
    slow=0.08, refused=0.02, lost_there=0.02, lost_back=0.04, late=0.03, stall=0.01, kill=0.006, event_lost=0.3
)
TABLES = Weather(
    slow=0.2, refused=0.01, lost_there=0.01, lost_back=0.03, late=0.01, stall=0.005, kill=0.004, late_s_max=1 * HOUR
)


DOUBLED = Weather(
    slow=0.1, stall=0.01, stall_s_min=3.0, stall_s_max=15.0, kill=0.006, event_lost=0.9, events_made_up_s_max=20.0
)
"""Brokers come and go, and hardly anybody hears of it: two believe that a group is theirs."""


def _shorter(weather: Weather) -> Weather:
    """Brokers behind Kafka requests are clients of the log like others: what takes hours is tried without them. A lost
    event is made up for, as by every real store: what was deleted must not be served for ever."""
    return replace(weather, late_s_max=0.25 * HOUR, stall_s_max=0.25 * HOUR, events_made_up_s_max=20.0)


KAFKA = Mood(
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
    followers=2,
    programs=2,
    transactors=2,
)
"""Members, programs and transactions, with coordinators that die, stall and are two at once."""


def _brief(weather: Weather) -> Weather:
    """Sessions and transactions take seconds: who is away for two minutes has missed all."""
    return replace(weather, late_s_max=120.0, stall_s_max=120.0, events_made_up_s_max=20.0)


MOODS = (
    Mood(name="calm"),
    Mood(name="lossy", weather=LOSSY),
    Mood(name="zombies", weather=ZOMBIES, move_s_max=300.0),
    Mood(name="crashes", weather=CRASHES, move_s_max=300.0),
    Mood(name="late", weather=LATE, move_s_max=60.0, think_s_max=60.0),
    Mood(name="trims", weather=ZOMBIES, partitions=1, move_s_max=20.0, think_s_max=60.0, pipelines=2),
    Mood(
        name="sleepers",
        weather=SLEEPERS,
        plain=3,
        idempotent=1,
        think_s_max=HOUR,
        move_s_max=0.5 * HOUR,
        moves=0.2,
        pipelines=2,
    ),
    Mood(name="restarts", weather=RESTARTS, think_s_max=3.0, move_s_max=2.0, pipelines=2, batches=12),
    Mood(
        name="swift",
        weather=SWIFT,
        drivers_weather=CALM,  # or no trim would come as soon as an answer is lost
        plain=3,
        idempotent=1,
        transactional=0,
        think_s_max=10.0,
        move_s_max=2.0,
    ),
    Mood(name="deposed", weather=replace(LOSSY, late=0.005), depositions=8, think_s_max=120.0, move_s_max=120.0),
    Mood(name="storm", weather=STORM, depositions=3, pipelines=2, move_s_max=200.0),
    Mood(
        name="tables",
        weather=TABLES,
        pipelines=2,
        engines=1,
        readers=4,
        batches=12,
        think_s_max=20.0,
        move_s_max=10.0,
    ),
    Mood(
        name="doubt",
        weather=Weather(slow=0.05, lost_back=0.05, late=0.02, late_s_max=1 * HOUR),
        storage_weather=Weather(slow=0.05, kill=0.002),
        pointers_weather=Weather(slow=0.05, lost_back=0.4, late=0.05, late_s_max=1 * HOUR),
        pipelines=2,
        engines=1,
        think_s_max=30.0,
        move_s_max=10.0,
    ),
    Mood(
        name="slow readers",
        weather=Weather(slow=0.3, slow_s_max=4.0, stall=0.03, stall_s_min=5.0, stall_s_max=50.0),
        drivers_weather=Weather(slow=0.1, slow_s_max=1.0),
        engines=2,
        readers=6,
        transactional=0,
        batches=20,
        think_s_max=3.0,
        move_s_max=3.0,
    ),
    Mood(name="tables old", weather=LATE, depositions=5, pipelines=2, engines=1, think_s_max=60.0, move_s_max=20.0),
    Mood(
        name="typed",
        typed=1.0,
        weather=TABLES,
        pipelines=2,
        engines=2,
        readers=3,
        batches=12,
        think_s_max=20.0,
        move_s_max=10.0,
    ),
    Mood(
        name="learning",
        typed=1.0,
        weather=Weather(slow=0.05, lost_back=0.03),
        drivers_weather=Weather(slow=0.1, refused=0.01, lost_back=0.03, late=0.01, kill=0.008, late_s_max=1 * HOUR),
        pipelines=2,
        batches=12,
        think_s_max=10.0,
        move_s_max=5.0,
    ),
    replace(KAFKA, name="kafka calm", cuts=0.0),
    replace(KAFKA, name="kafka cuts", weather=Weather(slow=0.05, event_doubled=0.2), cuts=0.1),
    replace(KAFKA, name="kafka lossy", weather=_shorter(LOSSY)),
    replace(KAFKA, name="kafka crashes", weather=_shorter(CRASHES)),
    replace(KAFKA, name="kafka zombies", weather=_shorter(ZOMBIES)),
    replace(KAFKA, name="kafka deposed", weather=_shorter(replace(LOSSY, late=0.005)), depositions=8),
    replace(KAFKA, name="kafka storm", weather=_shorter(STORM), depositions=2, cuts=0.03),
    replace(GROUPS, name="groups calm", cuts=0.0),
    replace(GROUPS, name="groups lossy", weather=_brief(LOSSY), cuts=0.03),
    replace(GROUPS, name="groups crashes", weather=_brief(CRASHES)),
    replace(GROUPS, name="groups zombies", weather=_brief(ZOMBIES)),
    replace(GROUPS, name="groups late", weather=_brief(LATE)),
    replace(GROUPS, name="groups deposed", weather=_brief(replace(LOSSY, late=0.005)), depositions=4),
    replace(GROUPS, name="groups doubled", weather=DOUBLED),
    replace(GROUPS, name="groups storm", weather=_brief(STORM), depositions=1, cuts=0.03),
    # Behind the others: so that seeds draw what they drew before these came.
    Mood(
        name="arranged",
        typed=1.0,
        arranged=0.9,
        keyed=0.5,
        weather=TABLES,
        pipelines=2,
        engines=1,
        readers=3,
        batches=10,
        think_s_max=20.0,
        move_s_max=10.0,
    ),
    Mood(
        name="judged",
        typed=1.0,
        arranged=0.3,
        keyed=0.6,
        stops=0.8,
        protobuf=0.6,
        weather=Weather(slow=0.05, lost_back=0.02),
        drivers_weather=Weather(slow=0.1, refused=0.01, lost_back=0.03, late=0.01, kill=0.004, late_s_max=1 * HOUR),
        pipelines=2,
        batches=10,
        think_s_max=15.0,
        move_s_max=5.0,
    ),
)


RARE_MOODS = (
    replace(
        KAFKA,
        name="kafka newcomers",
        weather=Weather(slow=0.1, refused=0.3, event_lost=1.0, events_made_up_s_max=20.0),
        cuts=0.05,
        plain=0,
        readers=0,
        deletes=0,
        batches=4,
        arrivals=6,
    ),
    Mood(
        name="tables deposed",
        weather=Weather(slow=0.05),
        depositions=20,
        transactional=0,
        readers=6,
        batches=20,
        think_s_max=3.0,
        move_s_max=3.0,
    ),
)
"""For rules that seldom matter: only drawn by their names."""


@dataclass(frozen=True, slots=True)
class Outcome:
    seed: int
    mood: str
    digest: str
    tally: Counter[str]
    virtual_s: float
    steps: int
    violation: Violation | None
    """The first one."""
    lines: list[str]


def mood_of(luck: random.Random, names: tuple[str, ...] = ()) -> Mood:
    mood = luck.choice([mood for mood in (*MOODS, *RARE_MOODS) if mood.name in names] if names else MOODS)
    weather = mood.weather
    if weather.event_lost and not mood.kafka:
        weather = replace(weather, events_made_up_s_max=luck.choice((None, 20.0)))
    return replace(
        mood,
        weather=weather,
        brokers=luck.choice((2, 3, 3, 4)),
        partitions=luck.choice((1, 1, 2, 3)),
        deletes_topic=luck.random() < (0.4 if mood.kafka else 0.1),
        switches_profile=luck.random() < 0.25,
        latency=luck.choice((0.0, 0.3, 1.0)),
        pipelines=luck.choice((0, 0, 1, 2)) if mood.kafka else mood.pipelines,
        engines=mood.engines or luck.choice((0, 0, 1, 2)),
        damages=0 if mood.kafka else luck.choice((0, 0, 0, 2)),
        restarts=luck.choice((0, 0, 3)),
        disk_fails=luck.random() < 0.1,
        typed=mood.typed or (0.0 if mood.kafka else luck.choice((0.0, 0.0, 0.0, 0.5))),
    )


def brief(mood: Mood) -> Mood:
    """The same troubles, of few clients that have little to say."""
    few = {name: min(getattr(mood, name), 1) for name in ("plain", "idempotent", "transactional", "readers")}
    return replace(mood, batches=2, think_s_max=min(mood.think_s_max, 60.0), **few)


def run(seed: int, *, moods: tuple[str, ...] = (), trace: bool = False, is_brief: bool = False) -> Outcome:
    """`moods`: the names of those to draw from; all if none is given."""
    loop = SimLoop(seed)
    if trace:
        loop.trace.lines = []
    chosen = mood_of(loop.luck, moods)
    if is_brief:
        chosen = brief(chosen)
    world = World(loop, chosen)
    violation: Violation | None = None
    try:
        with small_windows(chosen):
            loop.run_until_complete(kafka.play(world, _troubles(world)) if chosen.kafka else _play(world))
    except AssertionError as error:
        violation = error if isinstance(error, Violation) else Violation(type(error).__name__, str(error))
    except Exception as error:
        violation = Violation(SURPRISE, repr(error))
        violation.__cause__ = error
    finally:
        failures = [*loop.failures, *({"exception": error} for error in loop.unheard())]
        loop.bury()
        loop.close()
    if world.witness.violations:
        violation = world.witness.violations[0]
    elif failures and violation is None:
        violation = Violation(UNHEARD, str(failures[0]))
        violation.__cause__ = failures[0].get("exception")
    if failures and violation is not None and violation.__cause__ is None:
        violation.__cause__ = failures[0].get("exception")  # maybe the reason of what was seen
    digest, lines = loop.trace.digest(), loop.trace.lines or []
    return Outcome(seed, chosen.name, digest, world.tally, loop.now, loop.steps, violation, lines)


async def _play(world: World) -> None:
    loop, mood, luck = world.loop, world.mood, world.luck
    await _make_topics(world, "t", mood.partitions)
    for place in range(mood.brokers):
        world.start(world.brokers, place, "broker", Host.start)
    start_pipelines(world)
    producers = [loop.create_task(work) for work in _producers(world)]
    others = [loop.create_task(work) for work in (*_readers(world), *_troubles(world))]
    await asyncio.wait(producers, timeout=spread(luck, 60.0, ACTIVE_S_MAX))
    world.heal()
    done, late = await asyncio.wait([*producers, *others], timeout=HEALED_S_MAX)
    for task in done:
        task.result()
    if late:
        world.witness.accuse("every client gets through", f"{len(late)} do not end in a calm world")
        return
    world.quiet = True
    await check_all(world)


async def _make_topics(world: World, name: str, partition_count: int) -> None:
    """Each partition is a topic of its own, so that each has a profile of its own, and one can be deleted alone; or all
    are one topic, and share a table."""
    topics = Topics(world.server.client())
    sizes = [partition_count] if world.luck.random() < 0.4 else [1] * partition_count
    for number, size in enumerate(sizes):
        is_typed = world.luck.random() < world.mood.typed
        dialect = dialects.drawn(f"{name}{number}", world.luck, world.mood) if is_typed else None
        settings = {} if dialect is None or dialect.late else dialect.settings
        topic = await topics.create(f"{name}{number}", Topic(f"{name}{number}", size, settings))
        if dialect is not None:
            world.dialects[topic.topic_id] = dialect
        for partition in topic.partitions():
            world.witness.log(partition)
            world.partitions.append(partition)
        if world.luck.random() < world.mood.latency:
            world.latency_topics.add(topic.topic_id)


def _producers(world: World) -> list[Coroutine[Any, Any, None]]:
    mood = world.mood
    partitions = [world.partitions[i % len(world.partitions)] for i in range(mood.plain + mood.idempotent)]
    clients = [PlainProducer(world, f"p{i}", partitions[i]).run() for i in range(mood.plain)]
    clients += [
        IdempotentProducer(world, f"i{i}", partitions[mood.plain + i], 100 + i).run() for i in range(mood.idempotent)
    ]
    clients += [TransactionalProducer(world, f"x{i}", 200 + i).run() for i in range(mood.transactional)]
    return clients


def _readers(world: World) -> list[Coroutine[Any, Any, None]]:
    return [Reader(world).run() for _ in range(world.mood.readers)]


# ── troubles of the world, besides those of each call ────────────────────────────────────────────────────────────────


def _troubles(world: World) -> list[Coroutine[Any, Any, None]]:
    mood = world.mood
    troubles = []
    if mood.depositions:
        troubles.append(_depose(world))
    if mood.switches_profile and not mood.kafka:
        troubles.append(_switch_profiles(world))
    if mood.deletes_topic and not mood.kafka:
        troubles.append(_delete_topic(world))
    if mood.damages:
        troubles.append(_damage(world))
    if mood.restarts:
        troubles.append(_restart(world))
    if mood.disk_fails:
        troubles.append(_fail_disk(world))
    troubles += [dialects.use(world, dialect) for dialect in world.dialects.values()]
    troubles += [work for dialect in world.dialects.values() for work in dialects.changes(world, dialect)]
    return troubles


async def _depose(world: World) -> None:
    for _ in range(world.mood.depositions):
        await asyncio.sleep(spread(world.luck, 0.5, world.mood.think_s_max))
        if world.healed:
            return
        world.depose()


async def _switch_profiles(world: World) -> None:
    for _ in range(5):
        await asyncio.sleep(spread(world.luck, 0.1, world.mood.think_s_max))
        world.latency_topics ^= {world.any_partition().topic_id}


async def _delete_topic(world: World) -> None:
    """Somebody deletes a topic and makes another one in its place. Clients hear of it when they next ask."""
    await asyncio.sleep(spread(world.luck, 10.0, world.mood.think_s_max * 5))
    dying = world.partitions[0].topic_id
    world.partitions = [partition for partition in world.partitions if partition.topic_id != dying]
    known = set(world.dialects)
    await _make_topics(world, "again", 1)
    world.tally["topics deleted"] += 1
    await _delete(world, dying)
    for topic_id in sorted(world.dialects.keys() - known):
        for work in dialects.changes(world, world.dialects[topic_id]):
            await work


async def _delete(world: World, dying: str) -> None:
    while True:
        host = world.any_broker()
        topics = Topics(host.metadata)
        try:
            await host.ask(lambda _, topics=topics: topics.delete(dying))  # type: ignore[misc]
        except Missing:
            return
        except LakestreamError:
            await asyncio.sleep(1.0)


async def _damage(world: World) -> None:
    """A bit of a claimed object flips; later the object is restored from a backup."""
    for _ in range(world.mood.damages):
        await asyncio.sleep(spread(world.luck, 1.0, world.mood.think_s_max))
        stored = {*world.objects._objects, *world.disk.files}
        claimed = [
            (partition, claim)
            for partition, log in world.witness.logs.items()
            for claim in log.claims.values()
            if not log.gone and claim.name in stored
        ]
        if world.healed or not claimed:
            return
        partition, claim = world.luck.choice(claimed)
        world.damaged.add(claim.name)
        world.tally["objects damaged"] += 1
        place, bit = world.luck.randrange(world.size_of(claim.name)), 1 << world.luck.randrange(8)
        world.flip(claim.name, place, bit)
        for _ in range(3):
            await Reader(world).read(world.any_broker(), partition, claim.offset_start)
        await asyncio.sleep(spread(world.luck, 10.0, world.mood.think_s_max))
        world.flip(claim.name, place, bit)


async def _restart(world: World) -> None:
    for _ in range(world.mood.restarts):
        await asyncio.sleep(spread(world.luck, 0.5, world.mood.think_s_max))
        await world.any_broker().restart()


async def _fail_disk(world: World) -> None:
    await asyncio.sleep(spread(world.luck, 0.1, world.mood.think_s_max))
    world.disk.syncs_fail = not world.healed
    world.tally["disk failures"] += 1
    await asyncio.sleep(spread(world.luck, 0.1, 100.0))
    world.disk.syncs_fail = False
