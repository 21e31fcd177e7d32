"""A run in which all clients use Kafka requests: clients and disturbances, then healing, then the checks."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
from tests.simulation.checkers import check_final_move, check_objects, check_queues_empty, check_table, check_verified
from tests.simulation.kafka.admin import Admin
from tests.simulation.kafka.consumers import EARLIEST, LATEST, Consumer, fetch, list_offset
from tests.simulation.kafka.coordination import Coordination
from tests.simulation.kafka.host import KafkaHost
from tests.simulation.kafka.link import Link
from tests.simulation.kafka.producers import IdempotentProducer, PlainProducer
from tests.simulation.kafka.response_checker import (
    NONE,
    OUT_OF_RANGE,
    FetchRequest,
    PartitionFetch,
    ResponseChecker,
    Topic,
    batches_of,
)
from tests.simulation.lake import start_pipelines
from tests.simulation.world import Host, World

from lakestream.metadata import topics as records
from lakestream.metadata.topics import Topics
from lakestream.protocol.kafka import handlers  # noqa: F401 -- they enter themselves into the table
from lakestream.testing.fault_injection import log_uniform

HOUR = 3600.0
ACTIVE_S_MAX = 2 * HOUR
HEALED_S_MAX = 3 * HOUR
QUIET_S = 300.0
"""Time after the last late call or pause: brokers that died are replaced, and all brokers are up to date."""

TRIES_MAX = 20
NAMES = ("orders", "clicks")
LATE_NAME = "visits"
RECREATED_NAME = "visits"
"""The topic that is deleted and created again in runs with groups."""


async def play(world: World, disturbances: list[Coroutine[Any, Any, None]]) -> None:
    loop, rng, scenario = world.loop, world.rng, world.scenario
    checker = ResponseChecker(world)
    coordination = Coordination(world, checker) if scenario.members else None
    topics = NAMES if scenario.members else NAMES[: rng.randint(1, 2)]
    sizes = {name: scenario.partitions if name == NAMES[0] else 1 for name in topics}
    if scenario.members and scenario.deletes_topic:
        sizes[RECREATED_NAME] = scenario.partitions  # as many as an auto-created topic has
    for name, count in sizes.items():
        await _create_topic(world, name, count)
    for index in range(scenario.brokers):
        world.start(world.brokers, index, "broker", KafkaHost.start, KafkaHost)
    start_pipelines(world)
    producers = [loop.create_task(work) for work in _producers(world, checker, sizes)]
    if coordination is not None:
        producers += [loop.create_task(work) for work in coordination.clients(*NAMES)]
        others = [loop.create_task(work) for work in _recreated_topic(world, checker, coordination, sizes)]
    else:
        others = [
            loop.create_task(work) for work in (*_consumers(world, checker, sizes), *_admins(world, checker, sizes))
        ]
    others += [loop.create_task(work) for work in (*disturbances, _switch_profiles(world))]
    await asyncio.wait(producers, timeout=log_uniform(rng, 60.0, ACTIVE_S_MAX))
    world.heal()
    done, late = await asyncio.wait([*producers, *others], timeout=HEALED_S_MAX)
    for task in done:
        task.result()
    if late:
        world.oracle.report("every client finishes", f"{len(late)} do not finish after the faults have stopped")
        return
    world.clients_done = True
    await _check_all(world, checker, coordination)


async def _create_topic(world: World, name: str, partition_count: int) -> None:
    settings = {"retention.ms": "-1"}  # timestamps of records are not those of the simulated clock
    if world.rng.random() < 0.15 and not world.scenario.members:
        settings["retention.bytes"] = "1000"
    topic_id = f"{world.rng.getrandbits(128):032x}"
    await Topics(world.server.client()).create(name, records.Topic(topic_id, partition_count, settings))
    if world.rng.random() < world.scenario.latency:
        world.latency_topics.add(topic_id)


def _producers(world: World, checker: ResponseChecker, sizes: dict[str, int]) -> list[Coroutine[Any, Any, None]]:
    partitions = [(name, number) for name, count in sizes.items() for number in range(count)]
    scenario = world.scenario
    plain = [
        PlainProducer(world, checker, f"p{i}", *partitions[i % len(partitions)]).run() for i in range(scenario.plain)
    ]
    idempotent = [
        IdempotentProducer(world, checker, f"i{i}", *partitions[i % len(partitions)]).run()
        for i in range(scenario.idempotent)
    ]
    return plain + idempotent


def _consumers(world: World, checker: ResponseChecker, sizes: dict[str, int]) -> list[Coroutine[Any, Any, None]]:
    names = list(sizes)
    return [
        Consumer(world, checker, f"c{i}", name := names[i % len(names)], sizes[name]).run()
        for i in range(world.scenario.readers)
    ]


def _admins(world: World, checker: ResponseChecker, sizes: dict[str, int]) -> list[Coroutine[Any, Any, None]]:
    work = [Admin(world, checker, f"d-{name}").delete_records(name, count) for name, count in sizes.items()]
    if world.scenario.deletes_topic:
        work.append(Admin(world, checker, "admin").recreate(NAMES[0], sizes[NAMES[0]]))
    if world.rng.random() < 0.3:
        work.append(_use_new_topic(world, checker, LATE_NAME))
    work += [_use_new_topic(world, checker, f"{LATE_NAME}-{number}") for number in range(world.scenario.arrivals)]
    return work


def _recreated_topic(
    world: World, checker: ResponseChecker, coordination: Coordination, sizes: dict[str, int]
) -> list[Coroutine[Any, Any, None]]:
    if RECREATED_NAME not in sizes:
        return []
    coordination.ledger.recreated_topics.add(RECREATED_NAME)
    return [
        IdempotentProducer(world, checker, "v0", RECREATED_NAME, 0).run(),
        Admin(world, checker, "admin").recreate(RECREATED_NAME, sizes[RECREATED_NAME]),
    ]


async def _use_new_topic(world: World, checker: ResponseChecker, name: str) -> None:
    """Creates a topic and uses it immediately at brokers that have not read it yet."""
    admin = Admin(world, checker, "late")
    await admin.create(name)
    producers = [IdempotentProducer(world, checker, f"l{i}{name[len(LATE_NAME) :]}", name, 0) for i in range(3)]
    await asyncio.gather(admin.read_metadata(name), *(producer.run() for producer in producers))


async def _switch_profiles(world: World) -> None:
    for _ in range(5 if world.scenario.switches_profile else 0):
        await asyncio.sleep(log_uniform(world.rng, 0.1, world.scenario.think_s_max))
        topics = [live.topic.topic_id for live in world.oracle.topics.values()]
        if topics:
            world.latency_topics ^= {world.rng.choice(topics)}


# ── checks at the end ────────────────────────────────────────────────────────────────────────────────────────────────


async def _check_all(world: World, checker: ResponseChecker, coordination: Coordination | None) -> None:
    await asyncio.sleep(max(world.loop.late_until, world.deposed_until, world.loop.now) - world.loop.now + QUIET_S)
    world.finished = True
    check_objects(world)
    if coordination is not None:
        await coordination.check()
    await check_verified(world, world.live_partitions())
    for broker in world.brokers:
        await _check_all_readable(world, checker, broker)
    check_queues_empty(world)
    _check_brokers_registered(world)
    if world.scenario.pipelines:
        world.kill_brokers()  # many hours follow, in which each broker would measure its clock ten times a second
        await check_final_move(world)
        for partition in world.live_partitions():
            check_table(world, partition)
        world.start(world.brokers, 0, "broker", KafkaHost.start, KafkaHost)
        await asyncio.sleep(60.0)
        await _check_all_readable(world, checker, world.any_broker())


async def _check_all_readable(world: World, checker: ResponseChecker, broker: Host) -> None:
    assert isinstance(broker, KafkaHost)
    for name, live in world.oracle.topics.items():
        for partition in live.topic.partitions():
            await _check_readable(world, checker, broker, Topic(name, live.topic.topic_id), partition.number)


async def _check_readable(world: World, checker: ResponseChecker, broker: KafkaHost, topic: Topic, number: int) -> None:
    """Checks that a new consumer can read the whole log from this broker: both ends, then all records between them."""
    client = Consumer(world, checker, "last", topic.name, number + 1)
    link = Link(broker, "last")
    client._link = link
    partition = checker.logs(topic, number)[-1]
    log = world.oracle.log(partition)
    for _ in range(TRIES_MAX):
        client.topic_id = await client.find_topic(topic.name)
        start = await list_offset(client, link, Topic(topic.name, None), number, EARLIEST)
        end = await list_offset(client, link, Topic(topic.name, None), number, LATEST)
        is_start = start is not None and start >= log.start and checker.is_start(partition, start)
        if is_start and (client.topic_id, end) == (topic.topic_id, log.end):
            break
        await asyncio.sleep(1.0)
    else:
        returned = f"id {client.topic_id}, {start} to {end}"
        world.oracle.report(
            "acknowledged records are readable",
            f"{broker.name} returns {returned} for {topic}-{number}: {log.start} to {log.end}",
        )
        return
    offset = max(log.start - 1, 0)
    while any(checker.is_readable(partition, at) for at in range(max(offset, log.start), log.end)):
        request = FetchRequest(broker, world.loop.now, 0.0, 1, 1_000, [PartitionFetch(topic, number, offset, 1_000)])
        (part,) = await fetch(client, link, request) or (None,)
        batches = batches_of(part.records) if part is not None else []
        if part is None:
            continue  # the request named a fetch session that does not exist, or got no response
        if part.error_code == OUT_OF_RANGE and offset < log.start:
            offset = log.start
        elif part.error_code == NONE and batches and offset >= log.start:
            offset = batches[-1].offset_next
        else:
            world.oracle.report(
                "acknowledged records are readable",
                f"{broker.name}: {topic}-{number}:{offset} returned {part.error_code!r} and {len(batches)} batches",
            )
            return
    link.close()


def _check_brokers_registered(world: World) -> None:
    """Checks that every live broker has one record, and that there are no other records."""
    records_of_brokers = [world.server.get(f"/brokers/{name}") for name in world.server.names("/brokers").ordered]
    hosts = sorted(msgspec.json.decode(record.value)["host"] for record in records_of_brokers if record is not None)
    names = sorted(broker.name for broker in world.brokers)
    if hosts != names:
        world.oracle.report("live brokers are registered once", f"{hosts} are registered, {names} are alive")
