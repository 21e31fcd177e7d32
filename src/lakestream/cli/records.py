"""Records as lines of JSON: what `consume --json` prints, `produce --json` takes, byte for byte.

    {"partition": 0, "offset": 7, "timestamp": 1700000000000, "key": "k", "value": "v", "headers": [["name", "x"]]}

Bytes that are not UTF-8 are `{"base64": "…"}`. In what is produced everything may be left out; headers may also be an
object, and a value that is neither text nor null is sent as the JSON that it is.
"""

import base64
import binascii
import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from lakestream.errors import Rejected

Bytes = bytes | None
Header = tuple[str, Bytes]
KNOWN = frozenset({"topic", "partition", "offset", "timestamp", "key", "value", "headers"})


class Record(NamedTuple):
    key: Bytes
    value: Bytes
    headers: Sequence[Header] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def shown(record: Record, offset: int) -> str:
    return json.dumps(
        {
            "partition": record.partition,
            "offset": offset,
            "timestamp": record.timestamp_ms,
            "key": shown_bytes(record.key),
            "value": shown_bytes(record.value),
            "headers": [[name, shown_bytes(value)] for name, value in record.headers],
        },
        ensure_ascii=False,
    )


def from_json(line: bytes) -> Record:
    """Rejected: it is not such a record."""
    try:
        said = json.loads(line)
    except ValueError as error:
        raise Rejected(f"not JSON ({error})") from error
    if not isinstance(said, dict):
        raise Rejected('not an object: write {"value": …}')
    if unknown := sorted(said.keys() - KNOWN):
        raise Rejected(f"unknown key {unknown[0]!r}; known are key, value, headers, partition and timestamp")
    headers = said.get("headers") or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    try:
        read = [(str(name), _bytes(value)) for name, value in pairs]
    except (TypeError, ValueError) as error:
        raise Rejected('headers are an object, or a list of ["name", "value"]') from error
    return Record(
        _bytes(said.get("key")), _bytes(said.get("value")), read, _number(said, "partition"), _number(said, "timestamp")
    )


def from_line(line: bytes, separator: bytes | None) -> Record:
    if separator is None:
        return Record(None, line)
    key, found, value = line.partition(separator)
    if not found:
        raise Rejected(f"no key in it: {separator.decode(errors='replace')!r} is missing")
    return Record(key, value)


def shown_bytes(data: Bytes) -> Any:
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def _bytes(said: Any) -> Bytes:
    if said is None:
        return None
    if isinstance(said, str):
        return said.encode()
    if isinstance(said, dict) and said.keys() == {"base64"} and isinstance(said["base64"], str):
        try:
            return base64.b64decode(said["base64"], validate=True)
        except binascii.Error as error:
            raise Rejected(f"not base64 ({error})") from error
    return json.dumps(said, ensure_ascii=False, separators=(",", ":")).encode()


def _number(said: dict[str, Any], name: str) -> int | None:
    value = said.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise Rejected(f"{name} is not a whole number")
