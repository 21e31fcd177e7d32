"""Translates obstore's exceptions to Lakestream's errors: one line, without URLs, which may contain a signature.

obstore has few exception classes with long texts, so the HTTP status and the store's error code are parsed from the
text. An error that is not recognized is treated as the worst case: a write may have taken effect.
"""

import re
from typing import NamedTuple

from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
    UnknownConfigurationKeyError,
)

from lakestream.errors import (
    Conflict,
    LakestreamError,
    Misconfigured,
    Missing,
    OutOfRange,
    Rejected,
    Unavailable,
    Uncertain,
)

FAILURES = (BaseError, FileNotFoundError, ValueError, OSError)
"""All exceptions that obstore calls raise, by its documentation and by observation."""

_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|(bucket|container) does not exist")
_WRONG_SETTING = re.compile(
    r"<Code>(AuthorizationHeaderMalformed|PermanentRedirect|InvalidBucketName|InvalidAccessKeyId|XAdminUserNotFound"
    r"|ExpiredToken|InvalidToken|AccountIsDisabled|InvalidAuthenticationInfo|InvalidSecurity|AccessDenied)</Code>"
)
_FOLDER_CONFLICT = re.compile(r"ObjectParentIsFile|ExistingObjectIsDirectory|ObjectExistsAsDirectory")
# For a range that starts at the end of the object, Azurite returns an invalid range ("bytes 10-9/10") instead of 416.
_BEYOND_THE_END = re.compile(r"\b(ParseContentRange|StartTooLarge)\b")
_NO_CREDENTIALS = re.compile(r"token request|169\.254\.169\.254|169\.254\.170\.2")
_NOT_SENT = re.compile(r"\bkind: Connect\b")


class StoreCall(NamedTuple):
    """The failed operation, for the error's text and class."""

    store: str
    verb: str
    key: str
    writes: bool = False

    def __str__(self) -> str:
        return f"{self.verb} {self.key} in {self.store}"


def translate(error: BaseException, call: StoreCall) -> LakestreamError:
    text = str(error)
    reason = _reason(text)
    if _NO_CREDENTIALS.search(text):
        # obstore tried the machine's metadata service last. It may be down temporarily, so this is not Misconfigured.
        return Unavailable(f"cannot {call}: no credentials ({reason}). Set them in the environment: docs/storage.md")
    if _NO_BUCKET.search(text):
        return Misconfigured(f"cannot {call}: the bucket does not exist. Create it, or correct the storage URL")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _WRONG_SETTING.search(text):
        return Misconfigured(f"cannot {call}: {reason}. Check the credentials, their rights and this machine's clock")
    if isinstance(error, AlreadyExistsError | PreconditionError):
        return _exists(text, call, reason)
    if isinstance(error, FileNotFoundError):
        # For a write, only the bucket can be missing.
        return Misconfigured(f"cannot {call}: {reason}") if call.writes else Missing(f"cannot {call}: no such object")
    if isinstance(error, NotSupportedError | UnknownConfigurationKeyError):
        return Misconfigured(f"cannot {call}: {reason}")
    if isinstance(error, InvalidPathError | ValueError):
        return Rejected(f"cannot {call}: {reason}")
    return _other_failure(text, call, reason)


def _exists(text: str, call: StoreCall, reason: str) -> LakestreamError:
    if call.verb != "create" or _FOLDER_CONFLICT.search(text):
        return Rejected(f"cannot {call}: {reason}. A key cannot be the folder of another key")
    if "ConditionalRequestConflict" in text:
        # S3 detected a concurrent write to the same key and wrote nothing: the key may still be free.
        return Unavailable(f"cannot {call}: another write to the same key was in progress")
    return Conflict(f"cannot {call}: it already exists")


def _other_failure(text: str, call: StoreCall, reason: str) -> LakestreamError:
    status = _status(text)
    if status == 416 or _BEYOND_THE_END.search(text):
        return OutOfRange(f"cannot {call}: the range ends beyond the object")
    if status is None and _NOT_SENT.search(text):
        return Unavailable(f"cannot {call}: no connection ({reason}). Check the endpoint, and that the store is up")
    rejected = status is not None and 400 <= status < 500
    if call.writes and not rejected:
        return Uncertain(f"cannot confirm {call}: it may have taken effect: {reason}")
    return Unavailable(f"cannot {call}: {reason}")


def _status(text: str) -> int | None:
    match = re.search(r"status code: (\d{3})", text)
    return int(match[1]) if match else None


def _reason(text: str) -> str:
    """Returns a short reason: the store's error code and message, or else the cause of the failed request."""
    code, message = re.search(r"<Code>(.*?)</Code>", text), re.search(r"<Message>([^\n<]*)", text)
    if code:
        return f"{code[1]}: {message[1].strip().rstrip('.')}" if message else code[1]
    if status := re.search(r"status code: (\d{3} [A-Za-z ]*[a-z])", text):
        return status[1]
    if cause := re.search(r'message: "([^"]+)"', text) or re.search(
        r"kind: (Timeout|Connect|Interrupted|Decode)", text
    ):
        return cause[1].lower()
    if "error sending request" in text:
        return "the connection broke"
    head = text.split("\n\nDebug source", 1)[0]
    return " ".join(re.sub(r"https?://\S+", "the store", head).split())[:300]
