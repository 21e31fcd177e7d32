"""What a failed call means: the only place where a status and its text are judged."""

import grpc
import pytest

from lakestream.errors import Misconfigured, Rejected, Unavailable
from lakestream.metadata.oxia.errors import CallFailed, Effect, effect_of, for_caller

CODES = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "details", "effect"),
    [
        (CODES.UNKNOWN, "node is not leader for shard 3", Effect.NONE),
        (CODES.UNKNOWN, "Received message in the wrong state. In FENCED, should be LEADER.", Effect.NONE),
        (CODES.UNKNOWN, "oxia: server not initialized yet", Effect.NONE),
        (CODES.UNAVAILABLE, "failed to connect to all addresses; last error: connection refused", Effect.NONE),
        (CODES.UNAVAILABLE, "Stream removed (Socket closed)", Effect.UNKNOWN),
        (CODES.UNAVAILABLE, "recvmsg:Connection reset by peer", Effect.UNKNOWN),
        (CODES.DEADLINE_EXCEEDED, "Deadline Exceeded", Effect.UNKNOWN),
        (CODES.UNKNOWN, "oxia: resource is already closed", Effect.UNKNOWN),
        (CODES.UNKNOWN, "oxia: failed to append to wal: 4198 can not immediately follow 4196", Effect.UNKNOWN),
        (CODES.UNKNOWN, "oxia: session not found", Effect.SESSION_GONE),
        (CODES.UNKNOWN, "oxia: invalid session timeout", Effect.REFUSED),
        (CODES.UNKNOWN, "oxia: namespace not found", Effect.REFUSED),
        (CODES.INVALID_ARGUMENT, "shard id is required", Effect.REFUSED),
    ],
)
def test_effect(code: grpc.StatusCode, details: str, effect: Effect) -> None:
    assert effect_of(code, details) is effect


def test_the_caller_hears_what_where_and_what_to_do() -> None:
    gone = for_caller("metadata store oxia://a:1/x", CallFailed(Effect.NONE, "a:1: UNAVAILABLE: connection refused"))
    assert type(gone) is Unavailable
    assert "oxia://a:1/x" in str(gone)
    assert "see that its nodes run" in str(gone)
    nameless = for_caller("metadata store oxia://a:1/x", CallFailed(Effect.REFUSED, "a:1: oxia: namespace not found"))
    assert type(nameless) is Misconfigured
    assert "no such namespace" in str(nameless)
    assert type(for_caller("here", CallFailed(Effect.REFUSED, "no"))) is Rejected
