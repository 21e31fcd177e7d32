"""Generates requests to the Iceberg catalog: valid ones for the tables that exist, mostly with damaged parts."""

import json
import random
import time
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote

from tests.harness.catalog.iceberg_tables import SCHEMA, field
from tests.harness.fuzz.mutations import TEXTS, damaged_bytes, mutated, to_json
from tests.harness.fuzz.table_files import TableFiles

from lakestream.catalog.table_metadata.json_model import Json, normalised

METADATA_BYTES_MAX: Final = 40_000
"""A table with more metadata is dropped, so that requests stay small."""
SPEC: Final[Json] = {"fields": [{"source-id": 1, "name": "p", "transform": "bucket[4]"}]}
ORDER: Final[Json] = {
    "order-id": 1,
    "fields": [{"source-id": 1, "transform": "identity", "direction": "asc", "null-order": "nulls-first"}],
}
WIDE: Final[Json] = {
    **SCHEMA,
    "identifier-field-ids": [1],
    "fields": [
        *SCHEMA["fields"],
        field(4, "m", {"type": "map", "key-id": 5, "key": "string", "value-id": 6, "value": "int"}),
        field(7, "l", {"type": "list", "element-id": 8, "element": "double", "element-required": False}),
        field(9, "s", {"type": "struct", "fields": [field(10, "a"), field(11, "b", "decimal(9, 2)")]}),
    ],
}


class Sent(NamedTuple):
    """A request, and what it does to the generator's knowledge of the server after its response."""

    method: str
    target: str
    body: bytes = b""
    learn: Callable[[int, bytes], None] | None = None
    headers: str = ""

    def encoded(self) -> bytes:
        head = f"{self.method} {self.target} HTTP/1.1\r\nHost: localhost\r\n{self.headers}"
        if self.body or self.method in ("POST", "PUT"):
            head += f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n"
        return f"{head}\r\n".encode() + self.body


