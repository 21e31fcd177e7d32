"""Tests of every request at every served version, over bytes."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from tests.harness.catalog.iceberg_tables import catalog_over
from tests.harness.kafka import consumer_group_scenarios, group_scenarios, transaction_scenarios
from tests.harness.kafka.kafka_handlers import Serving
from tests.harness.log.brokers import NOW, World

from lakestream.catalog.identifiers import TableName
from lakestream.catalog.operations.create_topic_table import ensure_table
from lakestream.metadata.topics import Topic
from lakestream.protocol.kafka.dispatch import HANDLERS, SMALL_BYTES_MAX
from lakestream.protocol.kafka.network.connection import CloseConnection
from lakestream.protocol.kafka.wire.codec import write_request
from lakestream.testing.batches import make_batch

NO_ID = UUID(int=0)


@pytest_asyncio.fixture
async def serving() -> AsyncIterator[Serving]:
    world = World()
    serving = await Serving.open(world, zone="a")
    yield serving
    await serving.close()
    await world.close()


Scenario = Callable[[Serving, int], Awaitable[None]]
SCENARIOS: dict[int, Scenario] = {
    **group_scenarios.SCENARIOS,
    **consumer_group_scenarios.SCENARIOS,
    **transaction_scenarios.SCENARIOS,
}


def scenario(key: int) -> Callable[[Scenario], Scenario]:
    def register(work: Scenario) -> Scenario:
        SCENARIOS[key] = work
        return work

    return register


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, version) for key, handler in sorted(HANDLERS.items()) for version in handler.versions],
)
async def test_request_gets_a_response_at_every_version(serving: Serving, key: int, version: int) -> None:
    assert key in SCENARIOS, f"request {key} has no scenario: add one"
    await SCENARIOS[key](serving, version)


@pytest.mark.parametrize("key", sorted(HANDLERS))
def test_module_header_has_key_and_versions(key: int) -> None:
    """docs/coverage.md is generated from the headers."""
    handler = HANDLERS[key]
    header = (__import__(handler.serve.__module__, fromlist=["_"]).__doc__ or "").splitlines()[0]
    first, last = handler.versions.start, handler.versions.stop - 1
    versions = f"v{first}" if first == last else f"v{first}-{last}"
    assert re.match(rf"[A-Z]\w+ \(key {key}\), {versions}[. ]", header), header


def expect(actual: Any, /, **expected: Any) -> None:
    """Compares fields, except those that this version does not have."""
    for name, value in expected.items():
        if hasattr(actual, name):
            assert getattr(actual, name) == value, f"{name} in {actual}"


# ── produce and consume ──────────────────────────────────────────────────────────────────────────────────────────────


@scenario(0)
async def produce(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic())
    part = [{"index": 1, "records": make_batch([b"a", b"b"], timestamp_ms=NOW)}]
    bad = [{"index": 9, "records": make_batch([b"a"], timestamp_ms=NOW)}]
    data = [{"name": "t", "topic_id": topic_id, "partition_data": part + bad}]
    response = await serving.request(0, version, {"acks": -1, "timeout": 1000, "topic_data": data})
    (topic,) = response.responses
    expect(topic, name="t", topic_id=topic_id)
    good, rejected = topic.partition_responses
    expect(good, index=1, error_code=0, base_offset=0, log_append_time=None, log_start_offset=0)
    expect(rejected, index=9, error_code=3, base_offset=-1)


@scenario(1)
async def fetch(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic())
    await serving.produce("t", "a", "b")
    part = [{"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}]
    body = {"max_wait": 10, "min_bytes": 1, "max_bytes": 1000, "replica_id": -1}
    response = await serving.request(
        1, version, body | {"topics": [{"topic": "t", "topic_id": topic_id, "partitions": part}]}
    )
    (topic,) = response.responses
    expect(topic, topic="t", topic_id=topic_id)
    (partition,) = topic.partitions
    expect(partition, partition_index=0, error_code=0, high_watermark=2, last_stable_offset=2, log_start_offset=0)
    assert partition.records == make_batch([b"a", b"b"], timestamp_ms=NOW)


@scenario(2)
async def list_offsets(serving: Serving, version: int) -> None:
    await serving.topic()
    await serving.produce("t", "a", "b")
    times = ((0, -2), (0, -1), (0, NOW), (9, -1))
    requested = [{"partition_index": number, "timestamp": time} for number, time in times]
    response = await serving.request(2, version, {"replica_id": -1, "topics": [{"name": "t", "partitions": requested}]})
    parts = response.topics[0].partitions
    assert [(part.error_code, part.timestamp, part.offset) for part in parts] == [
        (0, -1, 0),
        (0, -1, 2),
        (0, NOW, 0),
        (3, -1, -1),
    ]
    expect(parts[0], leader_epoch=0)


@scenario(3)
async def metadata(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic())
    requested = [{"name": "t"}] + ([{"name": "missing"}] if version >= 4 else [])
    options = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    response = await serving.request(3, version, {"topics": requested, "allow_auto_topic_creation": False} | options)
    (broker,) = response.brokers
    expect(broker, node_id=0, host="127.0.0.1", port=9092, rack="a")
    expect(response, cluster_id=serving.services.cluster_id, controller_id=0, error_code=0)
    expect(response, cluster_authorized_operations=0b1_1111_1010_0000)
    expect(response.topics[0], error_code=0, name="t", topic_id=topic_id, is_internal=False)
    expect(response.topics[0], topic_authorized_operations=0b1101_1111_1000)
    parts = response.topics[0].partitions
    assert [(part.partition_index, part.leader_id, part.error_code) for part in parts] == [(0, 0, 0), (1, 0, 0)]
    expect(parts[0], leader_epoch=0, replica_nodes=(0,), isr_nodes=(0,), offline_replicas=())
    if version >= 4:
        expect(response.topics[1], error_code=3, name="missing", partitions=())


@scenario(18)
async def api_versions(serving: Serving, version: int) -> None:
    response = await serving.request(18, version, {"client_software_name": "me", "client_software_version": "1.0"})
    assert response.error_code == 0
    versions = {entry.api_key: (entry.min_version, entry.max_version) for entry in response.api_keys}
    assert versions == {key: (h.reports_from, h.versions.stop - 1) for key, h in HANDLERS.items()}
    assert versions[0] == (0, 13)
    if version >= 3:
        levels = {feature.name: feature.max_version_level for feature in response.finalized_features}
        assert levels == {"group.version": 1, "transaction.version": 2}
        assert response.finalized_features_epoch > 0
        supported = len(response.supported_features)
        assert supported == (2 if version >= 4 else 0), "clients of older versions cannot parse a lowest version of 0"


@scenario(23)
async def offset_for_leader_epoch(serving: Serving, version: int) -> None:
    await serving.topic()
    await serving.produce("t", "a", "b")
    requested = [
        {"partition": number, "current_leader_epoch": current, "leader_epoch": epoch}
        for number, current, epoch in ((0, -1, 0), (0, 0, 0), (0, 0, 5), (0, 0, -1), (0, 3, 0), (9, -1, 0))
    ]
    topics = [{"topic": "t", "partitions": requested}]
    response = await serving.request(23, version, {"replica_id": -1, "topics": topics})
    (topic,) = response.topics
    assert topic.topic == "t"
    assert [(p.partition, p.error_code, p.leader_epoch, p.end_offset) for p in topic.partitions] == [
        (0, 0, 0, 2),
        (0, 0, 0, 2),
        (0, 0, -1, -1),
        (0, 0, -1, -1),
        (0, 75, -1, -1),
        (9, 3, -1, -1),
    ]


# ── topics ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@scenario(19)
async def create_topics(serving: Serving, version: int) -> None:
    def topic_request(name: str, **config: str) -> dict[str, Any]:
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        return {"name": name, "num_partitions": 3, "replication_factor": 3, "configs": configs}

    topics = [topic_request("good", retention_ms="5"), topic_request("no good"), topic_request("bad", retention_mz="1")]
    response = await serving.request(19, version, {"topics": topics, "timeout": 1000, "validate_only": False})
    good, illegal, unknown = response.topics
    expect(good, name="good", error_code=0, error_message=None, num_partitions=3, replication_factor=1)
    assert [illegal.error_code, unknown.error_code] == [17, 40]
    expect(unknown, error_message="topic setting 'retention.mz' is unknown: did you mean 'retention.ms'?")
    if version >= 5:
        assert {"retention.ms": ("5", 1)}.items() <= {c.name: (c.value, c.config_source) for c in good.configs}.items()
        assert all(config.config_source > 0 for config in good.configs)
    if version >= 7:
        assert good.topic_id == UUID(hex=(await serving.services.topics.get("good")).topic_id)
    body = {"topics": [topic_request("good")], "timeout": 1000, "validate_only": True}
    duplicate = await serving.request(19, version, body)
    assert duplicate.topics[0].error_code == 36


@scenario(20)
async def delete_topics(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic())
    if version >= 6:
        body = {"topics": [{"name": "t", "topic_id": NO_ID}, {"name": None, "topic_id": UUID(int=5)}]}
    else:
        body = {"topic_names": ["t", "missing"]}
    response = await serving.request(20, version, body | {"timeout": 1000})
    deleted, missing = response.responses
    expect(deleted, name="t", topic_id=topic_id, error_code=0)
    assert missing.error_code == (100 if version >= 6 else 3)
    assert await serving.services.topics.all() == {}


@scenario(37)
async def create_partitions(serving: Serving, version: int) -> None:
    await serving.topic(partitions=2)
    await serving.topic("other", partitions=2)

    def topic_request(name: str, count: int, assigned: int | None = None) -> dict[str, Any]:
        assignments = None if assigned is None else [{"broker_ids": [0]}] * assigned
        return {"name": name, "count": count, "assignments": assignments}

    async def create(*topics: dict[str, Any], validate_only: bool = False) -> list[tuple[str, int]]:
        body = {"topics": topics, "timeout": 1000, "validate_only": validate_only}
        response = await serving.request(37, version, body)
        assert all((result.error_message is None) == (result.error_code == 0) for result in response.results)
        return [(result.name, result.error_code) for result in response.results]

    assert await create(topic_request("t", 5), validate_only=True) == [("t", 0)]
    assert (await serving.services.metadata_cache.topic("t")).partition_count == 2
    assert await create(topic_request("t", 5, 3), topic_request("missing", 4), topic_request("other", 4, 1)) == [
        ("t", 0),
        ("missing", 3),
        ("other", 39),
    ]
    assert (await serving.services.metadata_cache.topic("t")).partition_count == 5
    assert (await serving.produce("t", "a", partition=4)).error_code == 0
    assert await create(topic_request("t", 5)) == [("t", 37)]
    assert await create(topic_request("t", 4)) == [("t", 37)]
    assert await create(topic_request("t", 10**9)) == [("t", 37)]
    assert await create(topic_request("t", 6), topic_request("t", 7)) == [("t", 42), ("t", 42)]


@scenario(21)
async def delete_records(serving: Serving, version: int) -> None:
    await serving.topic()
    await serving.topic("compacted", cleanup_policy="compact")
    for _ in range(3):
        await serving.produce("t", "a", "b")

    async def delete(name: str, *offsets: tuple[int, int]) -> list[tuple[int, int, int]]:
        parts = [{"partition_index": number, "offset": offset} for number, offset in offsets]
        body = {"topics": [{"name": name, "partitions": parts}], "timeout": 1000}
        (topic,) = (await serving.request(21, version, body)).topics
        assert topic.name == name
        return [(part.partition_index, part.low_watermark, part.error_code) for part in topic.partitions]

    assert await delete("t", (0, 3), (1, 0), (9, 0)) == [(0, 3, 0), (1, 0, 0), (9, -1, 3)]
    assert await serving.offset("t", -2) == 3
    assert await delete("t", (0, 1)) == [(0, 3, 0)]
    assert await delete("t", (0, 7), (0, -2)) == [(0, -1, 1), (0, -1, 1)]
    assert await delete("t", (0, -1)) == [(0, 6, 0)]
    assert await serving.offset("t", -2) == 6 == await serving.offset("t", -1)
    assert (await serving.produce("t", "c")).log_start_offset == 6
    assert await delete("compacted", (0, 0)) == [(0, -1, 44)]
    assert await delete("missing", (0, 0)) == [(0, -1, 3)]


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────

TOPIC, BROKER, GROUP = 2, 4, 32


@scenario(32)
async def describe_configs(serving: Serving, version: int) -> None:
    await serving.topic(retention_ms="5")
    resources = [
        {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None},
        {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": ["retention.ms", "segment.bytes", "x"]},
        {"resource_type": TOPIC, "resource_name": "missing", "configuration_keys": None},
        {"resource_type": TOPIC, "resource_name": "no good", "configuration_keys": None},
        {"resource_type": BROKER, "resource_name": "0", "configuration_keys": None},
        {"resource_type": BROKER, "resource_name": "", "configuration_keys": None},
        {"resource_type": BROKER, "resource_name": "8", "configuration_keys": None},
        {"resource_type": 8, "resource_name": "0", "configuration_keys": None},
        {"resource_type": GROUP, "resource_name": "g", "configuration_keys": None},
        {"resource_type": GROUP, "resource_name": "", "configuration_keys": None},
    ]
    body = {"resources": resources, "include_synonyms": True, "include_documentation": True}
    response = await serving.request(32, version, body)
    assert [result.error_code for result in response.results] == [0, 0, 3, 17, 0, 0, 42, 42, 0, 42]
    assert all((result.error_message is None) == (result.error_code == 0) for result in response.results)
    full, named_only, *_ = response.results
    expect(named_only, resource_type=TOPIC, resource_name="t")
    assert [config.name for config in named_only.configs] == ["retention.ms", "segment.bytes"]
    chosen, default = named_only.configs
    expect(chosen, value="5", config_source=1, read_only=False, is_sensitive=False, config_type=5)
    assert [(s.value, s.source) for s in chosen.synonyms] == [("5", 1), ("604800000", 5)]
    expect(default, value="1073741824", config_source=5, config_type=3)
    expect(default, documentation="has no effect: a partition has no files of its own")
    by_name = {config.name: config for config in full.configs}
    assert by_name["cleanup.policy"].value == "delete"
    assert by_name["min.insync.replicas"].config_source == 5
    broker = {config.name: config for config in response.results[4].configs}
    assert broker["node.id"].value == "0"
    assert broker["advertised.listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert broker["num.partitions"].value == "4"
    assert broker["offsets.retention.minutes"].value == str(7 * 24 * 60)
    assert broker["transaction.max.timeout.ms"].value == "900000"
    assert broker["node.id"].read_only
    assert not broker["num.partitions"].read_only
    assert response.results[5].configs == ()
    group = {config.name: (config.value, config.read_only) for config in response.results[8].configs}
    assert group == {
        "consumer.session.timeout.ms": ("45000", False),
        "consumer.heartbeat.interval.ms": ("5000", False),
    }
    minimal = await serving.request(32, version, {"resources": resources[:1]})
    assert minimal.results[0].configs[0].synonyms == ()
    expect(minimal.results[0].configs[0], documentation=None)


@scenario(44)
async def incremental_alter_configs(serving: Serving, version: int) -> None:
    await serving.topic(retention_ms="5")
    set_, delete, append, subtract = range(4)

    async def change(
        *changes: tuple[str, int, str | None], name: str = "t", kind: int = TOPIC, dry: bool = False
    ) -> int:
        configs = [{"name": key, "config_operation": operation, "value": value} for key, operation, value in changes]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        response = await serving.request(44, version, {"resources": [resource], "validate_only": dry})
        (result,) = response.responses
        expect(result, resource_type=kind, resource_name=name)
        assert (result.error_message is None) == (result.error_code == 0)
        return int(result.error_code)

    async def settings() -> dict[str, str]:
        stored = (await serving.services.topics.get("t")).settings
        assert (await serving.services.metadata_cache.topic("t")).settings == stored
        return stored

    assert await change(("max.message.bytes", set_, "99"), dry=True) == 0
    assert await settings() == {"retention.ms": "5"}
    assert await change(("max.message.bytes", set_, "99"), ("retention.ms", delete, None)) == 0
    assert await settings() == {"max.message.bytes": "99"}
    assert await change(("cleanup.policy", append, "compact")) == 0
    assert (await settings())["cleanup.policy"] == "delete,compact"
    assert await change(("cleanup.policy", append, "compact")) == 0
    assert await change(("cleanup.policy", subtract, "delete")) == 0
    assert (await settings())["cleanup.policy"] == "compact"
    before = await settings()
    assert await change(("max.message.bytes", append, "1")) == 40
    assert await change(("max.message.bytes", set_, "many")) == 40
    assert await change(("max.message.bytes", set_, "7"), ("nonsense", set_, "1")) == 40
    assert await change(("nonsense", delete, None)) == 40
    assert await change(("cleanup.policy", append, "burn")) == 40
    assert await change(("max.message.bytes", set_, None)) == 42
    assert await change(("max.message.bytes", 9, "1")) == 42
    assert await change(("flush.ms", set_, "1"), ("flush.ms", set_, "2")) == 42
    assert await change(("flush.ms", set_, "1"), name="missing") == 3
    assert await change(("log.retention.ms", set_, "1"), name="0", kind=BROKER) == 42
    assert await change(("leader.replication.throttled.rate", delete, None), name="0", kind=BROKER) == 0
    assert await change(("level", delete, None), name="0", kind=8) == 42
    assert await settings() == before
    resource = {"resource_type": TOPIC, "resource_name": "t", "configs": []}
    response = await serving.request(44, version, {"resources": [resource, resource]})
    assert [result.error_code for result in response.responses] == [42, 42]


@scenario(33)
async def alter_configs(serving: Serving, version: int) -> None:
    await serving.topic(retention_ms="5", max_message_bytes="99")

    async def replace(*configs: tuple[str, str | None], name: str = "t", kind: int = TOPIC, dry: bool = False) -> int:
        named = [{"name": key, "value": value} for key, value in configs]
        resource = {"resource_type": kind, "resource_name": name, "configs": named}
        response = await serving.request(33, version, {"resources": [resource], "validate_only": dry})
        (result,) = response.responses
        expect(result, resource_type=kind, resource_name=name)
        return int(result.error_code)

    assert await replace(("retention.ms", "7"), dry=True) == 0
    assert await replace(("retention.ms", "x"), dry=True) == 40
    assert (await serving.services.topics.get("t")).settings == {"retention.ms": "5", "max.message.bytes": "99"}
    assert await replace(("retention.ms", "7")) == 0
    assert (await serving.services.topics.get("t")).settings == {"retention.ms": "7"}
    assert await replace(("retention.ms", None)) == 42
    assert await replace(("nonsense", "1")) == 40
    # The message quotes the value, cut to fit the strings of old versions.
    assert await replace(("retention.ms", "x" * 30_000)) == 40
    assert await replace(name="missing") == 3
    assert await replace(("log.retention.ms", "1"), name="0", kind=BROKER) == 42
    assert (await serving.services.topics.get("t")).settings == {"retention.ms": "7"}
    assert await replace() == 0
    assert (await serving.services.topics.get("t")).settings == {}


async def test_current_name_is_described_when_a_setting_has_its_former_name(serving: Serving) -> None:
    former, name = "lakestream.on.invalid", "lakestream.invalid.record.action"

    async def alter(key: int, **configs: str) -> dict[str, str]:
        listed = [{"name": names[key_], "config_operation": 0, "value": value} for key_, value in configs.items()]
        resource = {"resource_type": TOPIC, "resource_name": "t", "configs": listed}
        response = await serving.request(key, 1, {"resources": [resource], "validate_only": False})
        assert response.responses[0].error_code == 0
        return (await serving.services.topics.get("t")).settings

    async def described(keys: list[str] | None) -> dict[str, str]:
        resource = {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": keys}
        response = await serving.request(32, 4, {"resources": [resource]})
        return {config.name: config.value for config in response.results[0].configs}

    names = {"former": former, "name": name}
    configs = [{"name": former, "value": "reject"}]
    created = {"name": "new", "num_partitions": 1, "replication_factor": 1, "configs": configs}
    await serving.request(19, 7, {"topics": [created], "timeout": 1000, "validate_only": False})
    assert (await serving.services.topics.get("new")).settings == {name: "reject"}

    # An old broker created this topic.
    await serving.services.topics.create("t", Topic(serving.services.ids.new(), 1, {former: "stop"}))
    assert await described([name]) == await described([former]) == {name: "stop"}
    assert former not in await described(None)
    assert await alter(44, former="keep") == {name: "keep"}
    assert await alter(44, former="keep", name="stop") == await alter(44, name="stop", former="keep") == {name: "stop"}
    assert await alter(33, former="keep") == {name: "keep"}
    assert await alter(33, name="stop", former="keep") == await alter(33, former="keep", name="stop") == {name: "stop"}


@scenario(74)
async def list_config_resources(serving: Serving, version: int) -> None:
    await serving.topic()

    async def list_types(*types: int) -> list[tuple[str, int]]:
        response = await serving.request(74, version, {"resource_types": types})
        assert response.error_code == 0
        return [(one.resource_name, getattr(one, "resource_type", 16)) for one in response.config_resources]

    if version == 0:
        assert await list_types() == []
        return
    assert await list_types() == [("t", TOPIC), ("0", BROKER)]
    assert await list_types(TOPIC) == [("t", TOPIC)]
    assert await list_types(16, 32) == []
    assert (await serving.request(74, version, {"resource_types": [77]})).error_code == 35


# ── cluster ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@scenario(60)
async def describe_cluster(serving: Serving, version: int) -> None:
    response = await serving.request(60, version, {"include_cluster_authorized_operations": True, "endpoint_type": 1})
    expect(response, error_code=0, error_message=None, endpoint_type=1, controller_id=0)
    assert response.cluster_id == serving.services.cluster_id
    assert response.cluster_authorized_operations == 0b1_1111_1010_0000
    (broker,) = response.brokers
    expect(broker, broker_id=0, host="127.0.0.1", port=9092, rack="a", is_fenced=False)
    assert (await serving.request(60, version, {})).cluster_authorized_operations == -(2**31)
    if version >= 1:
        assert (await serving.request(60, version, {"endpoint_type": 2})).error_code == 114
        assert (await serving.request(60, version, {"endpoint_type": 9})).error_code == 115


@scenario(75)
async def describe_topic_partitions(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic("a", partitions=3))
    await serving.topic("b", partitions=2)

    async def describe(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> tuple[Any, Any]:
        at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        body = {"topics": [{"name": name} for name in names], "response_partition_limit": limit, "cursor": at}
        response = await serving.request(75, version, body)
        following = response.next_cursor
        return response.topics, following and (following.topic_name, following.partition_index)

    topics, following = await describe()
    assert [(topic.name, len(topic.partitions)) for topic in topics] == [("a", 3), ("b", 2)]
    assert following is None
    expect(topics[0], error_code=0, topic_id=topic_id, is_internal=False, topic_authorized_operations=0b1101_1111_1000)
    expect(topics[0].partitions[2], partition_index=2, leader_id=0, leader_epoch=0, replica_nodes=(0,), isr_nodes=(0,))
    expect(topics[0].partitions[2], eligible_leader_replicas=(), last_known_elr=(), offline_replicas=())

    pages, cursor = [], None
    while True:
        topics, cursor = await describe("b", "a", limit=2, cursor=cursor)
        pages.append([(t.name, p.partition_index) for t in topics for p in t.partitions])
        if cursor is None:
            break
    assert pages == [[("a", 0), ("a", 1)], [("a", 2), ("b", 0)], [("b", 1)]]
    topics, _ = await describe("missing", "no good", "b")
    assert [(topic.name, topic.error_code) for topic in topics] == [("b", 0), ("missing", 3), ("no good", 17)]


@scenario(61)
async def describe_producers(serving: Serving, version: int) -> None:
    await serving.topic()
    await serving.produce("t", "a", "b", producer_id=5, epoch=3, sequence=0)
    response = await serving.request(61, version, {"topics": [{"name": "t", "partition_indexes": [0, 1, 9]}]})
    used, unused, missing = response.topics[0].partitions
    (producer,) = used.active_producers
    expect(producer, producer_id=5, producer_epoch=3, last_sequence=1, last_timestamp=NOW)
    expect(producer, coordinator_epoch=-1, current_txn_start_offset=-1)
    expect(unused, partition_index=1, error_code=0, active_producers=())
    expect(missing, partition_index=9, error_code=3)


@scenario(35)
async def describe_log_dirs(serving: Serving, version: int) -> None:
    await serving.topic("a", partitions=2)
    await serving.topic("b", partitions=1)
    await serving.produce("a", "x", partition=1)
    size = len(make_batch([b"x"]))

    async def describe(topics: Any) -> list[tuple[str, int, int]]:
        response = await serving.request(35, version, {"topics": topics})
        expect(response, error_code=0)
        (directory,) = response.results
        expect(directory, error_code=0, log_dir="/lakestream", total_bytes=-1, usable_bytes=-1, is_cordoned=False)
        return [(t.name, p.partition_index, p.partition_size) for t in directory.topics for p in t.partitions]

    assert await describe(None) == [("a", 0, 0), ("a", 1, size), ("b", 0, 0)]
    requested = [{"topic": "a", "partitions": [1, 9]}, {"topic": "missing", "partitions": [0]}]
    assert await describe(requested) == [("a", 1, size)]


@scenario(34)
async def alter_replica_log_dirs(serving: Serving, version: int) -> None:
    await serving.topic()

    def directory(path: str, name: str, *numbers: int) -> dict[str, Any]:
        return {"path": path, "topics": [{"name": name, "partitions": numbers}]}

    dirs = [directory("/lakestream", "t", 0, 9), directory("/data", "t", 1), directory("/lakestream", "missing", 0)]
    response = await serving.request(34, version, {"dirs": dirs})
    codes = {one.topic_name: [(p.partition_index, p.error_code) for p in one.partitions] for one in response.results}
    assert codes == {"t": [(0, 0), (9, 3), (1, 57)], "missing": [(0, 3)]}


@scenario(57)
async def update_features(serving: Serving, version: int) -> None:
    async def update(*levels: tuple[str, int], upgrade_type: int = 1) -> list[tuple[str, int, bool]]:
        updates = [
            {"feature": name, "max_version_level": level, "upgrade_type": upgrade_type, "allow_downgrade": True}
            for name, level in levels
        ]
        response = await serving.request(57, version, {"feature_updates": updates, "validate_only": False})
        if version == 2:
            return [("", response.error_code, response.error_message is None)]
        assert response.error_code == 0
        return [(one.feature, one.error_code, one.error_message is None) for one in response.results]

    def expected(code: int, *names: str) -> list[tuple[str, int, bool]]:
        return [(name, code, code == 0) for name in (names if version < 2 else [""])]

    assert await update(("group.version", 1)) == expected(0, "group.version")
    for name, level in (("group.version", 0), ("group.version", 2), ("transaction.version", -1), ("eligible", 1)):
        assert await update((name, level)) == expected(95, name)
    both = ("group.version", 1), ("transaction.version", 1)
    assert await update(*both) == expected(95, "group.version", "transaction.version")
    assert await update(("group.version", 1), ("group.version", 1)) == expected(42, "group.version")
    if version > 0:
        assert await update(("group.version", 1), upgrade_type=7) == expected(95, "group.version")


@scenario(43)
async def elect_leaders(serving: Serving, version: int) -> None:
    await serving.topic()
    requested = [{"topic": "t", "partitions": [0, 9]}]
    response = await serving.request(43, version, {"topic_partitions": requested, "timeout": 1000})
    expect(response, error_code=0)
    (topic,) = response.replica_election_results
    assert [(p.partition_id, p.error_code) for p in topic.partition_result] == [(0, 84), (9, 3)]
    assert (await serving.request(43, version, {"topic_partitions": None})).replica_election_results == ()
    if version >= 1:
        assert (await serving.request(43, version, {"election_type": 7})).error_code == 42


@scenario(45)
async def alter_partition_reassignments(serving: Serving, version: int) -> None:
    await serving.topic()
    requested = [
        {"partition_index": 0, "replicas": [0]},
        {"partition_index": 1, "replicas": [0, 1]},
        {"partition_index": 1, "replicas": None},
        {"partition_index": 9, "replicas": [0]},
    ]
    response = await serving.request(45, version, {"topics": [{"name": "t", "partitions": requested}]})
    expect(response, error_code=0, error_message=None)
    (topic,) = response.responses
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [(0, 0), (1, 39), (1, 85), (9, 3)]


@scenario(46)
async def list_partition_reassignments(serving: Serving, version: int) -> None:
    await serving.topic()
    requested = [{"name": "t", "partition_indexes": [0]}]
    for topics in (None, requested):
        expect(await serving.request(46, version, {"topics": topics}), error_code=0, topics=())


@scenario(55)
async def describe_quorum(serving: Serving, version: int) -> None:
    requested = [
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]},
        {"topic_name": "t", "partitions": [{"partition_index": 0}]},
    ]
    response = await serving.request(55, version, {"topics": requested})
    assert response.error_code == 0
    (quorum,), (other,) = (topic.partitions for topic in response.topics)
    expect(quorum, partition_index=0, error_code=0, leader_id=0, leader_epoch=0, high_watermark=0, observers=())
    assert [(voter.replica_id, voter.log_end_offset) for voter in quorum.current_voters] == [(0, 0)]
    assert other.error_code == 3
    if version >= 2:
        nodes = [(n.node_id, n.listeners[0].host, n.listeners[0].port) for n in response.nodes]
        assert nodes == [(0, "127.0.0.1", 9092)]


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_connection_is_closed_when_a_large_request_is_not_produce(serving: Serving) -> None:
    names = [{"name": "x" * 200}] * (SMALL_BYTES_MAX // 200)
    frame = write_request(3, 9, 1, None, {"topics": names})[4:]
    with pytest.raises(CloseConnection, match="4194304 is the maximum"):
        await serving.dispatcher.handle(serving.connection, frame)


async def test_large_request_is_accepted_when_it_is_produce(serving: Serving) -> None:
    await serving.topic(max_message_bytes=str(8 << 20))
    response = await serving.send("t", make_batch([bytes(5 << 20)], timestamp_ms=NOW))
    assert (response.error_code, response.base_offset) == (0, 0)


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("timestamp_ms", "code"), [(NOW - HOUR_MS - 1, 32), (NOW - HOUR_MS, 0), (-1, 0), (NOW + HOUR_MS + 1, 32)]
)
async def test_batch_is_rejected_when_its_timestamp_is_out_of_bounds(
    serving: Serving, timestamp_ms: int, code: int
) -> None:
    """The timestamp -1 means none, and is never out of bounds."""
    await serving.topic(message_timestamp_before_max_ms=str(HOUR_MS), message_timestamp_after_max_ms=str(HOUR_MS))
    response = await serving.send("t", make_batch([b"v"], timestamp_ms=timestamp_ms))
    assert response.error_code == code


async def test_timestamp_error_is_retriable_when_the_clock_of_the_broker_is_wrong(serving: Serving) -> None:
    await serving.topic(message_timestamp_after_max_ms=str(HOUR_MS))
    serving.services.log._skew.observe(NOW, NOW + 2 * HOUR_MS)
    response = await serving.send("t", make_batch([b"v"], timestamp_ms=NOW + 2 * HOUR_MS))
    assert response.error_code == 7, "clients retry this code"


@pytest.mark.parametrize("explicit", [False, True])
async def test_old_table_is_renamed_when_a_topic_is_recreated(serving: Serving, explicit: bool) -> None:
    """The table of the new topic is created with its first records, so until then the name has no table."""
    catalog = catalog_over(serving.world.metadata, serving.world.objects)
    await catalog.start()
    old = await serving.services.topics.create("t", Topic(serving.services.ids.new(), 1))
    await ensure_table(catalog, "t", old.topic_id, {})
    await serving.request(20, 5, {"topic_names": ["t"], "timeout": 1000})
    if explicit:
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        await serving.request(19, 4, {"topics": [topic], "timeout": 1000, "validate_only": False})
    else:
        await serving.request(3, 4, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
    assert (await serving.services.topics.get("t")).topic_id != old.topic_id
    assert not await catalog.exists(TableName(("default",), "t"))
    assert (await catalog.load_id(old.topic_id)).name.name == f"t_{old.topic_id[:8]}"


@pytest.mark.parametrize(("settings", "kept"), [({}, True), ({"lakestream.table.on.delete": "drop"}, False)])
async def test_table_is_kept_or_dropped_when_its_topic_is_deleted(
    serving: Serving, settings: dict[str, str], kept: bool
) -> None:
    catalog = catalog_over(serving.world.metadata, serving.world.objects)
    await catalog.start()
    topic = await serving.services.topics.create("t", Topic(serving.services.ids.new(), 1, settings))
    await ensure_table(catalog, "t", topic.topic_id, settings)
    (deleted,) = (await serving.request(20, 5, {"topic_names": ["t"], "timeout": 1000})).responses
    assert deleted.error_code == 0
    assert await catalog.exists(TableName(("default",), "t")) is kept
