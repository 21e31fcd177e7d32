"""A run in which everything goes through Kafka requests: clients and disturbances, then healing, then the checks."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
from tests.simulation.checkers import check_bounded, check_inspected, check_move, check_objects, check_table
from tests.simulation.kafka.admin import Admin
from tests.simulation.kafka.consumers import EARLIEST, LATEST, Consumer, fetched, listed
from tests.simulation.kafka.coordination import Coordination
from tests.simulation.kafka.host import KafkaHost
from tests.simulation.kafka.judge import NONE, OUT_OF_RANGE, Fetched, Judge, Topic, Wanted, batches_of
from tests.simulation.kafka.link import Link
from tests.simulation.kafka.producers import IdempotentProducer, PlainProducer
from tests.simulation.lake import start_pipelines
from tests.simulation.world import Host, World

from lakestream.metadata import topics as records
from lakestream.metadata.topics import Topics
from lakestream.protocol.kafka import handlers  # noqa: F401 -- they enter themselves into the table
from lakestream.testing.faults import spread

HOUR = 3600.0
ACTIVE_S_MAX = 2 * HOUR
HEALED_S_MAX = 3 * HOUR
QUIET_S = 300.0
"""After the last that was late or asleep: brokers that died are back by then, and all have heard what there is."""

TRIES_MAX = 20
NAMES = ("orders", "clicks")
LATE_NAME = "visits"
PASSING_NAME = "visits"
"""Where there are groups, the one that is deleted, and made again."""


async def play(world: World, troubles: list[Coroutine[Any, Any, None]]) -> None:
    loop, luck, mood = world.loop, world.luck, world.mood
    judge = Judge(world)
    coordination = Coordination(world, judge) if mood.members else None
    topics = NAMES if mood.members else NAMES[: luck.randint(1, 2)]
    sizes = {name: mood.partitions if name == NAMES[0] else 1 for name in topics}
    if mood.members and mood.deletes_topic:
        sizes[PASSING_NAME] = mood.partitions  # as many as one that is made by whoever asks for it
    for name, count in sizes.items():
        await _make_topic(world, name, count)
    for place in range(mood.brokers):
        world.start(world.brokers, place, "broker", KafkaHost.start, KafkaHost)
    start_pipelines(world)
    producers = [loop.create_task(work) for work in _producers(world, judge, sizes)]
    if coordination is not None:
        producers += [loop.create_task(work) for work in coordination.clients(*NAMES)]
        others = [loop.create_task(work) for work in _passing(world, judge, coordination, sizes)]
    else:
        others = [loop.create_task(work) for work in (*_consumers(world, judge, sizes), *_admins(world, judge, sizes))]
    others += [loop.create_task(work) for work in (*troubles, _switch_profiles(world))]
    await asyncio.wait(producers, timeout=spread(luck, 60.0, ACTIVE_S_MAX))
    world.heal()
    done, late = await asyncio.wait([*producers, *others], timeout=HEALED_S_MAX)
    for task in done:
        task.result()
    if late:
        world.witness.accuse("every client gets through", f"{len(late)} do not end in a calm world")
        return
    world.quiet = True
    await _check_all(world, judge, coordination)


async def _make_topic(world: World, name: str, partition_count: int) -> None:
    settings = {"retention.ms": "-1"}  # the records' times are their own
    if world.luck.random() < 0.15 and not world.mood.members:
        settings["retention.bytes"] = "1000"
    topic_id = f"{world.luck.getrandbits(128):032x}"
    await Topics(world.server.client()).create(name, records.Topic(topic_id, partition_count, settings))
    if world.luck.random() < world.mood.latency:
        world.latency_topics.add(topic_id)


def _producers(world: World, judge: Judge, sizes: dict[str, int]) -> list[Coroutine[Any, Any, None]]:
    places = [(name, number) for name, count in sizes.items() for number in range(count)]
    mood = world.mood
    plain = [PlainProducer(world, judge, f"p{i}", *places[i % len(places)]).run() for i in range(mood.plain)]
    idempotent = [
        IdempotentProducer(world, judge, f"i{i}", *places[i % len(places)]).run() for i in range(mood.idempotent)
    ]
    return plain + idempotent


def _consumers(world: World, judge: Judge, sizes: dict[str, int]) -> list[Coroutine[Any, Any, None]]:
    names = list(sizes)
    return [
        Consumer(world, judge, f"c{i}", name := names[i % len(names)], sizes[name]).run()
        for i in range(world.mood.readers)
    ]


def _admins(world: World, judge: Judge, sizes: dict[str, int]) -> list[Coroutine[Any, Any, None]]:
    work = [Admin(world, judge, f"d-{name}").delete_records(name, count) for name, count in sizes.items()]
    if world.mood.deletes_topic:
        work.append(Admin(world, judge, "admin").recreate(NAMES[0], sizes[NAMES[0]]))
    if world.luck.random() < 0.3:
        work.append(_come_late(world, judge, LATE_NAME))
    work += [_come_late(world, judge, f"{LATE_NAME}-{number}") for number in range(world.mood.arrivals)]
    return work


def _passing(
    world: World, judge: Judge, coordination: Coordination, sizes: dict[str, int]
) -> list[Coroutine[Any, Any, None]]:
    if PASSING_NAME not in sizes:
        return []
    coordination.ledger.passing.add(PASSING_NAME)
    return [
        IdempotentProducer(world, judge, "v0", PASSING_NAME, 0).run(),
        Admin(world, judge, "admin").recreate(PASSING_NAME, sizes[PASSING_NAME]),
    ]


async def _come_late(world: World, judge: Judge, name: str) -> None:
    """A new topic, and at once those who use it, at brokers that have not heard of it yet."""
    admin = Admin(world, judge, "late")
    await admin.create(name)
    producers = [IdempotentProducer(world, judge, f"l{i}{name[len(LATE_NAME) :]}", name, 0) for i in range(3)]
    await asyncio.gather(admin.look_around(name), *(producer.run() for producer in producers))


async def _switch_profiles(world: World) -> None:
    for _ in range(5 if world.mood.switches_profile else 0):
        await asyncio.sleep(spread(world.luck, 0.1, world.mood.think_s_max))
        topics = [named.topic.topic_id for named in world.witness.topics.values()]
        if topics:
            world.latency_topics ^= {world.luck.choice(topics)}


# ── when all is over ─────────────────────────────────────────────────────────────────────────────────────────────────


async def _check_all(world: World, judge: Judge, coordination: Coordination | None) -> None:
    await asyncio.sleep(max(world.loop.late_until, world.deposed_until, world.loop.now) - world.loop.now + QUIET_S)
    world.over = True
    check_objects(world)
    if coordination is not None:
        await coordination.check()
    await check_inspected(world, world.living())
    for broker in world.brokers:
        await _check_all_readable(world, judge, broker)
    check_bounded(world)
    _check_registered(world)
    if world.mood.pipelines:
        world.retire_brokers()  # many hours follow, in which each would look at its clock ten times a second
        await check_move(world)
        for partition in world.living():
            check_table(world, partition)
        world.start(world.brokers, 0, "broker", KafkaHost.start, KafkaHost)
        await asyncio.sleep(60.0)
        await _check_all_readable(world, judge, world.any_broker())


async def _check_all_readable(world: World, judge: Judge, broker: Host) -> None:
    assert isinstance(broker, KafkaHost)
    for name, named in world.witness.topics.items():
        for partition in named.topic.partitions():
            await _check_readable(world, judge, broker, Topic(name, named.topic.topic_id), partition.number)


async def _check_readable(world: World, judge: Judge, broker: KafkaHost, topic: Topic, number: int) -> None:
    """The whole log from this broker, as one who comes anew reads it: the ends, then everything between them."""
    client = Consumer(world, judge, "last", topic.name, number + 1)
    link = Link(broker, "last")
    client._link = link
    partition = judge.logs(topic, number)[-1]
    log = world.witness.log(partition)
    for _ in range(TRIES_MAX):
        client.topic_id = await client.look(topic.name)
        start = await listed(client, link, Topic(topic.name, None), number, EARLIEST)
        end = await listed(client, link, Topic(topic.name, None), number, LATEST)
        is_start = start is not None and start >= log.start and judge.is_start(partition, start)
        if is_start and (client.topic_id, end) == (topic.topic_id, log.end):
            break
        await asyncio.sleep(1.0)
    else:
        said = f"id {client.topic_id}, {start} to {end}"
        world.witness.accuse(
            "what is acknowledged is readable",
            f"{broker.name} says {said} of {topic}-{number}: {log.start} to {log.end}",
        )
        return
    offset = max(log.start - 1, 0)
    while any(judge.is_served(partition, at) for at in range(max(offset, log.start), log.end)):
        asked = Fetched(broker, world.loop.now, 0.0, 1, 1_000, [Wanted(topic, number, offset, 1_000)])
        (part,) = await fetched(client, link, asked) or (None,)
        batches = batches_of(part.records) if part is not None else []
        if part is None:
            continue  # it asked for a session that was never given
        if part.error_code == OUT_OF_RANGE and offset < log.start:
            offset = log.start
        elif part.error_code == NONE and batches and offset >= log.start:
            offset = batches[-1].offset_next
        else:
            world.witness.accuse(
                "what is acknowledged is readable",
                f"{broker.name}: {topic}-{number}:{offset} gave {part.error_code!r} and {len(batches)} batches",
            )
            return
    link.close()


def _check_registered(world: World) -> None:
    """Every broker that lives has one record, and nobody else has."""
    known = [world.server.get(f"/brokers/{name}") for name in world.server.names("/brokers").ordered]
    hosts = sorted(msgspec.json.decode(record.value)["host"] for record in known if record is not None)
    names = sorted(broker.name for broker in world.brokers)
    if hosts != names:
        world.witness.accuse("every broker is known once", f"{hosts} are registered, {names} live")
