"""Validates JSON values against their JSON Schema, in a child process of a broker.

    validator_process.py  ──  length · ValidationRequest  ──▶  this  ──  length · ValidationResponse  ──▶

Clients supply schemas and values. With some schemas a small value takes practically forever (each part refers to the
next one twice) or a large one does (a long list, each item one of many lists), and the validator library cannot be
interrupted. In a child process this does not block the broker: the system ends a process that uses too much CPU time.
If the broker ends, the process reads the end of its input and exits.

Patterns are matched in linear time if possible, otherwise with a limit. References are never fetched. `format` is not
asserted: in most drafts it is an annotation.
"""

from collections import OrderedDict
from typing import Any, Final

import jsonschema_rs
import msgspec

from lakestream.aio.worker_loop import serve
from lakestream.data.typed.json_schema.error_location import located
from lakestream.data.typed.json_schema.messages import (
    SCHEMAS_MAX,
    ValidationRequest,
    ValidationResponse,
    ValidatorSchema,
)

TEXT_MAX: Final = 60
REASON_MAX: Final = 400
TOO_LARGE: Final = "validating values with it takes more memory than its limit"

_MEMORY_MAX: Final = 4 << 30
_NOWHERE: Final = "json-schema:///"
"""Prefix that the library puts before relative references if a schema has no URI."""
_VALUE: Final = "\0"
"""Placeholder of the value in messages; replaced with the shortened value."""
_PATTERNS: Final = {"backtrack_limit": 100_000, "size_limit": 1 << 20, "dfa_size_limit": 1 << 20}
_DIALECTS: Final = {
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
}


class JsonSchemaValidator:
    """Validator of one schema."""

    def __init__(self, schema: ValidatorSchema) -> None:
        """ValueError: the schema cannot be used, with the reason."""
        self._references = dict(schema.references)
        self._missing = ""
        try:
            self._validator = _DIALECTS[schema.dialect.rstrip("#")](
                msgspec.json.decode(schema.text),
                validate_formats=False,
                retriever=self._reference,
                pattern_options=jsonschema_rs.FancyRegexOptions(**_PATTERNS),
                mask=_VALUE,
            )
        except jsonschema_rs.ValidationError as error:
            if self._missing:
                what = f"$ref '{self._missing}' leads to no schema"
                raise ValueError(f"{what}: it is neither in the schema nor one of its references") from None
            raise ValueError(_description(error)) from None

    def reason(self, text: bytes) -> str | None:
        """Returns the first error of a value, or None if the value is valid."""
        try:
            self._validator.validate(msgspec.json.decode(text))
        except jsonschema_rs.ValidationError as error:
            return _description(error)
        except (ValueError, RecursionError) as error:  # invalid JSON, or nested too deeply
            return located(f"cannot be parsed: {error}", text)
        return None

    def _reference(self, uri: str) -> Any:
        """Returns a reference by its name, also if an enclosing `$id` makes another URI of the name."""
        bare = uri.partition("#")[0]
        for name in sorted(self._references, key=len, reverse=True):
            if bare == name or bare.endswith(f"/{name}"):
                return msgspec.json.decode(self._references[name])
        self._missing = uri.removeprefix(_NOWHERE)
        raise LookupError(uri)


def _description(error: jsonschema_rs.ValidationError) -> str:
    """Returns the place as a JSON pointer, and the violated rule."""
    nearest = _nearest(error)
    message = error.message.replace(_VALUE, _shortened(error.instance))
    where = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in error.instance_path)
    reason = f"{where}: {message}" if where else message
    return f"{reason[:REASON_MAX]}{f' ({_description(nearest)})' if nearest else ''}"


def _nearest(error: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError | None:
    """Returns the error of the alternative (anyOf, oneOf) that the value matches best, if that error is deeper."""
    if not isinstance(
        error.kind, jsonschema_rs.ValidationErrorKind.OneOfNotValid | jsonschema_rs.ValidationErrorKind.AnyOf
    ):
        return None
    first = [branch[0] for branch in error.kind.context if branch]
    deepest = max(first, key=lambda one: len(one.instance_path), default=None)
    return deepest if deepest is not None and len(deepest.instance_path) > len(error.instance_path) else None


def _shortened(value: Any) -> str:
    match value:
        case dict():
            return "the object"
        case list():
            return "the array"
        case _:
            text = msgspec.json.encode(value).decode()
            return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"


class ValidatorCache:
    """Validators of this process, by the number of their schema."""

    def __init__(self) -> None:
        self._validators: OrderedDict[int, JsonSchemaValidator | str] = OrderedDict()

    def validate(self, request: ValidationRequest) -> ValidationResponse:
        if request.schema is not None:
            self._validators[request.number] = _validator(request.schema)
            if len(self._validators) > SCHEMAS_MAX:
                self._validators.popitem(last=False)
        validator = self._validators[request.number]
        if isinstance(validator, str):
            return ValidationResponse([], validator)
        reasons = ((place, validator.reason(value)) for place, value in enumerate(request.values))
        return ValidationResponse([(place, reason) for place, reason in reasons if reason is not None])


def _validator(schema: ValidatorSchema) -> JsonSchemaValidator | str:
    try:
        return JsonSchemaValidator(schema)
    except (ValueError, RecursionError) as error:
        return str(error)
    except MemoryError:
        return TOO_LARGE


class RequestHandler:
    """Handler of encoded requests."""

    def __init__(self) -> None:
        self._validators = ValidatorCache()
        self._decoder = msgspec.msgpack.Decoder(ValidationRequest)

    def respond(self, request: bytes) -> bytes:
        try:
            response = self._validators.validate(self._decoder.decode(request))
        except MemoryError:
            response = ValidationResponse([], TOO_LARGE)
        except Exception as error:  # a response, because a retry with the same values would fail, too
            response = ValidationResponse([], f"{type(error).__name__}: {error}")
        return msgspec.msgpack.encode(response)


if __name__ == "__main__":
    serve(RequestHandler().respond, _MEMORY_MAX)
