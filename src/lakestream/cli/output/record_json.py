"""Records as lines of JSON: `consume --json` prints them, and `produce --json` reads them, byte for byte.

    {"partition": 0, "offset": 7, "timestamp": 1700000000000, "key": "k", "value": "v", "headers": [["name", "x"]]}

Bytes that are not UTF-8 are `{"base64": "…"}`. For `produce` every key is optional, headers may also be an object, and
a value that is neither text nor null is sent as its JSON text.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from lakestream.errors import Rejected

Bytes = bytes | None
Header = tuple[str, Bytes]
KEYS = frozenset({"topic", "partition", "offset", "timestamp", "key", "value", "headers"})


class Record(NamedTuple):
    key: Bytes
    value: Bytes
    headers: Sequence[Header] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def to_json(record: Record, offset: int, key: Any = None, value: Any = None) -> str:
    """Returns the line of a record. `key` and `value`: decoded ones, to print instead of the bytes."""
    return json.dumps(
        {
            "partition": record.partition,
            "offset": offset,
            "timestamp": record.timestamp_ms,
            "key": bytes_as_json(record.key) if key is None else key,
            "value": bytes_as_json(record.value) if value is None else value,
            "headers": [[name, bytes_as_json(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
    )


def from_json(line: bytes) -> Record:
    """Parses one line. Rejected if it is not a record in this format."""
    try:
        fields = json.loads(line)
    except ValueError as error:
        raise Rejected(f"not JSON ({error})") from error
    if not isinstance(fields, dict):
        raise Rejected('not an object: write {"value": …}')
    if unknown := sorted(fields.keys() - KEYS):
        raise Rejected(f"unknown key {unknown[0]!r}: use key, value, headers, partition and timestamp")
    headers = fields.get("headers") or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    try:
        read = [(str(name), _bytes(value)) for name, value in pairs]
    except (TypeError, ValueError) as error:
        raise Rejected('invalid headers: write an object, or a list of ["name", "value"]') from error
    key, value = _bytes(fields.get("key")), _bytes(fields.get("value"))
    return Record(key, value, read, _number(fields, "partition"), _number(fields, "timestamp"))


def from_line(line: bytes, separator: bytes | None) -> Record:
    if separator is None:
        return Record(None, line)
    key, found, value = line.partition(separator)
    if not found:
        raise Rejected(f"no key: separator {separator.decode(errors='replace')!r} is missing")
    return Record(key, value)


def bytes_as_json(data: Bytes) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(value: Any) -> Bytes:
    if value is None:
        return None
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"} and isinstance(value["base64"], str):
        try:
            return base64.b64decode(value["base64"], validate=True)
        except binascii.Error as error:
            raise Rejected(f"not base64 ({error})") from error
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise Rejected(f"{name} is not a whole number")
