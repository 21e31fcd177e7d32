"""`lakestream schema list | show | register`, over the registry's HTTP."""

import argparse
import json
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from lakestream.addresses import parse_address
from lakestream.cli.text import columns, printable
from lakestream.errors import LakestreamError, Misconfigured, Missing, Rejected, Unavailable

HTTP: Final = "127.0.0.1:8080"
HTTP_PORT: Final = 8080
WAIT_S: Final = 60
TYPES: Final = {".avsc": "AVRO", ".json": "JSON", ".proto": "PROTOBUF"}
"""By the ends of names of files."""
MISSING: Final = 404
REFUSED: Final = (400, 409, 422)


def configure_list(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--deleted", action="store_true", help="also what was deleted")
    _common(parser, show_all)


def configure_show(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject", metavar="SUBJECT[@VERSION]", help="the latest, or that version")
    _common(parser, show)


def configure_register(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("subject")
    parser.add_argument("file", type=Path, help="with the schema")
    parser.add_argument("--type", choices=sorted(TYPES.values()), help="else by the file's name: .avsc, .json, .proto")
    parser.add_argument(
        "--reference", action="append", default=[], metavar="NAME=SUBJECT@VERSION", help="may be repeated"
    )
    parser.add_argument("--normalize", action="store_true", help="by what it means, not by how it is written")
    _common(parser, register)


def _common(parser: argparse.ArgumentParser, run: Any) -> None:
    parser.add_argument("--http", metavar="HOST:PORT", default=HTTP, help=f"where a broker serves HTTP ({HTTP})")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.set_defaults(run=run)


def show_all(arguments: argparse.Namespace) -> int:
    found: list[Any] = []
    where = f"/schemas?subjectPrefix=:*:&deleted={str(arguments.deleted).lower()}&offset="
    while page := _asked(arguments, "GET", f"{where}{len(found)}"):
        found += page
    if arguments.json:
        print(json.dumps(found))
    elif found:
        rows = [["SUBJECT", "VERSION", "ID", "TYPE", ""]]
        for one in found:
            told = [str(one[name]) for name in ("version", "id", "schemaType")]
            rows.append([printable(one["subject"]), *told, "deleted" if one.get("deleted") else ""])
        print("\n".join(columns(rows, frozenset({1, 2}), "")))
    return 0


def show(arguments: argparse.Namespace) -> int:
    subject, version = _versioned(arguments.subject)
    found = _asked(arguments, "GET", f"/subjects/{quote(subject, safe='')}/versions/{quote(version, safe='')}")
    print(json.dumps(found) if arguments.json else _spread(found))
    return 0


def register(arguments: argparse.Namespace) -> int:
    path: Path = arguments.file
    body: dict[str, Any] = {"schema": path.read_text("utf-8"), "schemaType": arguments.type or _type_of(path)}
    body["references"] = [_reference(text) for text in arguments.reference]
    where = f"/subjects/{quote(arguments.subject, safe='')}/versions?normalize={str(arguments.normalize).lower()}"
    found = _asked(arguments, "POST", where, body)
    if arguments.json:
        print(json.dumps(found))
    else:
        print(f"{printable(arguments.subject)} version {found['version']} is schema {found['id']}")
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
        raise Misconfigured(f"{path} may be of any type: say which with --type")
    return TYPES[path.suffix]


def _spread(found: dict[str, Any]) -> str:
    """Its text for people to read; Protobuf is so already."""
    if found["schemaType"] == TYPES[".proto"]:
        return str(found["schema"]).rstrip("\n")
    return json.dumps(json.loads(found["schema"]), indent=2, ensure_ascii=False)


def _asked(arguments: argparse.Namespace, method: str, path: str, body: Any = None) -> Any:
    host, port = parse_address(arguments.http, "--http", HTTP_PORT)
    connection = HTTPConnection(host, port, timeout=WAIT_S)
    try:
        connection.request(method, path, None if body is None else json.dumps(body))
        with connection.getresponse() as answer:
            said = json.loads(answer.read())
    except (OSError, HTTPException, ValueError) as error:
        reason = (getattr(error, "strerror", None) or str(error)).lower()
        raise Unavailable(
            f"no schema registry can be reached at {arguments.http} ({reason}): start one with lakestream serve,"
            " or name another with --http"
        ) from error
    finally:
        connection.close()
    if answer.status >= 400:
        message = str(said.get("message") or said) if isinstance(said, dict) else str(said)
        kind = Missing if answer.status == MISSING else Rejected if answer.status in REFUSED else LakestreamError
        raise kind(message)
    return said
