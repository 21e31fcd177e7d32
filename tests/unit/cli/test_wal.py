import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lakestream.cli.main import main
from lakestream.data.wal.format import ExtentData, FrameKind, encode, encode_seal
from lakestream.records.batch import control_batch
from lakestream.testing.batches import make_batch

FIRST = make_batch([b"x" * 900, b"y"], producer_id=5, epoch=1, sequence=7, transactional=True)
MARKER = control_batch(5, 1, True, 1_700_000_000_999, 0)
SECOND = make_batch([b"z"], timestamp_ms=2**62)
PARTS = [ExtentData("a" * 32, 0, "c" * 32, [FIRST, MARKER], 3), ExtentData("b" * 32, 11, "d" * 32, [SECOND], 1)]


def object_bytes() -> bytes:
    return b"".join(encode(PARTS, writer_id="f" * 32, sequence=3, stored_ms=1_700_000_000_123).buffers)


def segment_bytes(*, sealed: bool) -> bytes:
    body = b""
    for sequence in range(2):
        frame = encode(
            PARTS, writer_id="w", sequence=sequence, stored_ms=1, kind=FrameKind.SEGMENT_FRAME, position=len(body)
        )
        body += b"".join(frame.buffers)
    if sealed:
        body += b"".join(encode_seal(writer_id="w", sequence=2, stored_ms=1, position=len(body)).buffers)
    return body


@pytest.fixture
def wal_object(tmp_path: Path) -> Path:
    path = tmp_path / "one.wal"
    path.write_bytes(object_bytes())
    return path


def shown_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["wal", "show", "--json", *arguments]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on standard error of a command that must fail."""
    assert main(["wal", "show", *arguments]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("lakestream: ")
    assert printed.err.count("\n") == 1
    return printed.err


def test_show_prints_facts_and_ranges_of_an_object(wal_object: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wal", "show", str(wal_object)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    lines = printed.out.splitlines()
    assert lines[0] == str(wal_object)
    facts = dict(line.split(None, 1) for line in lines[1:8])
    assert facts["kind"] == "object, format version 1"
    assert facts["writer"] == "f" * 32
    assert facts["sequence"] == "3"
    assert facts["stored"] == "2023-11-14 22:13:20.123 UTC"
    assert facts["checksum"] == "ok"
    assert facts["holds"].startswith("4 records in 2 ranges, 1.1 KiB")
    assert lines[-2].split()[:3] == ["a" * 32, "0", "c" * 32]
    assert lines[-1].split()[:3] == ["b" * 32, "11", "d" * 32]


def test_batches_are_printed_one_line_each(wal_object: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wal", "show", str(wal_object), "--batches"]) == 0
    out = capsys.readouterr().out
    assert "7 to 8" in out
    assert "transactional" in out
    assert "commit" in out
    assert f"{2**62} ms" in out  # no year can hold that time


def test_json_has_positions_of_ranges_and_batches_of_an_object(
    wal_object: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = shown_json(capsys, str(wal_object), "--batches")
    assert (content["kind"], content["version"], content["size"]) == ("object", 1, len(object_bytes()))
    (frame,) = content["frames"]
    assert (frame["writer_id"], frame["sequence"], frame["stored_ms"]) == ("f" * 32, 3, 1_700_000_000_123)
    first, second = frame["ranges"]
    assert object_bytes()[first["byte_start"] : first["byte_end"]] == FIRST + MARKER
    assert object_bytes()[second["byte_start"] : second["byte_end"]] == SECOND
    assert [batch["record_count"] for batch in first["batches"]] == [2, 1]
    assert [batch["control"] for batch in first["batches"]] == [False, True]
    assert first["batches"][0]["byte_end"] == first["batches"][1]["byte_start"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_json_has_frames_of_a_sealed_segment(tmp_path: Path, scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "with space.seg"
    path.write_bytes(segment_bytes(sealed=True))
    content = shown_json(capsys, scheme + str(path))
    assert (content["kind"], content["sealed"], content["torn_size"]) == ("segment", True, 0)
    assert [frame["kind"] for frame in content["frames"]] == ["segment_frame", "segment_frame", "segment_seal"]
    later = content["frames"][1]["ranges"][1]
    assert path.read_bytes()[later["byte_start"] : later["byte_end"]] == SECOND
    assert main(["wal", "show", str(path), "--batches"]) == 0
    assert "cleanly" in capsys.readouterr().out


def test_torn_segment_is_shown_up_to_its_torn_tail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "torn.seg"
    path.write_bytes(segment_bytes(sealed=False)[:-10])
    content = shown_json(capsys, str(path))
    assert (len(content["frames"]), content["sealed"]) == (1, False)
    assert content["torn_size"] == len(segment_bytes(sealed=False)) // 2 - 10
    assert main(["wal", "show", str(path)]) == 0
    assert "torn tail" in capsys.readouterr().out


def test_empty_segment_has_no_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.seg"
    path.write_bytes(b"")
    assert main(["wal", "show", str(path), "--batches"]) == 0
    assert "0 records" in capsys.readouterr().out


def test_damage_is_one_error_line(wal_object: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = bytearray(object_bytes())
    body[100] ^= 1
    wal_object.write_bytes(body)
    assert "one.wal: frame is damaged (checksum)" in refused(capsys, str(wal_object))
    wal_object.write_bytes(b"")
    assert "too few" in refused(capsys, str(wal_object))
    wal_object.write_bytes(b"# just a text file, and long enough to hold a header\n" * 3)
    assert "does not start like a WAL frame" in refused(capsys, str(wal_object))


def test_newer_format_version_is_an_error(wal_object: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = bytearray(object_bytes())
    body[5] = 9
    wal_object.write_bytes(body)
    assert "version 9" in refused(capsys, str(wal_object))


def test_damaged_batch_in_an_intact_frame_is_an_error_with_batches(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The frame's checksum is right, the batch's is wrong: it was damaged before it was written."""
    bad = FIRST[:-1] + b"!"
    path = tmp_path / "bad.wal"
    path.write_bytes(
        b"".join(encode([ExtentData("t", 0, "c", [bad], 2)], writer_id="w", sequence=1, stored_ms=1).buffers)
    )
    assert main(["wal", "show", str(path)]) == 0
    capsys.readouterr()
    assert "record batch has checksum" in refused(capsys, str(path), "--batches")


def test_missing_object_or_unknown_scheme_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such file" in refused(capsys, str(tmp_path / "nothing.wal"))
    assert "no such file" in refused(capsys, f"file://{tmp_path}/nothing.wal")
    assert "directory" in refused(capsys, str(tmp_path))
    assert "null" in refused(capsys, "a\0b")
    assert "s3q" in refused(capsys, "s3q://bucket/key")


def test_control_characters_in_names_are_escaped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "hostile.wal"
    hostile = "\x1b[2Jtopic"
    path.write_bytes(
        b"".join(
            encode([ExtentData(hostile, 0, hostile, [FIRST], 2)], writer_id=hostile, sequence=1, stored_ms=1).buffers
        )
    )
    assert main(["wal", "show", str(path), "--batches"]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_closed_pipe_and_ascii_terminal_end_without_a_traceback(wal_object: Path) -> None:
    command = f"{sys.executable} -m lakestream wal show --batches '{wal_object}'"
    ran = subprocess.run(
        f"for i in 1 2 3; do {command} | true; done; PYTHONIOENCODING=ascii {command} | head -1",
        shell=True,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stderr, ran.stdout) == ("", f"{wal_object}\n")