class CatalogRequests:
    """Requests to one namespace. Several generators use the server at the same time, each with its own."""

    def __init__(self, number: int, rng: random.Random, files: TableFiles, root: str, topic_table: str) -> None:
        self._rng = rng
        self._files = files
        self._namespace = f"n{number}"
        self._root = f"{root}/tables/fuzz{number}"
        self._topic_table = topic_table
        self._tables: dict[str, Json] = {}
        """The newest known metadata by path."""
        self._registered: dict[str, str] = {}
        """The locations of registered tables by path."""
        self._count = 0
        self._steps: list[tuple[int, Callable[[], Sent]]] = [
            (6, self._namespaces),
            (8, self._create),
            (2, self._stage),
            (30, self._commit),
            (12, self._commit_snapshot),
            (10, self._register),
            (16, self._read),
            (3, self._drop),
            (3, self._rename),
            (3, self._report),
            (2, self._transaction),
            (2, self._any_path),
        ]

    def first(self) -> Sent:
        return Sent("POST", "/v1/namespaces", to_json({"namespace": [self._namespace]}))

    def next(self) -> Sent:
        weights = [weight for weight, _ in self._steps]
        (chosen,) = self._rng.choices([step for _, step in self._steps], weights)
        return chosen()

    # Steps

    def _namespaces(self) -> Sent:
        rng, own = self._rng, f"/v1/namespaces/{self._namespace}"
        path = rng.choice((own, f"{own}%1Fc{rng.randrange(3)}", f"/v1/namespaces/{quote(rng.choice(TEXTS)[:99])}"))
        match rng.randrange(7):
            case 0:
                body = {"namespace": [self._namespace, f"c{rng.randrange(3)}"], "properties": {"a": "b"}}
                return Sent("POST", "/v1/namespaces", self._body(body))
            case 1 | 2:
                body = {"removals": ["x", "y"], "updates": {"a": "b", f"k{rng.randrange(20)}": "c"}}
                return Sent("POST", f"{path}/properties", self._body(body))
            case 3:
                return Sent("DELETE", f"{own}%1Fc{rng.randrange(3)}")
            case 4:
                return Sent("HEAD", path)
            case 5:
                return Sent("GET", f"/v1/namespaces?{self._query()}")
            case _:
                return Sent("GET", path)

    def _create(self) -> Sent:
        name = f"t{self._rng.randrange(6)}"
        version = self._rng.choice((1, 2, 2, 3))
        body: Json = {"name": name, "schema": WIDE, "properties": {"a": "b", "format-version": str(version)}}
        if self._rng.random() < 0.5:
            body |= {"partition-spec": SPEC, "write-order": ORDER}
        if self._rng.random() < 0.1:
            body["location"] = f"{self._root}/x{self._rng.randrange(9)}"
        path = f"{self._tables_path}/{name}"
        return Sent("POST", self._tables_path, self._body(body), lambda *done: self._learn(path, *done))

    def _stage(self) -> Sent:
        """A staged create is committed by the next request; few are left, because each is kept for a week."""
        if self._rng.random() < 0.8:
            return self._create()
        body = {"name": "staged", "schema": WIDE, "stage-create": True}
        return Sent("POST", self._tables_path, self._body(body), self._commit_staged)

    def _commit_staged(self, status: int, body: bytes) -> None:
        if status != 200:
            return
        staged = json.loads(body)["metadata"]
        updates = [
            {"action": "assign-uuid", "uuid": staged["table-uuid"]},
            {"action": "add-schema", "schema": staged["schemas"][0]},
            {"action": "set-current-schema", "schema-id": -1},
            {"action": "add-spec", "spec": staged["partition-specs"][0]},
            {"action": "set-default-spec", "spec-id": -1},
            {"action": "add-sort-order", "sort-order": staged["sort-orders"][0]},
            {"action": "set-default-sort-order", "sort-order-id": -1},
            {"action": "set-location", "location": staged["location"]},
        ]
        commit = {"requirements": [{"type": "assert-create"}], "updates": updates}
        path = f"{self._tables_path}/t{self._rng.randrange(6)}"
        sent = Sent("POST", path, self._body(commit), lambda *done: self._learn(path, *done))
        self._steps.append((1_000_000, lambda: self._once(sent)))

    def _once(self, sent: Sent) -> Sent:
        self._steps.pop()
        return sent

    def _commit(self) -> Sent:
        path = self._path()
        metadata = self._tables.get(path)
        if metadata is None:
            return self._load(path)
        rng = self._rng
        drawn = [rng.choice(UPDATES)(metadata, rng) for _ in range(rng.choice((1, 1, 2, 5)))]
        updates = [update for group in drawn for update in group]
        if path == self._topic_table:
            updates = [one for one in updates if one["action"] not in ("remove-snapshots", "remove-snapshot-ref")]
        body: Json = {"requirements": [rng.choice(REQUIREMENTS)(metadata, rng)], "updates": updates}
        return Sent("POST", path, self._body(body), lambda *done: self._learn(path, *done))

    def _commit_snapshot(self) -> Sent:
        path = self._path()
        metadata = self._tables.get(path)
        if metadata is None:
            return self._load(path)
        snapshot = new_snapshot(metadata, self._rng)
        try:
            snapshot["manifest-list"] = self._files.snapshot_list(metadata, snapshot)
        except Exception:
            return self._load(path)  # the metadata of this table is such that no manifest can be made for it
        updates = [{"action": "add-snapshot", "snapshot": snapshot}]
        if path != self._topic_table:
            branch = self._rng.choice(("main", "main", "b"))
            one = {"action": "set-snapshot-ref", "ref-name": branch, "type": "branch"}
            updates.append({**one, "snapshot-id": snapshot["snapshot-id"]})
        body: Json = {"requirements": [], "updates": updates}
        if self._rng.random() < 0.3:
            body = mutated(body, self._rng)
        return Sent("POST", path, to_json(body), lambda *done: self._learn(path, *done))

    def _register(self) -> Sent:
        name = f"r{self._rng.randrange(4)}"
        path = f"{self._tables_path}/{name}"
        if path in self._registered:
            return Sent("DELETE", path, learn=lambda status, _: self._unregistered(path, status))
        self._count += 1
        location = f"{self._root}/r{self._count}"
        known = [one for one in self._tables.values() if one["properties"].get("lakestream.topic-id") is None]
        seed = self._rng.choice(known or [None])
        if seed is None:
            return self._create()
        file = self._files.metadata_file(seed, location)
        body = {"name": name, "metadata-location": file, "overwrite": False}
        if self._rng.random() < 0.2:
            body = mutated(body, self._rng) | {"name": name}  # else the table's files would be removed under it

        def registered(status: int, answer: bytes) -> None:
            self._learn(path, status, answer)
            if status == 200:
                self._registered[path] = location
            else:
                self._files.remove(location)

        return Sent("POST", f"/v1/namespaces/{self._namespace}/register", to_json(body), registered)

    def _unregistered(self, path: str, status: int) -> None:
        location = self._registered.pop(path, None)
        self._tables.pop(path, None)
        if status == 204 and location is not None:
            self._files.remove(location)

    def _read(self) -> Sent:
        path = self._path()
        match self._rng.randrange(5):
            case 0:
                return Sent("HEAD", path)
            case 1:
                return Sent("GET", f"{self._tables_path}?{self._query()}")
            case 2:
                return Sent("GET", f"{path}?snapshots={self._rng.choice(('refs', 'all', 'x'))}")
            case 3:
                wait = self._rng.choice(("no", "1ms", "x", "61s", "9" * 50, "-1s", "\u00e9"))
                return Sent("GET", path, headers=f"X-Lakestream-Fresh: {wait}\r\n")
            case _:
                return self._load(path)

    def _load(self, path: str) -> Sent:
        return Sent("GET", path, learn=lambda *done: self._learn(path, *done))

    def _drop(self) -> Sent:
        return self._dropped(f"{self._tables_path}/t{self._rng.randrange(6)}")

    def _dropped(self, path: str) -> Sent:
        self._tables.pop(path, None)
        return Sent("DELETE", f"{path}?purgeRequested=true")

    def _rename(self) -> Sent:
        names = [f"t{self._rng.randrange(6)}" for _ in range(2)]
        source, target = ({"namespace": [self._namespace], "name": name} for name in names)
        return Sent("POST", "/v1/tables/rename", self._body({"source": source, "destination": target}))

    def _report(self) -> Sent:
        return Sent("POST", f"{self._path()}/metrics", self._body({"report-type": "scan-report", "x": [1, 2]}))

    def _transaction(self) -> Sent:
        change = {
            "identifier": {"namespace": [self._namespace], "name": f"t{self._rng.randrange(6)}"},
            "requirements": [],
            "updates": [{"action": "set-properties", "updates": {"a": "c"}}],
        }
        return Sent("POST", "/v1/transactions/commit", self._body({"table-changes": [change]}))

    def _any_path(self) -> Sent:
        """A path of the API with other or odd segments, and any method."""
        segments = ["v1", "namespaces", self._namespace, "tables", "t1", "metrics"][: self._rng.randrange(2, 7)]
        at = self._rng.randrange(1, len(segments))
        segments[at] = self._rng.choice((*TEXTS, "views", "plan", "config", "register", "\x1f", "a\x1fb"))[:9_000]
        path = "/" + "/".join(quote(one, safe="") for one in segments)
        if self._rng.random() < 0.1:
            path += self._rng.choice(("%", "%zz", "%ff", "//", "?", "#a", "?a=%ff", ";a"))
        return Sent(self._rng.choice(("GET", "POST", "PUT", "DELETE", "HEAD", "PATCH", "OPTIONS")), path)

    # Helpers

    @property
    def _tables_path(self) -> str:
        return f"/v1/namespaces/{self._namespace}/tables"

    def _path(self) -> str:
        if self._rng.random() < 0.15:
            return self._topic_table
        known = [*self._tables] or [f"{self._tables_path}/t1"]
        return self._rng.choice(known)

    def _query(self) -> str:
        names = self._rng.sample(("parent", "pageSize", "pageToken", "x"), 2)
        words = (self._namespace, "1", "2", "0", "-1", *TEXTS)
        return "&".join(f"{name}={quote(self._rng.choice(words)[:6_000])}" for name in names)

    def _body(self, body: Json) -> bytes:
        draw = self._rng.random()
        if draw < 0.4:
            return to_json(body)
        if draw < 0.97:
            return to_json(mutated(body, self._rng, self._rng.choice((1, 1, 2))))
        return damaged_bytes(to_json(body), self._rng)

    def _learn(self, path: str, status: int, body: bytes) -> None:
        if status == 404:
            self._tables.pop(path, None)
        if status != 200:
            return
        if len(body) > METADATA_BYTES_MAX and path != self._topic_table:
            self._tables.pop(path, None)
            drop = self._dropped(path) if path not in self._registered else Sent("HEAD", path)
            self._steps.append((1_000_000, lambda: self._once(drop)))
            return
        self._tables[path] = normalised(json.loads(body)["metadata"])  # a registered file may have other defaults


