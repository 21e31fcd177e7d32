"""Writes docs/coverage.md: which Kafka requests are served at which versions, why others are not, what topics can be
set to, and what of the schema registry's API is served.

Everything served is told by the handlers themselves, in their headers. Run it after a change of one; a test holds the
page against them. With --check nothing is written.
"""

import importlib
import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

from kio.schema.index import api_key_map, schema_name_map

from lakestream.clock import RandomIds, SystemClock
from lakestream.coordination.schemas.registry import SchemaRegistry
from lakestream.coordination.topic_settings import SETTINGS
from lakestream.metadata.memory import MemoryServer
from lakestream.protocol.kafka import handlers  # noqa: F401 -- they enter themselves into the table
from lakestream.protocol.kafka.dispatch import HANDLERS
from lakestream.protocol.rest.registry.app import RegistryRest

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "coverage.md"

LATER: Final = "not served yet"
NOBODY: Final = "between brokers and controllers of Kafka, never from clients: there is nothing to say here"

SKIPPED: Final[dict[str, tuple[str, tuple[int, ...]]]] = {
    "Groups of the new protocol": (LATER, (68, 69)),
    "Transactions": (LATER, (24, 25, 26, 27, 28, 65, 66)),
    "Users, access, quotas": (LATER, (17, 29, 30, 31, 36, 48, 49, 50, 51)),
    "Share groups": (LATER, (76, 77, 78, 79, 90, 91, 92)),
    "Groups of Kafka Streams": (LATER, (88, 89)),
    "Features": ("there are none that could be switched", (57,)),
    "Telemetry": ("clients that are not offered it do not send it", (71, 72)),
    "Delegation tokens": ("none are given out", (38, 39, 40, 41)),
    "Replicas between directories": ("brokers have no directories of records", (34,)),
    "Inside Kafka": (
        NOBODY,
        (52, 53, 54, 56, 58, 59, 62, 63, 64, 67, 70, 73, 80, 81, 82, 83, 84, 85, 86, 87),
    ),
}
"""Every key that has no handler, and why."""

OTHER_VERSIONS: Final = {22: "v6 is not final in Kafka"}
"""Why a version that Kafka knows is not served."""

NOT_IN_REGISTRY: Final = {
    "`PUT /config` with `defaultMetadata`, `overrideMetadata`, `defaultRuleSet`, `overrideRuleSet`, `validateFields`, "
    "`validateNewSchemas`, `validateRules`, `compatibilityPolicy`": "refused with 422, so that nobody relies on it",
    "mode `FORWARD`, exporters and schema linking": "every broker has the registry: there is none to forward to",
    "encryption keys (`/dek-registry`), catalog and tags (`/catalog`, `schemaTagsToAdd`, `findTags`)": "not served",
    "associations (`/associations`)": "not served; the serializers that know of them do without",
    "`force=true` when registering": "set the subject's level to NONE instead",
    "`format`": "`serialized` for Protobuf and `resolved` for Avro are served; others are refused with 400",
    "rules (`ruleSet`)": "kept, inherited and handed out; serializers execute them",
    "spellings of Avro": "blanks between words do not count, and `normalize=true` does the rest; Confluent's registry "
    'takes `{"type": "string"}` for `"string"` also without it',
    "comments in Protobuf": "a schema is kept as its descriptor says it, without them",
    "`latest` (-1) as the version of a reference": "is the version that is the latest when the schema is registered",
    "importing another schema over a version that is there": "refused with 42205; Confluent's registry overwrites it",
    "users, access, TLS": LATER,
}
"""What Confluent's registry does and this one does not, or otherwise."""

HEAD: Final = """\
# Kafka requests, and the schema registry

Made by `scripts/coverage.py` from the headers of `src/lakestream/protocol/kafka/handlers/`, the table of topic settings
and the endpoints of `src/lakestream/protocol/rest/registry/`; do not edit. Versions are those of Apache Kafka 4.3. A
request or version that is not offered is not in the answer to ApiVersions, so that clients know before they ask.
"""


