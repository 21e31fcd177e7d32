"""Tests of the codec: comparison with kio for every message and version, and malformed requests."""

import contextlib
import random
import struct
import time
from collections.abc import Iterator
from dataclasses import Field, fields, is_dataclass
from typing import Any
from uuid import UUID

import pytest
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader
from kio.serial._introspect import classify_field
from tests.harness.kafka.message_samples import (
    FLEXIBLE_REQUESTS,
    MESSAGES,
    PAIRS,
    FullMaker,
    Maker,
    RandomMaker,
    TagInjector,
    kio_bytes,
    plain,
    request_frames,
    varint,
)

from lakestream.errors import Rejected
from lakestream.protocol.kafka.wire import codec, tagged_fields
from lakestream.protocol.kafka.wire.codec import Header, UnsupportedVersion
from lakestream.protocol.kafka.wire.length_check import compile_length_check
from lakestream.protocol.kafka.wire.message_writer import compile_writer
from lakestream.protocol.kafka.wire.primitives import uvarint

METADATA = 3
API_VERSIONS = 18


# ── writer


@pytest.mark.parametrize("maker", [Maker(), FullMaker(), *(RandomMaker(random.Random(seed)) for seed in range(6))])
def test_written_message_equals_that_of_kio(maker: Maker) -> None:
    for key, version, load in MESSAGES:
        entity_type = load(key, version)
        entity = maker.make(entity_type)
        assert compile_writer(entity_type)(plain(entity)) == kio_bytes(entity), entity


def test_default_is_written_when_a_field_is_missing() -> None:
    for key, version, load in MESSAGES:
        entity_type = load(key, version)
        assert compile_writer(entity_type)({}) == kio_bytes(Maker().make(entity_type)), entity_type


def test_field_is_ignored_when_the_version_does_not_have_it() -> None:
    body = {"topics": [{"name": "t", "nonsense": 1}], "topic_id": UUID(int=1)}
    assert codec.respond(METADATA, 0, 1, body) == codec.respond(METADATA, 0, 1, {"topics": [{"name": "t"}]})


def test_negative_time_is_written_unchanged() -> None:
    """kio cannot encode -1 here, which means "not started" in DescribeTransactions."""
    body = {"transaction_states": [{"transactional_id": "t", "transaction_start_time": -1}]}
    assert struct.pack(">q", -1) in codec.respond(65, 0, 1, body)


def test_message_is_parsed_back_when_counts_and_lengths_are_large() -> None:
    topics = [{"name": f"topic-{number}", "partitions": [{"isr_nodes": list(range(200))}]} for number in range(300)]
    frame = codec.respond(METADATA, 12, 1, {"topics": topics, "cluster_id": "c" * 20_000})
    body = codec.parse_response(METADATA, 12, frame[4:]).body
    assert body.cluster_id == "c" * 20_000
    assert [topic.name for topic in body.topics] == [topic["name"] for topic in topics]
    assert body.topics[299].partitions[0].isr_nodes == tuple(range(200))


@pytest.mark.parametrize("version", [5, 12])
@pytest.mark.parametrize("count", [0, 16, 17, 18, 126, 127, 128, 20_000])
def test_list_of_numbers_is_parsed_back_for_any_length(version: int, count: int) -> None:
    nodes = tuple(range(count))
    frame = codec.respond(METADATA, version, 1, {"topics": [{"name": "t", "partitions": [{"isr_nodes": nodes}]}]})
    assert codec.parse_response(METADATA, version, frame[4:]).body.topics[0].partitions[0].isr_nodes == nodes


