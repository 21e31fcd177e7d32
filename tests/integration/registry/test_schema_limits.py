"""Schemas whose checks could take hours or all memory: each gets a response, and other requests do not wait long."""

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, NamedTuple

import pytest
from tests.harness.clients.programs import running_cluster
from tests.harness.engines.engines import uri_of

from lakestream.testing.brokers import BrokerProcesses

DRAFT_4: Final = "http://json-schema.org/draft-04/schema#"
RESPONSE_S_MAX: Final = 2.0
DEPTH: Final = 40


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    yield from running_cluster("one-sqlite", tmp_path_factory)


class Response(NamedTuple):
    status: int
    body: Any
    took_s: float


def register(cluster: BrokerProcesses, subject: str, schema: object, kind: str = "AVRO") -> Response:
    text = schema if isinstance(schema, str) else json.dumps(schema)
    body = json.dumps({"schema": text, "schemaType": kind}).encode()
    url = f"{uri_of(cluster)}/subjects/{subject}/versions"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
    start_s = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=60) as response:
            return Response(response.status, json.load(response), time.monotonic() - start_s)
    except urllib.error.HTTPError as error:
        return Response(error.code, json.load(error), time.monotonic() - start_s)


def small_schema(name: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [{"name": "a", "type": "int"}]}


def nested_schema(leaf: str) -> Any:
    inner: Any = leaf
    for number in reversed(range(DEPTH)):
        again = leaf if number == DEPTH - 1 else f"R{number + 1}"
        fields = [{"name": "a", "type": inner}, {"name": "b", "type": again}]
        inner = {"type": "record", "name": f"R{number}", "fields": fields}
    return inner


def test_next_schema_is_registered_soon_after_ten_schemas_with_values_of_mixed_types(cluster: BrokerProcesses) -> None:
    """The check was once quadratic in the number of values, and used all four threads."""
    assert register(cluster, "before", small_schema("Before")).status == 200
    mixed = [{"a": number} if number % 2 else str(number) for number in range(20_000)]
    with ThreadPoolExecutor(10) as pool:
        responses = list(
            pool.map(lambda n: register(cluster, f"mixed-{n}", {"$schema": DRAFT_4, "enum": mixed}, "JSON"), range(10))
        )
        assert {response.status for response in responses} == {200}
    after = register(cluster, "after", small_schema("After"))
    assert after.status == 200
    assert after.took_s < RESPONSE_S_MAX


def test_schemas_are_rejected_when_parsing_takes_too_long_and_the_next_one_is_registered(
    cluster: BrokerProcesses,
) -> None:
    nested = "".join(f"message N{n} {{ int32 a = 1; }}" for n in range(10_000))
    fields = "".join(f"N{9_999 - n} f{n} = {n + 1};" for n in range(3_500))
    slow = f'syntax = "proto3"; message M {{ {nested} {fields} }}'
    with ThreadPoolExecutor(10) as pool:
        responses = list(pool.map(lambda n: register(cluster, f"slow-{n}", slow, "PROTOBUF"), range(10)))
    for response in responses:
        assert (response.status, response.body["error_code"]) == (422, 42201)
        assert "parsing it takes longer than 2 s: make it smaller or simpler" in response.body["message"]
    after = register(cluster, "after-slow", small_schema("AfterSlow"))
    assert after.status == 200
    assert after.took_s < RESPONSE_S_MAX


def test_broker_memory_does_not_grow_when_each_record_type_uses_the_next_one_twice(cluster: BrokerProcesses) -> None:
    assert register(cluster, "doubling", nested_schema("int")).status == 200
    before = cluster[0].rss_bytes()
    response = register(cluster, "doubling", nested_schema("string"))
    assert (response.status, response.body["error_code"]) == (409, 409)
    assert "was written as int, which cannot be read as string" in response.body["message"]
    assert response.took_s < 10
    assert cluster[0].rss_bytes() - before < 50 << 20