def new_snapshot(metadata: Json, rng: random.Random) -> Json:
    parent = metadata.get("current-snapshot-id")
    made: Json = {
        "snapshot-id": rng.getrandbits(62),
        "sequence-number": metadata.get("last-sequence-number", 0) + 1,
        "timestamp-ms": max(int(time.time() * 1000), metadata["last-updated-ms"]),
        "manifest-list": f"{metadata['location']}/metadata/none.avro",
        "summary": {"operation": rng.choice(("append", "overwrite", "replace", "delete"))},
        "schema-id": metadata["current-schema-id"],
    }
    if metadata["format-version"] >= 3:
        made |= {"first-row-id": metadata.get("next-row-id", 0), "added-rows": 10}
    return made if parent in (None, -1) else {**made, "parent-snapshot-id": parent}


Update = Callable[[Json, random.Random], list[Json]]


def _added_schema(metadata: Json, rng: random.Random) -> list[Json]:
    schema = next(one for one in metadata["schemas"] if one.get("schema-id", 0) == metadata["current-schema-id"])
    number = metadata["last-column-id"] + 1
    new = field(number, f"c{number}", rng.choice(("int", "string", "decimal(9, 2)", "fixed[4]", "timestamptz")))
    schema = {**schema, "fields": [*schema["fields"], new]}
    return [
        {"action": "add-schema", "schema": schema, "last-column-id": number},
        {"action": "set-current-schema", "schema-id": rng.choice((-1, -1, 0))},
    ]