@pytest.mark.parametrize("view", [bytes, bytearray, memoryview])
def test_records_are_written_from_any_buffer(view: Any) -> None:
    body = {"responses": [{"partitions": [{"records": view(b"batch")}]}]}
    read = codec.parse_response(1, 12, codec.respond(1, 12, 1, body)[4:]).body
    assert read.responses[0].partitions[0].records == b"batch"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"topics": [{"name": 3}]}, "topics[0].name must be a string, not 3 (int)"),
        ({"topics": [{}, {"partitions": [{"leader_id": 2**31}]}]}, "topics[1].partitions[0].leader_id must be a whole"),
        ({"topics": [{"partitions": [{"isr_nodes": [1, "x"]}]}]}, "isr_nodes[1] must be a whole number"),
        ({"topics": 3}, "topics must be a list, not 3 (int)"),
        ({"topics": None}, "topics must not be null"),
        ({"topics": [{"is_internal": 2}]}, "topics[0].is_internal must be true or false"),
        ({"topics": [{"topic_id": "abc"}]}, "topics[0].topic_id must be a UUID"),
        ({"topics": ["t"]}, "topics[0] must be a mapping"),
        ({"throttle_time": 0.5}, "throttle_time must be a whole number"),
        ({"cluster_id": "\ud800"}, "cluster_id must be a string that can be encoded in UTF-8"),
    ],
)
def test_error_contains_the_path_of_the_invalid_field(body: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=r"^MetadataResponse v12: ") as caught:
        codec.respond(METADATA, 12, 1, body)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("key", "version", "body", "reason"),
    [
        (16, 0, {"groups": [{"group_id": "g" * 40_000}]}, "groups[0].group_id must be a string of at most 32767"),
        (17, 0, {"mechanisms": "PLAIN"}, "mechanisms must be a list"),
        (36, 0, {"auth_bytes": "secret"}, "auth_bytes must be bytes"),
        (1, 12, {"responses": [{"partitions": [{"current_leader": 5}]}]}, "current_leader must be a mapping"),
        (18, 3, {"supported_features": [{"min_version": 2**15}]}, "supported_features[0].min_version must be a whole"),
    ],
)
def test_error_contains_the_path_of_fields_of_older_versions_and_tagged_fields(
    key: int, version: int, body: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=r"^\w+ v\d+: ") as caught:
        codec.respond(key, version, 1, body)
    assert reason in str(caught.value)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 16_383, 16_384, 2**31 - 1, 2**32 - 1])
def test_uvarint_equals_the_reference_encoding(number: int) -> None:
    assert uvarint(number) == varint(number)


# ── requests


@pytest.mark.parametrize("maker", [Maker(), FullMaker(), RandomMaker(random.Random(1))])
def test_parsed_request_equals_that_of_kio(maker: Maker) -> None:
    for key, version, frame in request_frames(maker):
        expected = entity_reader(load_request_schema(key, version))(frame, len(frame) - _body_size(key, version, frame))
        request = codec.parse(frame)
        assert (request.key, request.version, request.correlation_id, request.client_id) == (key, version, 99, "me")
        assert plain(request.body) == plain(expected[0])
        assert codec.head(frame)[0] == Header(key, version, 99, "me")


def _body_size(key: int, version: int, frame: bytes) -> int:
    return len(frame) - 12 - load_request_schema(key, version).__flexible__


def test_messages_are_unchanged_after_a_round_trip() -> None:
    maker = RandomMaker(random.Random(5))
    for key, version in PAIRS:
        request_body = maker.make(load_request_schema(key, version))
        frame = codec.write_request(key, version, -7, None, plain(request_body))
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        request = codec.parse(frame[4:])
        assert (request.correlation_id, request.client_id) == (-7, None)
        assert plain(request.body) == plain(request_body)
        response_body = maker.make(load_response_schema(key, version))
        frame = codec.respond(key, version, -7, plain(response_body))
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        response = codec.parse_response(key, version, frame[4:])
        assert response.correlation_id == -7
        assert plain(response.body) == plain(response_body)


def test_headers_equal_those_of_kio() -> None:
    for key, version in PAIRS:
        response_type = load_response_schema(key, version)
        header = kio_bytes(response_type.__header_schema__(correlation_id=5))  # type: ignore[arg-type]
        assert codec.respond(key, version, 5, {})[4:].startswith(header)
        request_type = load_request_schema(key, version)
        head: Any = request_type.__header_schema__
        header = kio_bytes(
            head(request_api_key=key, request_api_version=version, correlation_id=5, client_id="client-1")
        )
        assert codec.write_request(key, version, 5, "client-1", {})[4:].startswith(header)


