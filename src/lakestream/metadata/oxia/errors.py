"""What a failed call to an Oxia node means. The decision is made here, once, from the status and its text.

Oxia's own gRPC codes (100 to 111) all arrive as UNKNOWN in Python, so the text decides.
"""

from enum import Enum

import grpc

from lakestream.errors import LakestreamError, Misconfigured, Rejected, Unavailable


class Effect(Enum):
    NONE = "it did nothing: try again, perhaps elsewhere"
    UNKNOWN = "it may have taken effect: look before you try again"
    SESSION_GONE = "the session has ended"
    REFUSED = "it will never be answered otherwise: do not try again"


class CallFailed(Exception):
    """Inside this package only: the store's callers meet `lakestream.errors`."""

    def __init__(self, effect: Effect, text: str) -> None:
        super().__init__(text)
        self.effect = effect


# The node said so before it took the request into its log, or the request never left this machine.
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
    return CallFailed(effect_of(code, details), f"{address}: {code.name}: {_one_line(details)}")


def for_caller(where: str, failure: CallFailed) -> LakestreamError:
    """A failed read, or a write that did nothing, as the store's caller hears it."""
    if failure.effect is not Effect.REFUSED:
        return Unavailable(f"{where} does not answer ({failure}): see that its nodes run, then try again")
    if NAMESPACE_MISSING in str(failure):
        return Misconfigured(f"{where}: Oxia has no such namespace: create it, or name another one in the URL")
    return Rejected(f"{where} refuses the request ({failure})")


def _one_line(details: str) -> str:
    return " ".join(details.split())[:300]