def _reference(metadata: Json, rng: random.Random) -> list[Json]:
    known = [one["snapshot-id"] for one in metadata.get("snapshots", ())] or [1]
    name, kind = rng.choice((("b", "branch"), ("t", "tag")))
    ref: Json = {"action": "set-snapshot-ref", "ref-name": name, "type": kind, "snapshot-id": rng.choice(known)}
    return [{**ref, "min-snapshots-to-keep": 1, "max-snapshot-age-ms": 5, "max-ref-age-ms": 7}]


def _removed_snapshots(metadata: Json, rng: random.Random) -> list[Json]:
    known = [one["snapshot-id"] for one in metadata.get("snapshots", ())] or [1]
    return [{"action": "remove-snapshots", "snapshot-ids": rng.sample(known, 1)}]


def _statistics(metadata: Json, rng: random.Random) -> list[Json]:
    known = [one["snapshot-id"] for one in metadata.get("snapshots", ())] or [1]
    one: Json = {"snapshot-id": rng.choice(known), "statistics-path": f"{metadata['location']}/metadata/s.puffin"}
    one |= {"file-size-in-bytes": 10, "file-footer-size-in-bytes": 4, "blob-metadata": []}
    return [
        {"action": "set-statistics", "snapshot-id": one["snapshot-id"], "statistics": one},
        {"action": "set-partition-statistics", "partition-statistics": one},
    ]


