"""The effect of a failed call is derived from its status and text."""

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
def test_effect_of_a_failed_call(code: grpc.StatusCode, details: str, effect: Effect) -> None:
    assert effect_of(code, details) is effect


def test_error_names_the_store_the_problem_and_the_action() -> None:
    unreachable = for_caller(
        "metadata store oxia://a:1/x", CallFailed(Effect.NONE, "a:1: UNAVAILABLE: connection refused")
    )
    assert type(unreachable) is Unavailable
    assert "oxia://a:1/x" in str(unreachable)
    assert "check that its nodes run" in str(unreachable)
    no_namespace = for_caller(
        "metadata store oxia://a:1/x", CallFailed(Effect.REFUSED, "a:1: oxia: namespace not found")
    )
    assert type(no_namespace) is Misconfigured
    assert "the namespace does not exist" in str(no_namespace)
    assert type(for_caller("here", CallFailed(Effect.REFUSED, "no"))) is Rejected
