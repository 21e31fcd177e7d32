"""Generates requests to the schema registry: valid schemas in Avro, JSON Schema and Protobuf, mostly damaged."""

import json
import random
from typing import Final
from urllib.parse import quote

from tests.harness.fuzz.catalog_requests import Sent
from tests.harness.fuzz.mutations import NUMBERS, TEXTS, damaged_bytes, mutated, to_json

from lakestream.catalog.table_metadata.json_model import Json

VARIANTS: Final = 1_000
"""Damaged texts of each schema. The registry keeps every valid one."""
AVRO: Final[Json] = {
    "type": "record",
    "name": "R",
    "namespace": "a.b",
    "fields": [
        {"name": "i", "type": "int", "default": 1},
        {"name": "u", "type": ["null", "string"], "default": None, "aliases": ["v"]},
        {"name": "e", "type": {"type": "enum", "name": "E", "symbols": ["A", "B"], "default": "A"}},
        {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "double"}}},
        {"name": "f", "type": {"type": "fixed", "name": "F", "size": 16}},
        {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    ],
}
JSON_SCHEMA: Final[Json] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "title": "R",
    "type": "object",
    "required": ["a"],
    "definitions": {"n": {"type": "integer", "minimum": 0}},
    "properties": {
        "a": {"$ref": "#/definitions/n"},
        "b": {"oneOf": [{"type": "null"}, {"type": "string", "maxLength": 9, "pattern": "^[a-z]+$"}]},
        "c": {"type": "array", "items": {"type": "number"}, "minItems": 1},
        "d": {"type": "object", "additionalProperties": {"type": "boolean"}},
    },
    "additionalProperties": False,
}
PROTOBUF: Final = """syntax = "proto3"; package a.b; import "google/protobuf/timestamp.proto";
message R { int32 i = 1; repeated string s = 2; map<string, double> m = 3; oneof o { E e = 4; N n = 5; }
 google.protobuf.Timestamp t = 6; message N { bytes b = 1; } enum E { A = 0; B = 1; } reserved 9, 11 to 13; }"""
LEVELS: Final = ("NONE", "BACKWARD", "FORWARD", "FULL", "BACKWARD_TRANSITIVE", "FULL_TRANSITIVE", "backward")


class RegistryRequests:
    """Requests to some subjects. Several generators use the server at the same time, each with its own."""

    def __init__(self, number: int, rng: random.Random) -> None:
        self._rng = rng
        self._prefix = f"s{number}-"

    def next(self) -> Sent:
        rng = self._rng
        subject = (
            quote(rng.choice(TEXTS)[:999], safe="") if rng.random() < 0.05 else f"{self._prefix}{rng.randrange(6)}"
        )
        versions = f"/subjects/{subject}/versions"
        version = rng.choice(("latest", "1", "2", "-1", *(quote(text, safe="") for text in TEXTS[:8])))
        match rng.randrange(20):
            case 0 | 1 | 2:
                return Sent("POST", f"{versions}?normalize={rng.choice(('true', 'false', ''))}", self._schema())
            case 3 | 4:
                return Sent("POST", f"/subjects/{subject}?deleted=true", self._schema())
            case 5 | 6:
                path = f"/compatibility{versions}" + rng.choice(("", f"/{version}"))
                return Sent("POST", f"{path}?verbose=true", self._schema())
            case 7:
                body = {"compatibility": rng.choice(LEVELS), "normalize": True, "alias": "", "compatibilityGroup": "x"}
                return Sent("PUT", f"/config/{subject}", self._body(body))
            case 8:
                return Sent(rng.choice(("GET", "DELETE")), f"/config/{subject}?defaultToGlobal=true")
            case 9:
                return Sent(
                    "PUT", f"/mode/{subject}?force=true", self._body({"mode": rng.choice(("READWRITE", "IMPORT"))})
                )
            case 10:
                return Sent(rng.choice(("GET", "DELETE")), f"/mode/{subject}?defaultToGlobal=true")
            case 11:
                return Sent("DELETE", f"/subjects/{subject}?permanent={rng.choice(('true', 'false'))}")
            case 12:
                return Sent("DELETE", f"{versions}/{version}?permanent={rng.choice(('true', 'false'))}")
            case 13:
                return Sent("GET", f"{versions}/{version}{rng.choice(('', '/schema', '/referencedby'))}")
            case 14:
                return Sent("GET", f"/subjects?subjectPrefix={self._prefix}&{self._page()}")
            case 15:
                number = rng.choice((*map(str, NUMBERS), "9" * 5_000, "1", "2", "3"))
                return Sent("GET", f"/schemas/ids/{number}{rng.choice(('', '/schema', '/subjects', '/versions'))}")
            case 16:
                guid = rng.choice(("", "x", "00000000-0000-0000-0000-000000000000"))
                return Sent("GET", f"/schemas/guids/{guid}/ids")
            case 17:
                return Sent("GET", f"/schemas?subjectPrefix={self._prefix}0&{self._page()}")
            case 18:
                return Sent("GET", f"/contexts/{quote(rng.choice(TEXTS)[:99], safe='')}{versions}")
            case _:
                path = rng.choice(("/", "/schemas/types", "/contexts", "/mode", "/config", "/v1/metadata/id"))
                return Sent(rng.choice(("GET", "HEAD")), path)

    def _schema(self) -> bytes:
        variant = random.Random(self._rng.randrange(VARIANTS))
        match self._rng.randrange(3):
            case 0:
                body: Json = {"schema": _text(AVRO, variant)}
            case 1:
                body = {"schemaType": "JSON", "schema": _text(JSON_SCHEMA, variant)}
            case _:
                body = {"schemaType": "PROTOBUF", "schema": _damaged_words(PROTOBUF, variant)}
        body["references"] = [] if self._rng.random() < 0.8 else [{"name": "r", "subject": "s", "version": 1}]
        return self._body(body, 0.8)

    def _body(self, body: Json, valid: float = 0.4) -> bytes:
        draw = self._rng.random()
        if draw < valid:
            return to_json(body)
        return to_json(mutated(body, self._rng)) if draw < 0.98 else damaged_bytes(to_json(body), self._rng)

    def _page(self) -> str:
        word = self._rng.choice(("1", "0", "-1", "x", "9" * 30, "%ff", "--1"))
        return f"limit={word}&offset={self._rng.choice(('0', '5', word))}&deleted=true"


def _text(schema: Json, rng: random.Random) -> str:
    return to_json(mutated(schema, rng, rng.choice((0, 1, 1, 2)))).decode(errors="replace")


def _damaged_words(text: str, rng: random.Random) -> str:
    words = text.replace(";", " ;").replace("{", " {").split(" ")
    for _ in range(rng.choice((0, 1, 1, 2))):
        at = rng.randrange(len(words))
        words[at] = rng.choice(
            (*words, "", "{", "}", ";", "=", "-1", "536870912", "19000", '"', "option", json.dumps("a"))
        )
    return " ".join(words)
