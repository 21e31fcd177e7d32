"""Every request at every version that is offered: asked in bytes, answered in bytes that a client can read."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import UUID

import pytest
import pytest_asyncio
from tests.unit.catalog.tables import catalog_over
from tests.unit.data.brokers import NOW, World
from tests.unit.protocol.kafka import consumer_group_scenarios, group_scenarios, transaction_scenarios
from tests.unit.protocol.kafka.serving import Serving

from lakestream.catalog.names import TableName
from lakestream.catalog.topic_tables import ensure_table
from lakestream.metadata.topics import Topic
from lakestream.protocol.kafka.codec import write_request
from lakestream.protocol.kafka.dispatch import HANDLERS, SMALL_BYTES_MAX
from lakestream.protocol.kafka.server import CloseConnection
from lakestream.testing.batches import make_batch

NOBODY = UUID(int=0)


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
async def test_at_every_version(serving: Serving, key: int, version: int) -> None:
    assert key in SCENARIOS, f"request {key} has no scenario here: write one"
    await SCENARIOS[key](serving, version)


@pytest.mark.parametrize("key", sorted(HANDLERS))
def test_the_header_says_key_and_versions(key: int) -> None:
    """docs/coverage.md is made from it."""
    handler = HANDLERS[key]
    header = (__import__(handler.work.__module__, fromlist=["_"]).__doc__ or "").splitlines()[0]
    first, last = handler.versions.start, handler.versions.stop - 1
    versions = f"v{first}" if first == last else f"v{first}-{last}"
    assert re.match(rf"[A-Z]\w+ \(key {key}\), {versions}[. ]", header), header


def has(found: Any, /, **expected: Any) -> None:
    """Fields that this version lacks are not looked at."""
    for name, wanted in expected.items():
        if hasattr(found, name):
            assert getattr(found, name) == wanted, f"{name} in {found}"


# ── produce and consume ──────────────────────────────────────────────────────────────────────────────────────────────


@scenario(0)
async def produce(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic())
    part = [{"index": 1, "records": make_batch([b"a", b"b"], timestamp_ms=NOW)}]
    bad = [{"index": 9, "records": make_batch([b"a"], timestamp_ms=NOW)}]
    data = [{"name": "t", "topic_id": topic_id, "partition_data": part + bad}]
    answer = await serving.ask(0, version, {"acks": -1, "timeout": 1000, "topic_data": data})
    (topic,) = answer.responses
    has(topic, name="t", topic_id=topic_id)
    good, refused = topic.partition_responses
    has(good, index=1, error_code=0, base_offset=0, log_append_time=None, log_start_offset=0)
    has(refused, index=9, error_code=3, base_offset=-1)


@scenario(1)
async def fetch(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic())
    await serving.produce("t", "a", "b")
    part = [{"partition": 0, "fetch_offset": 1, "partition_max_bytes": 1000}]
    body = {"max_wait": 10, "min_bytes": 1, "max_bytes": 1000, "replica_id": -1}
    answer = await serving.ask(
        1, version, body | {"topics": [{"topic": "t", "topic_id": topic_id, "partitions": part}]}
    )
    (topic,) = answer.responses
    has(topic, topic="t", topic_id=topic_id)
    (found,) = topic.partitions
    has(found, partition_index=0, error_code=0, high_watermark=2, last_stable_offset=2, log_start_offset=0)
    assert found.records == make_batch([b"a", b"b"], timestamp_ms=NOW)


@scenario(2)
async def list_offsets(serving: Serving, version: int) -> None:
    await serving.topic()
    await serving.produce("t", "a", "b")
    wanted = [{"partition_index": number, "timestamp": time} for number, time in ((0, -2), (0, -1), (0, NOW), (9, -1))]
    answer = await serving.ask(2, version, {"replica_id": -1, "topics": [{"name": "t", "partitions": wanted}]})
    parts = answer.topics[0].partitions
    assert [(part.error_code, part.timestamp, part.offset) for part in parts] == [
        (0, -1, 0),
        (0, -1, 2),
        (0, NOW, 0),
        (3, -1, -1),
    ]
    has(parts[0], leader_epoch=0)


@scenario(3)
async def metadata(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic())
    wanted = [{"name": "t"}] + ([{"name": "nobody"}] if version >= 4 else [])
    asked = {"include_topic_authorized_operations": True, "include_cluster_authorized_operations": True}
    answer = await serving.ask(3, version, {"topics": wanted, "allow_auto_topic_creation": False} | asked)
    (broker,) = answer.brokers
    has(broker, node_id=0, host="127.0.0.1", port=9092, rack="a")
    has(answer, cluster_id=serving.services.cluster_id, controller_id=0, error_code=0)
    has(answer, cluster_authorized_operations=0b1_1111_1010_0000)
    has(answer.topics[0], error_code=0, name="t", topic_id=topic_id, is_internal=False)
    has(answer.topics[0], topic_authorized_operations=0b1101_1111_1000)
    parts = answer.topics[0].partitions
    assert [(part.partition_index, part.leader_id, part.error_code) for part in parts] == [(0, 0, 0), (1, 0, 0)]
    has(parts[0], leader_epoch=0, replica_nodes=(0,), isr_nodes=(0,), offline_replicas=())
    if version >= 4:
        has(answer.topics[1], error_code=3, name="nobody", partitions=())


@scenario(18)
async def api_versions(serving: Serving, version: int) -> None:
    answer = await serving.ask(18, version, {"client_software_name": "me", "client_software_version": "1.0"})
    assert answer.error_code == 0
    told = {entry.api_key: (entry.min_version, entry.max_version) for entry in answer.api_keys}
    assert told == {key: (h.reports_from, h.versions.stop - 1) for key, h in HANDLERS.items()}
    assert told[0] == (0, 13)
    if version >= 3:
        levels = {feature.name: feature.max_version_level for feature in answer.finalized_features}
        assert levels == {"group.version": 1, "transaction.version": 2}
        assert answer.finalized_features_epoch > 0
        supported = len(answer.supported_features)
        assert supported == (2 if version >= 4 else 0), "their lowest version is 0, which older ones cannot read"


@scenario(23)
async def offset_for_leader_epoch(serving: Serving, version: int) -> None:
    await serving.topic()
    await serving.produce("t", "a", "b")
    wanted = [
        {"partition": number, "current_leader_epoch": current, "leader_epoch": epoch}
        for number, current, epoch in ((0, -1, 0), (0, 0, 0), (0, 0, 5), (0, 0, -1), (0, 3, 0), (9, -1, 0))
    ]
    answer = await serving.ask(23, version, {"replica_id": -1, "topics": [{"topic": "t", "partitions": wanted}]})
    (topic,) = answer.topics
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
    def wanted(name: str, **config: str) -> dict[str, Any]:
        configs = [{"name": key.replace("_", "."), "value": value} for key, value in config.items()]
        return {"name": name, "num_partitions": 3, "replication_factor": 3, "configs": configs}

    topics = [wanted("good", retention_ms="5"), wanted("no good"), wanted("bad", retention_mz="1")]
    answer = await serving.ask(19, version, {"topics": topics, "timeout": 1000, "validate_only": False})
    good, illegal, unknown = answer.topics
    has(good, name="good", error_code=0, error_message=None, num_partitions=3, replication_factor=1)
    assert [illegal.error_code, unknown.error_code] == [17, 40]
    has(unknown, error_message="topic setting 'retention.mz' is not known; did you mean 'retention.ms'?")
    if version >= 5:
        assert {"retention.ms": ("5", 1)}.items() <= {c.name: (c.value, c.config_source) for c in good.configs}.items()
        assert all(config.config_source > 0 for config in good.configs)
    if version >= 7:
        assert good.topic_id == UUID(hex=(await serving.services.topics.get("good")).topic_id)
    again = await serving.ask(19, version, {"topics": [wanted("good")], "timeout": 1000, "validate_only": True})
    assert again.topics[0].error_code == 36


@scenario(20)
async def delete_topics(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic())
    if version >= 6:
        wanted = {"topics": [{"name": "t", "topic_id": NOBODY}, {"name": None, "topic_id": UUID(int=5)}]}
    else:
        wanted = {"topic_names": ["t", "nobody"]}
    answer = await serving.ask(20, version, wanted | {"timeout": 1000})
    gone, missing = answer.responses
    has(gone, name="t", topic_id=topic_id, error_code=0)
    assert missing.error_code == (100 if version >= 6 else 3)
    assert await serving.services.topics.all() == {}


@scenario(37)
async def create_partitions(serving: Serving, version: int) -> None:
    await serving.topic(partitions=2)
    await serving.topic("other", partitions=2)

    def wanted(name: str, count: int, assigned: int | None = None) -> dict[str, Any]:
        assignments = None if assigned is None else [{"broker_ids": [0]}] * assigned
        return {"name": name, "count": count, "assignments": assignments}

    async def ask(*topics: dict[str, Any], validate_only: bool = False) -> list[tuple[str, int]]:
        body = {"topics": topics, "timeout": 1000, "validate_only": validate_only}
        answer = await serving.ask(37, version, body)
        assert all((result.error_message is None) == (result.error_code == 0) for result in answer.results)
        return [(result.name, result.error_code) for result in answer.results]

    assert await ask(wanted("t", 5), validate_only=True) == [("t", 0)]
    assert (await serving.services.view.topic("t")).partition_count == 2
    assert await ask(wanted("t", 5, 3), wanted("nobody", 4), wanted("other", 4, 1)) == [
        ("t", 0),
        ("nobody", 3),
        ("other", 39),
    ]
    assert (await serving.services.view.topic("t")).partition_count == 5
    assert (await serving.produce("t", "a", partition=4)).error_code == 0
    assert await ask(wanted("t", 5)) == [("t", 37)]
    assert await ask(wanted("t", 4)) == [("t", 37)]
    assert await ask(wanted("t", 10**9)) == [("t", 37)]
    assert await ask(wanted("t", 6), wanted("t", 7)) == [("t", 42), ("t", 42)]


@scenario(21)
async def delete_records(serving: Serving, version: int) -> None:
    await serving.topic()
    await serving.topic("compacted", cleanup_policy="compact")
    for _ in range(3):
        await serving.produce("t", "a", "b")

    async def ask(name: str, *wanted: tuple[int, int]) -> list[tuple[int, int, int]]:
        parts = [{"partition_index": number, "offset": offset} for number, offset in wanted]
        body = {"topics": [{"name": name, "partitions": parts}], "timeout": 1000}
        (topic,) = (await serving.ask(21, version, body)).topics
        assert topic.name == name
        return [(part.partition_index, part.low_watermark, part.error_code) for part in topic.partitions]

    assert await ask("t", (0, 3), (1, 0), (9, 0)) == [(0, 3, 0), (1, 0, 0), (9, -1, 3)]
    assert await serving.offset("t", -2) == 3
    assert await ask("t", (0, 1)) == [(0, 3, 0)]
    assert await ask("t", (0, 7), (0, -2)) == [(0, -1, 1), (0, -1, 1)]
    assert await ask("t", (0, -1)) == [(0, 6, 0)]
    assert await serving.offset("t", -2) == 6 == await serving.offset("t", -1)
    assert (await serving.produce("t", "c")).log_start_offset == 6
    assert await ask("compacted", (0, 0)) == [(0, -1, 44)]
    assert await ask("nobody", (0, 0)) == [(0, -1, 3)]


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────

TOPIC, BROKER, GROUP = 2, 4, 32


@scenario(32)
async def describe_configs(serving: Serving, version: int) -> None:
    await serving.topic(retention_ms="5")
    resources = [
        {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": None},
        {"resource_type": TOPIC, "resource_name": "t", "configuration_keys": ["retention.ms", "segment.bytes", "x"]},
        {"resource_type": TOPIC, "resource_name": "nobody", "configuration_keys": None},
        {"resource_type": TOPIC, "resource_name": "no good", "configuration_keys": None},
        {"resource_type": BROKER, "resource_name": "0", "configuration_keys": None},
        {"resource_type": BROKER, "resource_name": "", "configuration_keys": None},
        {"resource_type": BROKER, "resource_name": "8", "configuration_keys": None},
        {"resource_type": 8, "resource_name": "0", "configuration_keys": None},
        {"resource_type": GROUP, "resource_name": "g", "configuration_keys": None},
        {"resource_type": GROUP, "resource_name": "", "configuration_keys": None},
    ]
    body = {"resources": resources, "include_synonyms": True, "include_documentation": True}
    answer = await serving.ask(32, version, body)
    assert [result.error_code for result in answer.results] == [0, 0, 3, 17, 0, 0, 42, 42, 0, 42]
    assert all((result.error_message is None) == (result.error_code == 0) for result in answer.results)
    everything, some, *_ = answer.results
    has(some, resource_type=TOPIC, resource_name="t")
    assert [config.name for config in some.configs] == ["retention.ms", "segment.bytes"]
    chosen, default = some.configs
    has(chosen, value="5", config_source=1, read_only=False, is_sensitive=False, config_type=5)
    assert [(s.value, s.source) for s in chosen.synonyms] == [("5", 1), ("604800000", 5)]
    has(default, value="1073741824", config_source=5, config_type=3)
    has(default, documentation="without meaning here: a partition has no files of its own")
    named = {config.name: config for config in everything.configs}
    assert named["cleanup.policy"].value == "delete"
    assert named["min.insync.replicas"].config_source == 5
    broker = {config.name: config for config in answer.results[4].configs}
    assert broker["node.id"].value == "0"
    assert broker["advertised.listeners"].value == "PLAINTEXT://127.0.0.1:9092"
    assert broker["num.partitions"].value == "4"
    assert broker["offsets.retention.minutes"].value == str(7 * 24 * 60)
    assert broker["transaction.max.timeout.ms"].value == "900000"
    assert all(config.read_only for config in broker.values())
    assert answer.results[5].configs == ()
    group = {config.name: (config.value, config.read_only) for config in answer.results[8].configs}
    assert group == {
        "consumer.session.timeout.ms": ("45000", True),
        "consumer.heartbeat.interval.ms": ("5000", True),
    }
    plain = await serving.ask(32, version, {"resources": resources[:1]})
    assert plain.results[0].configs[0].synonyms == ()
    has(plain.results[0].configs[0], documentation=None)


@scenario(44)
async def incremental_alter_configs(serving: Serving, version: int) -> None:
    await serving.topic(retention_ms="5")
    set_, delete, append, subtract = range(4)

    async def ask(*changes: tuple[str, int, str | None], name: str = "t", kind: int = TOPIC, dry: bool = False) -> int:
        configs = [{"name": key, "config_operation": what, "value": value} for key, what, value in changes]
        resource = {"resource_type": kind, "resource_name": name, "configs": configs}
        answer = await serving.ask(44, version, {"resources": [resource], "validate_only": dry})
        (result,) = answer.responses
        has(result, resource_type=kind, resource_name=name)
        assert (result.error_message is None) == (result.error_code == 0)
        return int(result.error_code)

    async def settings() -> dict[str, str]:
        stored = (await serving.services.topics.get("t")).settings
        assert (await serving.services.view.topic("t")).settings == stored
        return stored

    assert await ask(("max.message.bytes", set_, "99"), dry=True) == 0
    assert await settings() == {"retention.ms": "5"}
    assert await ask(("max.message.bytes", set_, "99"), ("retention.ms", delete, None)) == 0
    assert await settings() == {"max.message.bytes": "99"}
    assert await ask(("cleanup.policy", append, "compact")) == 0
    assert (await settings())["cleanup.policy"] == "delete,compact"
    assert await ask(("cleanup.policy", append, "compact")) == 0
    assert await ask(("cleanup.policy", subtract, "delete")) == 0
    assert (await settings())["cleanup.policy"] == "compact"
    before = await settings()
    assert await ask(("max.message.bytes", append, "1")) == 40
    assert await ask(("max.message.bytes", set_, "many")) == 40
    assert await ask(("max.message.bytes", set_, "7"), ("nonsense", set_, "1")) == 40
    assert await ask(("nonsense", delete, None)) == 40
    assert await ask(("cleanup.policy", append, "burn")) == 40
    assert await ask(("max.message.bytes", set_, None)) == 42
    assert await ask(("max.message.bytes", 9, "1")) == 42
    assert await ask(("flush.ms", set_, "1"), ("flush.ms", set_, "2")) == 42
    assert await ask(("flush.ms", set_, "1"), name="nobody") == 3
    assert await ask(("log.retention.ms", set_, "1"), name="0", kind=BROKER) == 42
    assert await ask(("leader.replication.throttled.rate", delete, None), name="0", kind=BROKER) == 0
    assert await ask(("level", delete, None), name="0", kind=8) == 42
    assert await settings() == before
    twice = {"resource_type": TOPIC, "resource_name": "t", "configs": []}
    answer = await serving.ask(44, version, {"resources": [twice, twice]})
    assert [result.error_code for result in answer.responses] == [42, 42]


@scenario(33)
async def alter_configs(serving: Serving, version: int) -> None:
    await serving.topic(retention_ms="5", max_message_bytes="99")

    async def ask(*configs: tuple[str, str | None], name: str = "t", kind: int = TOPIC, dry: bool = False) -> int:
        named = [{"name": key, "value": value} for key, value in configs]
        resource = {"resource_type": kind, "resource_name": name, "configs": named}
        answer = await serving.ask(33, version, {"resources": [resource], "validate_only": dry})
        (result,) = answer.responses
        has(result, resource_type=kind, resource_name=name)
        return int(result.error_code)

    assert await ask(("retention.ms", "7"), dry=True) == 0
    assert await ask(("retention.ms", "x"), dry=True) == 40
    assert (await serving.services.topics.get("t")).settings == {"retention.ms": "5", "max.message.bytes": "99"}
    assert await ask(("retention.ms", "7")) == 0
    assert (await serving.services.topics.get("t")).settings == {"retention.ms": "7"}
    assert await ask(("retention.ms", None)) == 42
    assert await ask(("nonsense", "1")) == 40
    assert await ask(("retention.ms", "x" * 30_000)) == 40  # what is quoted of it fits the strings of old versions
    assert await ask(name="nobody") == 3
    assert await ask(("log.retention.ms", "1"), name="0", kind=BROKER) == 42
    assert (await serving.services.topics.get("t")).settings == {"retention.ms": "7"}
    assert await ask() == 0
    assert (await serving.services.topics.get("t")).settings == {}


@scenario(74)
async def list_config_resources(serving: Serving, version: int) -> None:
    await serving.topic()

    async def ask(*types: int) -> list[tuple[str, int]]:
        answer = await serving.ask(74, version, {"resource_types": types})
        assert answer.error_code == 0
        return [(found.resource_name, getattr(found, "resource_type", 16)) for found in answer.config_resources]

    if version == 0:
        assert await ask() == []
        return
    assert await ask() == [("t", TOPIC), ("0", BROKER)]
    assert await ask(TOPIC) == [("t", TOPIC)]
    assert await ask(16, 32) == []
    assert (await serving.ask(74, version, {"resource_types": [77]})).error_code == 35


# ── the cluster ──────────────────────────────────────────────────────────────────────────────────────────────────────


@scenario(60)
async def describe_cluster(serving: Serving, version: int) -> None:
    answer = await serving.ask(60, version, {"include_cluster_authorized_operations": True, "endpoint_type": 1})
    has(answer, error_code=0, error_message=None, endpoint_type=1, controller_id=0)
    assert answer.cluster_id == serving.services.cluster_id
    assert answer.cluster_authorized_operations == 0b1_1111_1010_0000
    (broker,) = answer.brokers
    has(broker, broker_id=0, host="127.0.0.1", port=9092, rack="a", is_fenced=False)
    assert (await serving.ask(60, version, {})).cluster_authorized_operations == -(2**31)
    if version >= 1:
        assert (await serving.ask(60, version, {"endpoint_type": 2})).error_code == 114
        assert (await serving.ask(60, version, {"endpoint_type": 9})).error_code == 115


@scenario(75)
async def describe_topic_partitions(serving: Serving, version: int) -> None:
    topic_id = UUID(hex=await serving.topic("a", partitions=3))
    await serving.topic("b", partitions=2)

    async def ask(*names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> tuple[Any, Any]:
        at = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
        body = {"topics": [{"name": name} for name in names], "response_partition_limit": limit, "cursor": at}
        answer = await serving.ask(75, version, body)
        following = answer.next_cursor
        return answer.topics, following and (following.topic_name, following.partition_index)

    topics, following = await ask()
    assert [(topic.name, len(topic.partitions)) for topic in topics] == [("a", 3), ("b", 2)]
    assert following is None
    has(topics[0], error_code=0, topic_id=topic_id, is_internal=False, topic_authorized_operations=0b1101_1111_1000)
    has(topics[0].partitions[2], partition_index=2, leader_id=0, leader_epoch=0, replica_nodes=(0,), isr_nodes=(0,))
    has(topics[0].partitions[2], eligible_leader_replicas=(), last_known_elr=(), offline_replicas=())

    pages, cursor = [], None
    while True:
        topics, cursor = await ask("b", "a", limit=2, cursor=cursor)
        pages.append([(t.name, p.partition_index) for t in topics for p in t.partitions])
        if cursor is None:
            break
    assert pages == [[("a", 0), ("a", 1)], [("a", 2), ("b", 0)], [("b", 1)]]
    topics, _ = await ask("nobody", "no good", "b")
    assert [(topic.name, topic.error_code) for topic in topics] == [("b", 0), ("no good", 17), ("nobody", 3)]


@scenario(61)
async def describe_producers(serving: Serving, version: int) -> None:
    await serving.topic()
    await serving.produce("t", "a", "b", producer_id=5, epoch=3, sequence=0)
    answer = await serving.ask(61, version, {"topics": [{"name": "t", "partition_indexes": [0, 1, 9]}]})
    one, none, missing = answer.topics[0].partitions
    (producer,) = one.active_producers
    has(producer, producer_id=5, producer_epoch=3, last_sequence=1, last_timestamp=NOW)
    has(producer, coordinator_epoch=-1, current_txn_start_offset=-1)
    has(none, partition_index=1, error_code=0, active_producers=())
    has(missing, partition_index=9, error_code=3)


@scenario(35)
async def describe_log_dirs(serving: Serving, version: int) -> None:
    await serving.topic("a", partitions=2)
    await serving.topic("b", partitions=1)
    await serving.produce("a", "x", partition=1)
    size = len(make_batch([b"x"]))

    async def ask(topics: Any) -> list[tuple[str, int, int]]:
        answer = await serving.ask(35, version, {"topics": topics})
        has(answer, error_code=0)
        (directory,) = answer.results
        has(directory, error_code=0, log_dir="/lakestream", total_bytes=-1, usable_bytes=-1, is_cordoned=False)
        return [(t.name, p.partition_index, p.partition_size) for t in directory.topics for p in t.partitions]

    assert await ask(None) == [("a", 0, 0), ("a", 1, size), ("b", 0, 0)]
    wanted = [{"topic": "a", "partitions": [1, 9]}, {"topic": "nobody", "partitions": [0]}]
    assert await ask(wanted) == [("a", 1, size)]


@scenario(43)
async def elect_leaders(serving: Serving, version: int) -> None:
    await serving.topic()
    wanted = [{"topic": "t", "partitions": [0, 9]}]
    answer = await serving.ask(43, version, {"topic_partitions": wanted, "timeout": 1000})
    has(answer, error_code=0)
    (topic,) = answer.replica_election_results
    assert [(p.partition_id, p.error_code) for p in topic.partition_result] == [(0, 84), (9, 3)]
    assert (await serving.ask(43, version, {"topic_partitions": None})).replica_election_results == ()
    if version >= 1:
        assert (await serving.ask(43, version, {"election_type": 7})).error_code == 42


@scenario(45)
async def alter_partition_reassignments(serving: Serving, version: int) -> None:
    await serving.topic()
    wanted = [
        {"partition_index": 0, "replicas": [0]},
        {"partition_index": 1, "replicas": [0, 1]},
        {"partition_index": 1, "replicas": None},
        {"partition_index": 9, "replicas": [0]},
    ]
    answer = await serving.ask(45, version, {"topics": [{"name": "t", "partitions": wanted}]})
    has(answer, error_code=0, error_message=None)
    (topic,) = answer.responses
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [(0, 0), (1, 39), (1, 85), (9, 3)]


@scenario(46)
async def list_partition_reassignments(serving: Serving, version: int) -> None:
    await serving.topic()
    wanted = [{"name": "t", "partition_indexes": [0]}]
    for topics in (None, wanted):
        has(await serving.ask(46, version, {"topics": topics}), error_code=0, topics=())


@scenario(55)
async def describe_quorum(serving: Serving, version: int) -> None:
    wanted = [
        {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]},
        {"topic_name": "t", "partitions": [{"partition_index": 0}]},
    ]
    answer = await serving.ask(55, version, {"topics": wanted})
    assert answer.error_code == 0
    (quorum,), (other,) = (topic.partitions for topic in answer.topics)
    has(quorum, partition_index=0, error_code=0, leader_id=0, leader_epoch=0, high_watermark=0, observers=())
    assert [(voter.replica_id, voter.log_end_offset) for voter in quorum.current_voters] == [(0, 0)]
    assert other.error_code == 3
    if version >= 2:
        assert [(n.node_id, n.listeners[0].host, n.listeners[0].port) for n in answer.nodes] == [(0, "127.0.0.1", 9092)]


# ── limits ───────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_large_request_is_not_even_read(serving: Serving) -> None:
    names = [{"name": "x" * 200}] * (SMALL_BYTES_MAX // 200)
    frame = write_request(3, 9, 1, None, {"topics": names})[4:]
    with pytest.raises(CloseConnection, match="4194304 is the most that is read"):
        await serving.dispatcher.handle(serving.connection, frame)


async def test_a_large_produce_is_read(serving: Serving) -> None:
    await serving.topic(max_message_bytes=str(8 << 20))
    answer = await serving.send("t", make_batch([bytes(5 << 20)], timestamp_ms=NOW))
    assert (answer.error_code, answer.base_offset) == (0, 0)


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("timestamp_ms", "code"), [(NOW - HOUR_MS - 1, 32), (NOW - HOUR_MS, 0), (-1, 0), (NOW + HOUR_MS + 1, 32)]
)
async def test_times_out_of_bounds_are_refused(serving: Serving, timestamp_ms: int, code: int) -> None:
    """A record without a time, which is written as -1, has none that could be out of bounds."""
    await serving.topic(message_timestamp_before_max_ms=str(HOUR_MS), message_timestamp_after_max_ms=str(HOUR_MS))
    answer = await serving.send("t", make_batch([b"v"], timestamp_ms=timestamp_ms))
    assert answer.error_code == code


async def test_a_broker_whose_clock_is_wrong_does_not_judge_times(serving: Serving) -> None:
    await serving.topic(message_timestamp_after_max_ms=str(HOUR_MS))
    serving.services.log._skew.observe(NOW, NOW + 2 * HOUR_MS)
    answer = await serving.send("t", make_batch([b"v"], timestamp_ms=NOW + 2 * HOUR_MS))
    assert answer.error_code == 7, "one that clients try again"


@pytest.mark.parametrize("asked_for", [False, True])
async def test_a_topic_that_is_made_again_does_not_show_the_old_ones_rows(serving: Serving, asked_for: bool) -> None:
    """Also as long as it is empty: its table is made with its first records."""
    catalog = catalog_over(serving.world.metadata, serving.world.objects)
    await catalog.start()
    old = await serving.services.topics.create("t", Topic(serving.services.ids.new(), 1))
    await ensure_table(catalog, "t", old.topic_id, {})
    await serving.ask(20, 5, {"topic_names": ["t"], "timeout": 1000})
    if asked_for:
        wanted = {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        await serving.ask(19, 4, {"topics": [wanted], "timeout": 1000, "validate_only": False})
    else:
        await serving.ask(3, 4, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
    assert (await serving.services.topics.get("t")).topic_id != old.topic_id
    assert not await catalog.exists(TableName(("default",), "t"))
    assert (await catalog.load_id(old.topic_id)).name.name == f"t_{old.topic_id[:8]}"


@pytest.mark.parametrize(("said", "left"), [({}, True), ({"lakestream.table.on.delete": "drop"}, False)])
async def test_a_table_stays_or_goes_with_its_topic(serving: Serving, said: dict[str, str], left: bool) -> None:
    catalog = catalog_over(serving.world.metadata, serving.world.objects)
    await catalog.start()
    topic = await serving.services.topics.create("t", Topic(serving.services.ids.new(), 1, said))
    await ensure_table(catalog, "t", topic.topic_id, said)
    (gone,) = (await serving.ask(20, 5, {"topic_names": ["t"], "timeout": 1000})).responses
    assert gone.error_code == 0
    assert await catalog.exists(TableName(("default",), "t")) is left
