"""`lakestream schema list | show | register`, over HTTP to the schema registry."""

import argparse
import json
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from lakestream.cli.output.http_client import NOT_FOUND, request
from lakestream.cli.output.text import columns, printable
from lakestream.cli.server import add_server
from lakestream.errors import LakestreamError, Misconfigured, Missing, Rejected, Unavailable

TYPES: Final = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
"""By file name suffix."""
REJECTED: Final = (400, 409, 422)


def configure_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deleted", action="store_true", help="also deleted subjects and versions")
    _common(parser, show_all)


def configure_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="SUBJECT[@VERSION]", help="the latest version, or the given one")
    _common(parser, show)


def configure_register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject")
    parser.add_argument("file", type=Path, help="file with the schema")
    parser.add_argument("--type", choices=sorted(TYPES.values()), help="default: by suffix .avsc, .json or .proto")
    parser.add_argument(
        "--reference", action="append", default=[], metavar="NAME=SUBJECT@VERSION", help="may be repeated"
    )
    parser.add_argument(
        "--normalize", action="store_true", help="ignore differences of spelling, as Confluent's normalize=true"
    )
    _common(parser, register)


def _common(parser: argparse.ArgumentParser, run: Any) -> None:
    add_server(parser, kafka=False)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def show_all(arguments: argparse.Namespace) -> int:
    schemas: list[Any] = []
    path = f"/schemas?subjectPrefix=:*:&deleted={str(arguments.deleted).lower()}&offset="
    while page := _request(arguments, "GET", f"{path}{len(schemas)}"):
        schemas += page
    if arguments.json:
        print(json.dumps(schemas))
    elif schemas:
        rows = [["SUBJECT", "VERSION", "ID", "TYPE", ""]]
        for schema in schemas:
            cells = [str(schema[name]) for name in ("version", "id", "schemaType")]
            rows.append([printable(schema["subject"]), *cells, "deleted" if schema.get("deleted") else ""])
        print("\n".join(columns(rows, frozenset({1, 2}), "")))
    return 0


def show(arguments: argparse.Namespace) -> int:
    subject, version = _versioned(arguments.subject)
    schema = _request(arguments, "GET", f"/subjects/{quote(subject, safe='')}/versions/{quote(version, safe='')}")
    print(json.dumps(schema) if arguments.json else _indented(schema))
    return 0


def register(arguments: argparse.Namespace) -> int:
    path: Path = arguments.file
    body: dict[str, Any] = {"schema": path.read_text("utf-8"), "schemaType": arguments.type or _type_of(path)}
    body["references"] = [_reference(text) for text in arguments.reference]
    url_path = f"/subjects/{quote(arguments.subject, safe='')}/versions?normalize={str(arguments.normalize).lower()}"
    registered = _request(arguments, "POST", url_path, body)
    if arguments.json:
        print(json.dumps(registered))
    else:
        print(f"{printable(arguments.subject)} version {registered['version']} is schema {registered['id']}")
    return 0


def _versioned(text: str) -> tuple[str, str]:
    subject, at, version = text.rpartition("@")
    return (subject, version) if at and (version == "latest" or version.isdecimal()) else (text, "latest")


def _reference(text: str) -> dict[str, Any]:
    name, _, rest = text.rpartition("=")
    subject, version = _versioned(rest)
    if not name or not subject:
        raise Misconfigured(f"--reference {text!r}: give NAME=SUBJECT@VERSION")
    return {"name": name, "subject": subject, "version": -1 if version == "latest" else int(version)}


def _type_of(path: Path) -> str:
    if path.suffix not in TYPES:
        raise Misconfigured(f"{path}: unknown suffix: give the type of the schema with --type")
    return TYPES[path.suffix]


def _indented(schema: dict[str, Any]) -> str:
    """Returns the text of a schema, indented if it is JSON."""
    if schema["schemaType"] == TYPES[".proto"]:
        return str(schema["schema"]).rstrip("\n")
    return json.dumps(json.loads(schema["schema"]), indent=2, ensure_ascii=False)


def _request(arguments: argparse.Namespace, method: str, path: str, body: Any = None) -> Any:
    status, text = request(arguments.http, method, path, body, "schema registry")
    try:
        content = json.loads(text)
    except ValueError as error:
        raise Unavailable(f"{arguments.http} is no schema registry: its response is not JSON") from error
    if status >= 400:
        message = str(content.get("message") or content) if isinstance(content, dict) else str(content)
        kind = Missing if status == NOT_FOUND else Rejected if status in REJECTED else LakestreamError
        raise kind(message)
    return content
