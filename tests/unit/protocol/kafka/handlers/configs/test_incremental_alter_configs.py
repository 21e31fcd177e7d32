"""Tests of configs of groups and brokers: they are stored, described, listed, and applied by all brokers."""

from collections.abc import AsyncIterator
from typing import Any

import pytest_asyncio
from tests.harness.kafka.consumer_group_scenarios import ConsumerMember
from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.log.brokers import World

from lakestream.protocol.kafka.handlers.configs import shared

BROKER, GROUP = 4, 32
SET, DELETE, APPEND = 0, 1, 2
INVALID_CONFIG, INVALID_REQUEST, POLICY_VIOLATION, BROKER_ID_NOT_REGISTERED = 40, 42, 44, 102
SESSION, HEARTBEAT = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


@pytest_asyncio.fixture
async def pair() -> AsyncIterator[tuple[Serving, Serving]]:
    world = World()
    first = await Serving.open(world)
    second = await Serving.open(world, node_id=1)
    await first.services.metadata_cache.refresh_brokers()
    yield first, second
    await first.close()
    await second.close()
    await world.close()


async def alter(
    serving: Serving,
    kind: int,
    name: str,
    *changes: tuple[str, str | None],
    operation: int | None = None,
    validate_only: bool = False,
) -> tuple[int, str | None]:
    """A value of None deletes the config."""
    configs = [
        {
            "name": key,
            "config_operation": operation if operation is not None else DELETE if value is None else SET,
            "value": value,
        }
        for key, value in changes
    ]
    resource = {"resource_type": kind, "resource_name": name, "configs": configs}
    body = {"resources": [resource], "validate_only": validate_only}
    (result,) = (await serving.request(44, 1, body)).responses
    return result.error_code, result.error_message


async def described(serving: Serving, kind: int, name: str, *names: str) -> dict[str, tuple[str, int, list[Any]]]:
    """Returns value, source and synonyms of configs, which can all be altered."""
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": names or None}
    response = await serving.request(32, 4, {"resources": [resource], "include_synonyms": True})
    (result,) = response.results
    assert result.error_code == 0
    assert not any(config.read_only for config in result.configs)
    return {
        config.name: (config.value, config.config_source, [(one.value, one.source) for one in config.synonyms])
        for config in result.configs
    }


async def refresh(*brokers: Serving) -> None:
    for serving in brokers:
        await serving.services.metadata_cache.refresh_configs()


async def test_group_config_is_stored_described_and_listed_by_all_brokers(pair: tuple[Serving, Serving]) -> None:
    first, second = pair
    assert await alter(first, GROUP, "g", (SESSION, "50000"), validate_only=True) == (0, None)
    assert (await described(first, GROUP, "g"))[SESSION][:2] == ("45000", 5)
    assert await alter(first, GROUP, "g", (SESSION, "50000")) == (0, None)
    await refresh(second)
    for serving in pair:
        assert await described(serving, GROUP, "g") == {
            SESSION: ("50000", 8, [("50000", 8), ("45000", 5)]),
            HEARTBEAT: ("5000", 5, [("5000", 5)]),
        }
        assert (await described(serving, GROUP, "other"))[SESSION][:2] == ("45000", 5)
        listed = await serving.request(74, 1, {"resource_types": [GROUP]})
        assert [(one.resource_name, one.resource_type) for one in listed.config_resources] == [("g", GROUP)]
    assert await alter(second, GROUP, "g", (SESSION, None)) == (0, None)
    await refresh(first)
    assert (await described(first, GROUP, "g"))[SESSION][:2] == ("45000", 5)
    assert (await first.request(74, 1, {"resource_types": [GROUP]})).config_resources == ()


async def test_group_config_is_rejected_when_it_is_invalid(pair: tuple[Serving, Serving]) -> None:
    first, _ = pair
    text = f"config {SESSION}: 20000 must be greater than {HEARTBEAT}, which is 20000"
    assert await alter(first, GROUP, "g", (SESSION, "20000"), (HEARTBEAT, "20000")) == (INVALID_CONFIG, text)
    assert await alter(first, GROUP, "g", (HEARTBEAT, "20000")) == (0, None)
    assert await alter(first, GROUP, "g", (SESSION, "20000")) == (INVALID_CONFIG, text)
    for change in ((SESSION, "soon"), ("retention.ms", "5")):
        assert (await alter(first, GROUP, "g", change))[0] == INVALID_CONFIG
    assert (await alter(first, GROUP, "g", (SESSION, "50000"), operation=APPEND))[0] == INVALID_CONFIG
    assert (await alter(first, GROUP, "", (SESSION, "50000")))[0] == INVALID_REQUEST
    assert (await described(first, GROUP, "g"))[SESSION][:2] == ("45000", 5)


