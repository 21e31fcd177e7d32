"""`lakestream schema` against a registry on a real socket."""

import asyncio
import json
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.unit.protocol.rest.test_schema_registry import record, serving

from lakestream.cli.main import main

PROTO = 'syntax = "proto3";\nmessage M {\n  string a = 1;\n}\n'


class Output(NamedTuple):
    code: int
    out: str
    err: str


class Cli:
    def __init__(self, port: int, capture: pytest.CaptureFixture[str]) -> None:
        self._http = ["--http", f"127.0.0.1:{port}"]
        self._capture = capture

    async def __call__(self, *words: str) -> Output:
        code = await asyncio.to_thread(main, ["schema", *words, *self._http])
        return Output(code, *self._capture.readouterr())


async def test_register_list_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.avsc").write_text(record("a"))
    (tmp_path / "m.proto").write_text(PROTO)
    outer = {"type": "record", "name": "O", "fields": [{"name": "r", "type": "R"}]}
    (tmp_path / "o.avsc").write_text(json.dumps(outer))
    (tmp_path / "text").write_text('"string"')
    async with serving() as client:
        cli = Cli(client._port, capsys)
        assert await cli("list") == Output(0, "", "")
        assert await cli("register", "r", str(tmp_path / "r.avsc")) == Output(0, "r version 1 is schema 1\n", "")
        assert (await cli("register", "m", str(tmp_path / "m.proto"))).out == "m version 1 is schema 2\n"
        output = await cli("register", "o", str(tmp_path / "o.avsc"), "--reference", "R=r@1", "--json")
        assert json.loads(output.out)["id"] == 3
        assert (await cli("list")).out.splitlines() == [
            "SUBJECT  VERSION  ID  TYPE",
            "m              1   2  PROTOBUF",
            "o              1   3  AVRO",
            "r              1   1  AVRO",
        ]
        assert [one["subject"] for one in json.loads((await cli("list", "--json")).out)] == ["m", "o", "r"]
        assert json.loads((await cli("show", "r")).out) == json.loads(record("a"))
        assert (await cli("show", "m@1")).out == PROTO
        assert json.loads((await cli("show", "o@latest", "--json")).out)["references"][0]["subject"] == "r"


async def test_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text('"string"')
    (tmp_path / "bad.avsc").write_text("{")
    async with serving() as client:
        cli = Cli(client._port, capsys)
        for words, error in (
            (["show", "missing"], "Subject 'missing' not found."),
            (
                ["register", "s", str(tmp_path / "text")],
                "unknown suffix: give the type of the schema with --type",
            ),
            (["register", "s", str(tmp_path / "bad.avsc")], "Invalid schema of type AVRO"),
            (["register", "s", str(tmp_path / "none.avsc")], "No such file"),
            (["register", "s", str(tmp_path / "text"), "--type", "AVRO", "--reference", "x"], "NAME=SUBJECT@VERSION"),
        ):
            output = await cli(*words)
            assert (output.code, output.out) == (1, "")
            assert error in output.err
            assert output.err.count("\n") == 1
    assert "no schema registry can be reached" in (await cli("list")).err
