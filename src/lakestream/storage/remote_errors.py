"""What obstore raises, in our words: one line, no URL (it may carry a signature), and the kind that says what to do.

obstore gives few exception classes and a long text; the status and the store's own error code are read from the text.
Whatever is not recognised counts as the worse case: for a write, that it may have taken effect.
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
"""All that an obstore call raises, by its documentation and by what was seen."""

_NO_BUCKET = re.compile(r"NoSuchBucket|ContainerNotFound|(bucket|container) does not exist")
_WRONG_SETTING = re.compile(
    r"<Code>(AuthorizationHeaderMalformed|PermanentRedirect|InvalidBucketName|InvalidAccessKeyId|XAdminUserNotFound"
    r"|ExpiredToken|InvalidToken|AccountIsDisabled|InvalidAuthenticationInfo|InvalidSecurity|AccessDenied)</Code>"
)
_FOLDER_IN_THE_WAY = re.compile(r"ObjectParentIsFile|ExistingObjectIsDirectory|ObjectExistsAsDirectory")
# Azurite answers a range that starts at the very end with an impossible one ("bytes 10-9/10") instead of 416.
_BEYOND_THE_END = re.compile(r"\b(ParseContentRange|StartTooLarge)\b")
_NO_CREDENTIALS = re.compile(r"token request|169\.254\.169\.254|169\.254\.170\.2")
_SENT_NOTHING = re.compile(r"\bkind: Connect\b")


class Call(NamedTuple):
    """What was tried, for the text and for the kind."""

    store: str
    verb: str
    key: str
    writes: bool = False

    def __str__(self) -> str:
        return f"{self.verb} {self.key} in {self.store}"


def translate(error: BaseException, call: Call) -> LakestreamError:
    text = str(error)
    reason = _reason(text)
    if _NO_CREDENTIALS.search(text):
        # Found nowhere, obstore asked the machine's metadata service last. That may be down for a moment: no setting.
        return Unavailable(f"cannot {call}: no credentials ({reason}). Set them in the environment: docs/storage.md")
    if _NO_BUCKET.search(text):
        return Misconfigured(f"cannot {call}: the bucket does not exist. Create it, or correct the storage URL")
    if isinstance(error, PermissionDeniedError | UnauthenticatedError) or _WRONG_SETTING.search(text):
        return Misconfigured(f"cannot {call}: {reason}. Check the credentials, their rights and this machine's clock")
    if isinstance(error, AlreadyExistsError | PreconditionError):
        return _taken(text, call, reason)
    if isinstance(error, FileNotFoundError):
        # A write has nothing to miss but the bucket.
        return Misconfigured(f"cannot {call}: {reason}") if call.writes else Missing(f"cannot {call}: no such object")
    if isinstance(error, NotSupportedError | UnknownConfigurationKeyError):
        return Misconfigured(f"cannot {call}: {reason}")
    if isinstance(error, InvalidPathError | ValueError):
        return Rejected(f"cannot {call}: {reason}")
    return _no_answer(text, call, reason)


def _taken(text: str, call: Call, reason: str) -> LakestreamError:
    if call.verb != "create" or _FOLDER_IN_THE_WAY.search(text):
        return Rejected(f"cannot {call}: {reason}. A key cannot be the folder of another key")
    if "ConditionalRequestConflict" in text:
        # S3 saw another change of the same key in flight and did nothing: neither taken nor written.
        return Unavailable(f"cannot {call}: another write to the same key was in flight")
    return Conflict(f"cannot {call}: it exists already")


def _no_answer(text: str, call: Call, reason: str) -> LakestreamError:
    status = _status(text)
    if status == 416 or _BEYOND_THE_END.search(text):
        return OutOfRange(f"cannot {call}: the range reaches beyond the object")
    if status is None and _SENT_NOTHING.search(text):
        return Unavailable(f"cannot {call}: no connection ({reason}). Check the endpoint, and that the store is up")
    refused = status is not None and 400 <= status < 500
    if call.writes and not refused:
        return Uncertain(f"cannot tell whether it was done: {call}: {reason}")
    return Unavailable(f"cannot {call}: {reason}")


def _status(text: str) -> int | None:
    found = re.search(r"status code: (\d{3})", text)
    return int(found[1]) if found else None


def _reason(text: str) -> str:
    """The shortest true thing the text holds: the store's code and message, else the cause of the failed request."""
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
