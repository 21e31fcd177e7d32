"""Determines the effect of a failed call to an Oxia node, from its status and text.

Oxia's own gRPC codes (100 to 111) are all UNKNOWN in Python, so the text decides.
"""

from enum import Enum

import grpc

from lakestream.errors import LakestreamError, Misconfigured, Rejected, Unavailable


class Effect(Enum):
    NONE = "no effect: retry, maybe on another node"
    UNKNOWN = "may have taken effect: read before you retry"
    SESSION_GONE = "the session has ended"
    REFUSED = "rejected permanently: do not retry"


class CallFailed(Exception):
    """Internal to this package: callers of the store get errors of `lakestream.errors`."""

    def __init__(self, effect: Effect, text: str) -> None:
        super().__init__(text)
        self.effect = effect


# The node rejected the request before it added it to its log, or the request was not sent.
_NO_EFFECT = (
    "node is not leader for shard",
    "Received message in the wrong state",
    "server not initialized yet",
    "failed to connect to all addresses",
    "connections to all backends failing",
)
_REFUSED_CODES = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)
_REFUSED = ("invalid session timeout", NAMESPACE_MISSING := "namespace not found", "notifications not enabled")


def effect_of(code: grpc.StatusCode, details: str) -> Effect:
    if "session not found" in details:
        return Effect.SESSION_GONE
    if code in _REFUSED_CODES or any(text in details for text in _REFUSED):
        return Effect.REFUSED
    if any(text in details for text in _NO_EFFECT):
        return Effect.NONE
    return Effect.UNKNOWN


def call_failed(address: str, error: grpc.aio.AioRpcError) -> CallFailed:
    code, details = error.code(), error.details() or ""
    return CallFailed(effect_of(code, details), f"{address}: {code.name}: {_single_line(details)}")


def for_caller(where: str, failure: CallFailed) -> LakestreamError:
    """Returns the error for the store's caller, for a failed read or a write without effect."""
    if failure.effect is not Effect.REFUSED:
        return Unavailable(f"{where} does not respond ({failure}): check that its nodes run, then retry")
    if NAMESPACE_MISSING in str(failure):
        return Misconfigured(f"{where}: the namespace does not exist: create it, or use another one in the URL")
    return Rejected(f"{where} rejects the request ({failure})")


def _single_line(details: str) -> str:
    return " ".join(details.split())[:300]