def test_header_has_no_tags_when_the_response_is_api_versions() -> None:
    assert codec.respond(API_VERSIONS, 3, 9, {"error_code": 35})[4:10] == struct.pack(">ih", 9, 35)


def test_get_returns_the_default_when_the_version_does_not_have_the_field() -> None:
    old, new = (codec.parse(codec.write_request(METADATA, version, 1, None, {})[4:]) for version in (1, 12))
    assert old.get("allow_auto_topic_creation", "default") == "default"
    assert new.get("allow_auto_topic_creation", "default") is True
    assert "metadata (key 3) v12" in repr(new)


@pytest.mark.parametrize("view", [bytes, bytearray, memoryview, lambda frame: memoryview(bytearray(frame))])
def test_bytes_after_the_end_are_ignored_for_any_buffer(view: Any) -> None:
    frame = codec.write_request(METADATA, 12, 1, "c", {"topics": None})[4:]
    assert codec.parse(view(frame + b"\0\0\0")).body.topics is None
    assert codec.head(view(frame))[0].client_id == "c"


def test_parsed_records_are_views_of_the_frame() -> None:
    body = {"topic_data": [{"name": "t", "partition_data": [{"records": b"batch"}]}]}
    frame = codec.write_request(0, 9, 1, None, body)[4:]
    records = codec.parse(frame).body.topics[0].partitions[0].records
    assert records.obj is frame
    assert records == b"batch"


@pytest.mark.parametrize(
    ("key", "version"), [(METADATA, 99), (METADATA, -1), (API_VERSIONS, 5), (0, 2), (7, 1), (999, 0), (-1, 0)]
)
def test_unsupported_version_is_raised_when_the_request_has_no_schema(key: int, version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=rf"\(key {key}\) v{version}") as caught:
        codec.parse(struct.pack(">hhih", key, version, 42, -1) + b"any body")
    assert (caught.value.key, caught.value.version, caught.value.correlation_id) == (key, version, 42)


@pytest.mark.parametrize("rest", [b"", b"\0", b"\0\0\0\5"])
def test_controlled_shutdown_has_no_client_id(rest: bytes) -> None:
    frame = struct.pack(">hhi", 7, 0, 42) + rest
    assert codec.head(frame)[0] == Header(7, 0, 42, None)
    with pytest.raises(UnsupportedVersion):
        codec.parse(frame)


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"", "0 bytes: too short for a header"),
        (b"\0\3\0\x0c\0\0\0", "7 bytes: too short for a header"),
        (struct.pack(">hhi", 3, 12, 1), "cut off in its header"),
        (struct.pack(">hhih", 3, 12, 1, 5) + b"abc", "cut off in its client id"),
        (struct.pack(">hhih", 3, 12, 1, 2) + b"\xff\xfe\0\0\0\0\0", "client id that is not UTF-8"),
        (
            struct.pack(">hhih", 3, 12, 1, -1),
            "metadata (key 3) v12 cannot be parsed: it ends inside a number at byte 10",
        ),
        (struct.pack(">hhih", 3, 12, 1, -1) + b"\0\2", "metadata (key 3) v12 cannot be parsed: it ends too early"),
        (struct.pack(">hhih", 3, 12, 1, -1) + b"\xff" * 9, "a number at byte 10 is longer than 5 bytes"),
    ],
)
def test_request_is_rejected_with_one_line_when_it_is_malformed(frame: bytes, reason: str) -> None:
    with pytest.raises(Rejected) as caught:
        codec.parse(frame)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, UnsupportedVersion)


