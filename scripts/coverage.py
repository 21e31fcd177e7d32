"""Writes docs/coverage.md: which Kafka requests are served at which versions, why others are not, and what topics can
be set to.

Everything served is told by the handlers themselves, in their headers. Run it after a change of one; a test holds the
page against them. With --check nothing is written.
"""

import importlib
import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

from kio.schema.index import api_key_map, schema_name_map

from lakestream.coordination.topic_settings import SETTINGS
from lakestream.protocol.kafka import handlers  # noqa: F401 -- they enter themselves into the table
from lakestream.protocol.kafka.dispatch import HANDLERS

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

HEAD: Final = """\
# Kafka requests

Made by `scripts/coverage.py` from the headers of `src/lakestream/protocol/kafka/handlers/` and the table of topic
settings; do not edit. Versions are those of Apache Kafka 4.3. A request or version that is not offered is not in the
answer to ApiVersions, so that clients know before they ask.
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
    parts = [("Served", served()), ("Not served", skipped()), ("Settings of topics", settings())]
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
