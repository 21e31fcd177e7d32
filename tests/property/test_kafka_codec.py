"""Any message is encoded as by kio; any bytes are parsed to a request or Rejected."""

import random
import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from tests.harness.kafka.message_samples import (
    FLEXIBLE_REQUESTS,
    MESSAGES,
    PAIRS,
    FullMaker,
    RandomMaker,
    TagInjector,
    kio_bytes,
    plain,
    request_frames,
)

from lakestream.errors import Rejected
from lakestream.protocol.kafka.wire import codec, tagged_fields
from lakestream.protocol.kafka.wire.message_writer import compile_writer

FRAMES = [frame for maker in (FullMaker(), RandomMaker(random.Random(11))) for _, _, frame in request_frames(maker)]
HOSTILE = [
    b"\xff",
    b"\x00",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x80",
]

rng = st.randoms(use_true_random=False)


def survives(frame: bytes) -> None:
    """Asserts that the frame is a request, or Rejected with one line."""
    reason = ""
    try:
        request = codec.parse(frame)
        assert codec.head(frame)[0] == (request.key, request.version, request.correlation_id, request.client_id)
    except Rejected as error:
        reason = str(error)
    assert "\n" not in reason
    assert "BufferUnderflow" not in reason, "the length check let kio read beyond the end"
    assert "Unknown tagged" not in reason, "kio got an unknown tag"


@given(message=st.sampled_from(MESSAGES), rng=rng)
@settings(max_examples=300)
def test_any_message_is_written_as_kio_writes_it(message: tuple, rng: random.Random) -> None:  # type: ignore[type-arg]
    key, version, load = message
    entity_type = load(key, version)
    entity = RandomMaker(rng).make(entity_type)
    assert compile_writer(entity_type)(plain(entity)) == kio_bytes(entity)


@given(pair=st.sampled_from(FLEXIBLE_REQUESTS), rng=rng)
@settings(max_examples=200)
def test_unknown_tags_anywhere_change_nothing(pair: tuple[int, int], rng: random.Random) -> None:
    entity = RandomMaker(rng).make(load_request_schema(*pair))
    assert tagged_fields.strip_unknown(type(entity), TagInjector().body(entity)) == kio_bytes(entity)


@given(
    pair=st.sampled_from(PAIRS), body=st.binary(max_size=200), client=st.binary(max_size=10), size=st.integers(-3, 12)
)
@settings(max_examples=500)
def test_random_bodies_are_parsed_or_rejected(pair: tuple[int, int], body: bytes, client: bytes, size: int) -> None:
    survives(struct.pack(">hhih", *pair, 1, size) + client + body)


@given(frame=st.binary(max_size=40))
@settings(max_examples=500)
def test_random_frames_are_parsed_or_rejected(frame: bytes) -> None:
    survives(frame)


@given(frame=st.sampled_from(FRAMES), data=st.data())
@settings(max_examples=1000)
def test_damaged_requests_are_parsed_or_rejected(frame: bytes, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(4, len(frame)))
        match data.draw(st.sampled_from(["cut", "flip", "insert", "overwrite", "drop"])):
            case "cut":
                frame = frame[:at]
            case "flip" if at < len(frame):
                frame = frame[:at] + bytes((frame[at] ^ 1 << data.draw(st.integers(0, 7)),)) + frame[at + 1 :]
            case "insert":
                frame = frame[:at] + data.draw(st.sampled_from(HOSTILE)) + frame[at:]
            case "overwrite":
                hostile = data.draw(st.sampled_from(HOSTILE))
                frame = frame[:at] + hostile + frame[at + len(hostile) :]
            case _:
                frame = frame[:at] + frame[at + data.draw(st.integers(1, 5)) :]
    survives(frame)


@given(pair=st.sampled_from(FLEXIBLE_REQUESTS), data=st.data())
@settings(max_examples=300)
def test_damaged_requests_with_unknown_tags_are_stripped_or_rejected(
    pair: tuple[int, int], data: st.DataObject
) -> None:
    """The removal of unknown tagged fields raises nothing but Rejected."""
    request_type = load_request_schema(*pair)
    body = bytearray(TagInjector().body(FullMaker().make(request_type)))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    survives(struct.pack(">hhih", *pair, 1, -1) + b"\0" + body)
    try:
        stripped = tagged_fields.strip_unknown(request_type, body)
    except Rejected:
        return
    assert tagged_fields.strip_unknown(request_type, stripped) == stripped
