"""Any message is written as kio writes it; any bytes are a request or Rejected; nothing else comes out of the codec."""

import random
import struct

from hypothesis import given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema
from tests.unit.protocol.kafka.samples import (
    FLEXIBLE_REQUESTS,
    MESSAGES,
    PAIRS,
    FullMaker,
    LuckyMaker,
    TagInjector,
    kio_bytes,
    plain,
    request_frames,
)

from lakestream.errors import Rejected
from lakestream.protocol.kafka import codec, tags
from lakestream.protocol.kafka.writer import compile_writer

FRAMES = [frame for maker in (FullMaker(), LuckyMaker(random.Random(11))) for _, _, frame in request_frames(maker)]
HOSTILE = [
    b"\xff",
    b"\x00",
    b"\x7f\xff\xff\xff",
    b"\xff\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",
    b"\xff\xff\xff\xff\x7f",
    b"\x80\x80\x80\x80\x80",
]

luck = st.randoms(use_true_random=False)


def survives(frame: bytes) -> None:
    """A request, or Rejected in one line."""
    complaint = ""
    try:
        request = codec.parse(frame)
        assert codec.head(frame)[0] == (request.key, request.version, request.correlation_id, request.client_id)
    except Rejected as error:
        complaint = str(error)
    assert "\n" not in complaint
    assert "BufferUnderflow" not in complaint, "the guard let kio run over the end"
    assert "Unknown tagged" not in complaint, "an unknown tag came to kio"


@given(message=st.sampled_from(MESSAGES), luck=luck)
@settings(max_examples=300)
def test_any_message_is_written_as_kio_writes_it(message: tuple, luck: random.Random) -> None:  # type: ignore[type-arg]
    key, version, load = message
    entity_type = load(key, version)
    entity = LuckyMaker(luck).make(entity_type)
    assert compile_writer(entity_type)(plain(entity)) == kio_bytes(entity)


@given(pair=st.sampled_from(FLEXIBLE_REQUESTS), luck=luck)
@settings(max_examples=200)
def test_unknown_tags_anywhere_change_nothing(pair: tuple[int, int], luck: random.Random) -> None:
    entity = LuckyMaker(luck).make(load_request_schema(*pair))
    assert tags.strip_unknown(type(entity), TagInjector().body(entity)) == kio_bytes(entity)


@given(
    pair=st.sampled_from(PAIRS), body=st.binary(max_size=200), client=st.binary(max_size=10), size=st.integers(-3, 12)
)
@settings(max_examples=500)
def test_invented_bodies(pair: tuple[int, int], body: bytes, client: bytes, size: int) -> None:
    survives(struct.pack(">hhih", *pair, 1, size) + client + body)


@given(frame=st.binary(max_size=40))
@settings(max_examples=500)
def test_invented_frames(frame: bytes) -> None:
    survives(frame)


@given(frame=st.sampled_from(FRAMES), data=st.data())
@settings(max_examples=1000)
def test_damaged_requests(frame: bytes, data: st.DataObject) -> None:
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
def test_damage_on_the_slow_path(pair: tuple[int, int], data: st.DataObject) -> None:
    """Whatever kio would read without the unknown tags, the walk does not break in another way than Rejected."""
    request_type = load_request_schema(*pair)
    body = bytearray(TagInjector().body(FullMaker().make(request_type)))
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    survives(struct.pack(">hhih", *pair, 1, -1) + b"\0" + body)
    try:
        stripped = tags.strip_unknown(request_type, body)
    except Rejected:
        return
    assert tags.strip_unknown(request_type, stripped) == stripped