async def test_number_of_resources_with_configs_is_limited(pair: tuple[Serving, Serving], monkeypatch: Any) -> None:
    first, _ = pair
    monkeypatch.setattr(shared, "RESOURCES_MAX", 2)
    for name in ("a", "b"):
        assert await alter(first, GROUP, name, (SESSION, "50000")) == (0, None)
    code, text = await alter(first, GROUP, "c", (SESSION, "50000"))
    assert (code, text) == (
        POLICY_VIOLATION,
        "2 groups and brokers have configs already: delete the configs of another one",
    )
    assert await alter(first, GROUP, "b", (SESSION, "51000")) == (0, None)
    assert await alter(first, GROUP, "a", (SESSION, None)) == (0, None)
    assert await alter(first, GROUP, "c", (SESSION, "50000")) == (0, None)


async def test_member_gets_the_heartbeat_interval_of_its_group() -> None:
    world = World()
    serving = await Serving.open(world)
    await serving.topic()
    member = ConsumerMember(serving)
    await member.join()
    assert (await member.heartbeat()).heartbeat_interval.total_seconds() == 0.5
    assert await alter(serving, GROUP, "g", (HEARTBEAT, "12000")) == (0, None)
    assert (await member.heartbeat()).heartbeat_interval.total_seconds() == 12
    assert await alter(serving, GROUP, "g", (SESSION, "14000")) == (0, None)
    assert (await member.heartbeat()).heartbeat_interval.total_seconds() == 7, "half of the session timeout"
    await serving.close()
    await world.close()


async def test_broker_config_of_one_broker_or_of_all_is_applied(pair: tuple[Serving, Serving]) -> None:
    first, second = pair
    name = "num.partitions"
    assert await described(first, BROKER, "") == {}
    assert await alter(first, BROKER, "", (name, "7")) == (0, None)
    assert await alter(first, BROKER, "1", (name, "8")) == (0, None)
    await refresh(second)
    for serving in pair:
        assert await described(serving, BROKER, "") == {name: ("7", 3, [("7", 3)])}
    assert (await described(first, BROKER, "0", name))[name] == ("7", 3, [("7", 3), ("4", 4)])
    assert (await described(second, BROKER, "1", name))[name] == ("8", 2, [("8", 2), ("7", 3), ("4", 4)])
    for serving, topic, count in ((first, "a", 7), (second, "b", 8)):
        assert await create(serving, topic) == count
    assert await alter(second, BROKER, "1", (name, None)) == (0, None)
    assert await create(second, "c") == 7


async def create(serving: Serving, name: str) -> int:
    topic = {"name": name, "num_partitions": -1, "replication_factor": -1}
    (created,) = (await serving.request(19, 7, {"topics": [topic], "timeout": 1000})).topics
    assert created.error_code == 0
    return int(created.num_partitions)


async def test_group_settings_of_a_broker_are_applied_while_it_runs(pair: tuple[Serving, Serving]) -> None:
    first, _ = pair
    changes = (
        ("offsets.retention.minutes", "3"),
        ("group.max.size", "5"),
        ("group.consumer.session.timeout.ms", "50000"),
    )
    assert await alter(first, BROKER, "0", *changes) == (0, None)
    await first.request(16, 5, {"states_filter": [], "types_filter": []})  # any request to the coordinator
    settings = first.services.groups.settings
    limits = settings.limits
    assert (settings.offsets_retention_ms, limits.members_max, limits.session_ms) == (180_000, 5, 50_000)
    assert (await described(first, GROUP, "g"))[SESSION][:2] == ("50000", 5)


async def test_broker_config_is_rejected_when_it_cannot_change(pair: tuple[Serving, Serving]) -> None:
    first, _ = pair
    code, text = await alter(first, BROKER, "0", ("log.retention.ms", "5"), ("num.partitions", "5"))
    assert code == INVALID_REQUEST
    assert text == "Cannot update these configs dynamically: log.retention.ms: set them at the start of the broker"
    for node in ("7", "x"):
        rejected = BROKER_ID_NOT_REGISTERED, f"No broker with id {node} found."
        assert await alter(first, BROKER, node, ("num.partitions", "5")) == rejected
    for change in (
        ("num.partitions", "0"),
        ("auto.create.topics.enable", "maybe"),
        ("group.min.session.timeout.ms", "80000000"),
        ("group.consumer.heartbeat.interval.ms", "45000"),
    ):
        assert (await alter(first, BROKER, "", change))[0] == INVALID_CONFIG
    assert await described(first, BROKER, "") == {}