def _properties(metadata: Json, rng: random.Random) -> list[Json]:
    names = (
        *("a", "b", "write.metadata.path", "write.data.path", "write.metadata.previous-versions-max"),
        *("write.metadata.compression-codec", "write.metadata.delete-after-commit.enabled", "lakestream.x"),
    )
    values = ("a", "1", "true", "gzip", f"{metadata['location']}/m", "9" * 30, *TEXTS)
    return [{"action": "set-properties", "updates": {rng.choice(names): rng.choice(values)}}]


UPDATES: Final[list[Update]] = [
    _added_schema,
    _reference,
    _removed_snapshots,
    _statistics,
    _properties,
    _properties,
    lambda table, rng: [{"action": "add-snapshot", "snapshot": new_snapshot(table, rng)}],
    lambda table, rng: [{"action": "assign-uuid", "uuid": table["table-uuid"]}],
    lambda table, rng: [{"action": "upgrade-format-version", "format-version": rng.choice((1, 2, 3))}],
    lambda table, rng: [{"action": "add-spec", "spec": SPEC}, {"action": "set-default-spec", "spec-id": -1}],
    lambda table, rng: [
        {"action": "add-sort-order", "sort-order": ORDER},
        {"action": "set-default-sort-order", "sort-order-id": -1},
    ],
    lambda table, rng: [{"action": "remove-snapshot-ref", "ref-name": rng.choice(("main", "b", "t"))}],
    lambda table, rng: [{"action": "set-location", "location": table["location"]}],
    lambda table, rng: [{"action": "remove-properties", "removals": ["a"]}],
    lambda table, rng: [{"action": "remove-statistics", "snapshot-id": 1}],
    lambda table, rng: [{"action": "remove-partition-statistics", "snapshot-id": 1}],
    lambda table, rng: [{"action": "remove-partition-specs", "spec-ids": [rng.randrange(3)]}],
    lambda table, rng: [{"action": "remove-schemas", "schema-ids": [rng.randrange(3)]}],
    lambda table, rng: [{"action": "add-encryption-key", "encryption-key": {"key-id": "k", "x": "y"}}],
    lambda table, rng: [{"action": "remove-encryption-key", "key-id": "k"}],
    lambda table, rng: [{"action": "enable-row-lineage"}],
]
"""One for each update of the specification; two are drawn together with the update that uses what they add."""

REQUIREMENTS: Final[list[Callable[[Json, random.Random], Json]]] = [
    lambda table, rng: {"type": "assert-table-uuid", "uuid": table["table-uuid"]},
    lambda table, rng: {
        "type": "assert-ref-snapshot-id",
        "ref": "main",
        "snapshot-id": table.get("refs", {}).get("main", {}).get("snapshot-id"),
    },
    lambda table, rng: {
        "type": "assert-last-assigned-field-id",
        "last-assigned-field-id": table["last-column-id"],
    },
    lambda table, rng: {"type": "assert-current-schema-id", "current-schema-id": table["current-schema-id"]},
    lambda table, rng: {
        "type": "assert-last-assigned-partition-id",
        "last-assigned-partition-id": table["last-partition-id"],
    },
    lambda table, rng: {"type": "assert-default-spec-id", "default-spec-id": table["default-spec-id"]},
    lambda table, rng: {
        "type": "assert-default-sort-order-id",
        "default-sort-order-id": table["default-sort-order-id"],
    },
]