class Header(NamedTuple):
    """What the first lines of a handler's module say."""

    name: str
    note: str
    text: str


def main(arguments: list[str]) -> int:
    text = page()
    if "--check" not in arguments:
        PAGE.write_text(text)
    elif not PAGE.exists() or PAGE.read_text() != text:
        print("docs/coverage.md is behind the handlers: run python scripts/coverage.py")
        return 1
    return 0


def page() -> str:
    parts = [
        ("Served", served()),
        ("Not served", skipped()),
        ("Settings of topics", settings()),
        ("Schema registry", registry()),
        ("Schema registry: not served, or otherwise", [f"- {what}: {why}." for what, why in NOT_IN_REGISTRY.items()]),
    ]
    return HEAD + "".join(f"\n## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in parts)


def served() -> list[str]:
    lines = ["| key | request | versions | what it does |", "|---|---|---|---|"]
    for key, handler in sorted(HANDLERS.items()):
        header = header_of(handler.work.__module__)
        notes = [note for note in (header.note, _other_versions(key)) if note]
        versions = spelled(handler.versions) + "".join(f"; {note}" for note in notes)
        lines.append(f"| {key} | {header.name} | {versions} | {header.text} |")
    return lines


def skipped() -> list[str]:
    told = [key for _, keys in SKIPPED.values() for key in keys]
    missing = sorted(set(api_key_map) - set(HANDLERS) - set(told))
    assert not missing, f"requests {missing} have no handler: say why in SKIPPED"
    lines = ["| requests | keys | why not |", "|---|---|---|"]
    for title, (why, keys) in SKIPPED.items():
        left = [key for key in keys if key not in HANDLERS]
        if left:
            names = ", ".join(f"{_title(key)} ({key})" for key in left)
            lines.append(f"| {title} | {names} | {why} |")
    return lines


def settings() -> list[str]:
    rows = [f"| `{setting.name}` | {setting.default} | {setting.doc} |" for _, setting in sorted(SETTINGS.items())]
    return ["Any other is refused.", "", "| setting | default | what it means |", "|---|---|---|", *rows]


def registry() -> list[str]:
    rest = RegistryRest(SchemaRegistry(MemoryServer(SystemClock()).client(), RandomIds()), "")
    lines = ["Every path may begin with `/contexts/{context}`.", "", "| method | path | asked with |", "|---|---|---|"]
    for endpoint in rest.endpoints:
        told = " ".join((endpoint.handler.__doc__ or "").split())
        _, _, query = told.partition(":")[0].partition("?")
        asked = ", ".join(f"`{part.partition('=')[0]}`" for part in query.split("&") if part)
        lines.append(f"| {endpoint.method} | `{endpoint.path}` | {asked} |")
    return lines


def header_of(module: str) -> Header:
    first, _, rest = (importlib.import_module(module).__doc__ or "").partition("\n")
    found = re.fullmatch(r"(\w+) \(key \d+\), v[\d-]+(?: \((.*)\))?\.", first)
    assert found, f"{module}: the header must begin like 'Fetch (key 1), v4-18.', not {first!r}"
    paragraph = rest.strip().split("\n\n")[0]
    return Header(found[1], found[2] or "", " ".join(paragraph.split()).replace("|", "\\|"))


def spelled(versions: range) -> str:
    return f"{versions.start}" if len(versions) == 1 else f"{versions.start}-{versions.stop - 1}"


def _other_versions(key: int) -> str:
    known = set(schema_name_map[api_key_map[key]])
    unserved = known - set(HANDLERS[key].versions)
    assert not unserved or key in OTHER_VERSIONS, f"request {key}, versions {sorted(unserved)}: say why not"
    return OTHER_VERSIONS[key] if unserved else ""


def _title(key: int) -> str:
    return "".join(word.capitalize() for word in api_key_map[key].split("_"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