def test_response_is_rejected_when_it_is_malformed() -> None:
    with pytest.raises(Rejected, match="too short"):
        codec.parse_response(METADATA, 12, b"\0")
    with pytest.raises(Rejected, match="response metadata"):
        codec.parse_response(METADATA, 12, b"\0\0\0\1\0\0")


def test_parsing_takes_less_than_a_millisecond_when_counts_are_false() -> None:
    """Sets a huge count or length at positions of every request. kio alone would abort (length_check.py)."""
    started = time.process_time()
    tried = 0
    for key, version, frame in request_frames(FullMaker()):
        start = 12 + load_request_schema(key, version).__flexible__
        for at in range(start, len(frame), 3):
            for count in (b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\xff\xff\xff\xff\x7f"):
                tried += 1
                with contextlib.suppress(Rejected):  # not raised if the bytes are part of a string
                    codec.parse(frame[:at] + count + frame[at + len(count) :])
    assert tried > 10_000
    assert (time.process_time() - started) / tried < 0.001


def test_warm_loads_all_given_schemas() -> None:
    codec.warm(PAIRS)
    assert len(codec._requests) == len(codec._responses) == len(PAIRS)


def test_length_check_returns_the_end_of_the_body() -> None:
    for maker in (Maker(), FullMaker(), *(RandomMaker(random.Random(seed)) for seed in range(3))):
        for key, version, load in MESSAGES:
            entity_type = load(key, version)
            body = kio_bytes(maker.make(entity_type))
            end = compile_length_check(entity_type)(b"before" + body + b"after", 6)
            assert end in (None, 6 + len(body))
            assert end is not None or _has_tags(maker, entity_type)


def _has_tags(maker: Maker, entity_type: type[Any]) -> bool:
    return type(maker) is not Maker and any("tag" in field.metadata for field in _all_fields(entity_type))


def _all_fields(entity_type: type[Any]) -> Iterator[Field[Any]]:
    for field in fields(entity_type):
        yield field
        inner = classify_field(field).type_
        if is_dataclass(inner):
            yield from _all_fields(inner)


@pytest.mark.parametrize(
    ("key", "version", "body", "reason"),
    [
        (3, 1, b"\xff\xff\xff\xfe", "a length of -2"),
        (8, 2, b"\xff\xfe", "a length of -2"),
        (75, 0, b"\x01\x00\x00\x00\x05\x02", "a length of 2"),
    ],
)
def test_request_is_rejected_when_its_bytes_are_ambiguous(key: int, version: int, body: bytes, reason: str) -> None:
    request_type = load_request_schema(key, version)
    frame = struct.pack(">hhih", key, version, 1, -1) + (b"\0" if request_type.__flexible__ else b"") + body + bytes(50)
    with pytest.raises(Rejected, match=reason):
        codec.parse(frame)


# ── unknown tagged fields


def test_unknown_tags_are_stripped_from_every_section() -> None:
    for maker in (Maker(), FullMaker(), RandomMaker(random.Random(2))):
        for key, version in FLEXIBLE_REQUESTS:
            entity = maker.make(load_request_schema(key, version))
            body = kio_bytes(entity)
            all_sections = TagInjector()
            injected = all_sections.body(entity)
            assert injected != body
            assert tagged_fields.strip_unknown(type(entity), injected) == body
            for section in range(min(all_sections.sections, 30)):
                assert tagged_fields.strip_unknown(type(entity), TagInjector(section).body(entity)) == body


def test_body_is_unchanged_when_it_has_no_unknown_tags() -> None:
    maker = RandomMaker(random.Random(3))
    for key, version in FLEXIBLE_REQUESTS:
        entity = maker.make(load_request_schema(key, version))
        assert tagged_fields.strip_unknown(type(entity), kio_bytes(entity) + b"after") == kio_bytes(entity)


def test_unknown_tags_in_header_and_body_are_skipped_by_parse() -> None:
    for key, version in FLEXIBLE_REQUESTS:
        entity = FullMaker().make(load_request_schema(key, version))
        head = struct.pack(">hhih", key, version, 3, -1) + b"\x02\x00\x03abc\xa0\x1f\x00"
        request = codec.parse(head + TagInjector().body(entity))
        assert plain(request.body) == plain(entity)


def test_unknown_tags_in_responses_are_skipped() -> None:
    entity = FullMaker().make(load_response_schema(METADATA, 12))
    frame = struct.pack(">i", 4) + b"\x01\x09\x01z" + TagInjector().body(entity)
    assert plain(codec.parse_response(METADATA, 12, frame).body) == plain(entity)


def test_body_with_unknown_tags_is_rejected_when_it_is_cut_off() -> None:
    for key, version in FLEXIBLE_REQUESTS[::5]:
        entity = FullMaker().make(load_request_schema(key, version))
        injected = TagInjector().body(entity)
        for end in range(0, len(injected), 1 + len(injected) // 40):
            with pytest.raises(Rejected):
                tagged_fields.strip_unknown(type(entity), injected[:end])


def test_body_is_rejected_when_a_tagged_field_is_shorter_than_its_size() -> None:
    fetch = load_request_schema(1, 12)
    body = kio_bytes(Maker().make(fetch))
    assert body.endswith(b"\0")
    with pytest.raises(Rejected, match="cluster_id is 4 bytes long but ends after 2"):
        tagged_fields.strip_unknown(fetch, body[:-1] + b"\x01\x00\x04\x02xyz")


def test_body_is_rejected_when_the_marker_of_a_nullable_struct_is_invalid() -> None:
    describe_topic_partitions = load_request_schema(75, 0)
    no_topics, limit, tags_at_the_end = b"\x01", bytes(4), b"\x01\x63\x00"
    for marker, is_valid in ((b"\xff", True), (b"\xfe", False), (b"\x00", False), (b"\x02", False)):
        body = no_topics + limit + marker + tags_at_the_end
        with contextlib.nullcontext() if is_valid else pytest.raises(Rejected, match="marker"):
            assert tagged_fields.strip_unknown(describe_topic_partitions, body) == body[:-3] + b"\0"


@pytest.mark.parametrize(
    ("version", "body"),
    [
        (3, b"\xff\xff\xff\xff" + bytes(4)),  # topic names: null
        (4, b"\x00" + bytes(4) + b"\x00"),
        (4, b"\x00" + bytes(4) + b"\x01\x63\x00"),  # and with a tagged field
    ],
)
def test_null_is_rejected_for_a_list_that_is_not_nullable(version: int, body: bytes) -> None:
    delete_topics = 20
    header = struct.pack(">hhih", delete_topics, version, 1, -1) + (b"\0" if version >= 4 else b"")
    with pytest.raises(Rejected, match="instead of a list"):
        codec.parse(header + body)


def test_request_is_rejected_when_it_has_too_many_structs_with_unknown_tags() -> None:
    count = tagged_fields.STRUCTS_MAX
    body = varint(count + 1) + b"\x01\x00" * count + b"\x01\x00\x00\x01\x63\x00"
    frame = struct.pack(">hhih", METADATA, 9, 1, -1) + b"\0" + body
    with pytest.raises(Rejected, match="more than"):
        codec.parse(frame)


# ── speed, the reason for a separate writer


def test_writer_is_faster_than_kio() -> None:
    topic = {"name": "topic", "topic_id": UUID(int=9), "partitions": []}
    partition = {"partition_index": 0, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]}
    body = {"topics": [{**topic, "partitions": [partition] * 12}] * 10, "brokers": [{"host": "h", "port": 1}] * 3}
    entity = codec.parse_response(METADATA, 12, codec.respond(METADATA, 12, 1, body)[4:]).body
    write = compile_writer(load_response_schema(METADATA, 12))
    assert write(body) == kio_bytes(entity)
    assert _best(lambda: write(body)) < _best(lambda: kio_bytes(entity))


def _best(action: Any) -> float:
    times = []
    for _ in range(20):
        started = time.perf_counter()
        action()
        times.append(time.perf_counter() - started)
    return min(times)
