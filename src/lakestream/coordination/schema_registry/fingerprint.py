"""Fingerprints of schemas: two schemas with the same fingerprint are the same.

The GUID is that of Confluent's registry: the MD5 of the stored text, references, metadata and rules. It is equal in
both registries if both store the same text. Lakestream compares schemas by a longer digest, which includes the format.
"""

import hashlib
from typing import Any
from uuid import UUID

import msgspec

from lakestream.metadata.schemas import Pointer
from lakestream.schemas.model import Format

Json = dict[str, Any]


def digest(kind: Format, text: str, references: tuple[Pointer, ...], metadata: Json | None, rules: Json | None) -> str:
    return digest_of(identity(kind, text, references, metadata, rules))


def digest_of(identity_json: bytes) -> str:
    return hashlib.sha256(identity_json).hexdigest()[:32]


def identity(
    kind: Format, text: str, references: tuple[Pointer, ...], metadata: Json | None, rules: Json | None
) -> bytes:
    """Returns everything that belongs to the identity of a schema, as JSON."""
    return msgspec.json.encode((kind.value, text, references, metadata, rules), order="sorted")


def guid(text: str, references: tuple[Pointer, ...], metadata: Json | None, rules: Json | None) -> str:
    md5 = hashlib.md5(text.encode(), usedforsecurity=False)
    for pointer in references:
        md5.update(pointer.name.encode() + pointer.subject.encode() + pointer.version.to_bytes(4, "big"))
    if metadata is not None:
        md5.update(b"\x01" + "".join(_metadata_parts(metadata)).encode())
    if rules is not None:
        md5.update(b"\x01" + b"".join(_rule_set_parts(rules)))
    return str(UUID(bytes=md5.digest()))


def _metadata_parts(metadata: Json) -> list[str]:
    """Returns the metadata in Confluent's order: maps and sets are sorted."""
    parts: list[str] = []
    for name, values in sorted((metadata.get("tags") or {}).items()):
        parts += [name, *sorted(map(str, values))]
    for name, value in sorted((metadata.get("properties") or {}).items()):
        parts += [name, str(value)]
    return parts + sorted(map(str, metadata.get("sensitive") or ()))


def _rule_set_parts(rules: Json) -> list[bytes]:
    every = [rule for kind in ("migrationRules", "domainRules", "encodingRules") for rule in rules.get(kind) or ()]
    parts = [part for rule in every for part in _rule_parts(rule)]
    return [*parts, str(rules.get("enableAt") or "").encode()]


def _rule_parts(rule: Json) -> list[bytes]:
    texts = [str(rule.get(name) or "") for name in ("name", "doc", "kind", "mode", "type")]
    texts += sorted(map(str, rule.get("tags") or ()))
    for name, value in sorted((rule.get("params") or {}).items()):
        texts += [name, str(value)]
    texts += [str(rule.get(name) or "") for name in ("expr", "onSuccess", "onFailure")]
    return [*(text.encode() for text in texts), b"\x01" if rule.get("disabled") else b""]
