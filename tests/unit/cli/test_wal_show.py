import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lakestream.batch import control_batch
from lakestream.cli.main import main
from lakestream.cli.text import human_size, human_time
from lakestream.data.wal.format import Kind, Part, encode, encode_seal
from lakestream.testing.batches import make_batch

FIRST = make_batch([b"x" * 900, b"y"], producer_id=5, epoch=1, sequence=7, transactional=True)
MARKER = control_batch(5, 1, True, 1_700_000_000_999, 0)
SECOND = make_batch([b"z"], timestamp_ms=2**62)
PARTS = [Part("a" * 32, 0, "c" * 32, [FIRST, MARKER], 3), Part("b" * 32, 11, "d" * 32, [SECOND], 1)]


def object_bytes() -> bytes:
    return b"".join(encode(PARTS, writer_id="f" * 32, sequence=3, stored_ms=1_700_000_000_123).buffers)


def segment_bytes(*, sealed: bool) -> bytes:
    body = b""
    for sequence in range(2):
        frame = encode(
            PARTS, writer_id="w", sequence=sequence, stored_ms=1, kind=Kind.SEGMENT_FRAME, position=len(body)
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
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("lakestream: ")
    assert said.err.count("\n") == 1
    return said.err


def test_an_object_for_people(wal_object: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wal", "show", str(wal_object)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
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


def test_batches_one_line_each(wal_object: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["wal", "show", str(wal_object), "--batches"]) == 0
    out = capsys.readouterr().out
    assert "7 to 8" in out
    assert "transactional" in out
    assert "commit" in out
    assert f"{2**62} ms" in out  # no year can hold that time


def test_an_object_for_programs(wal_object: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told = shown_json(capsys, str(wal_object), "--batches")
    assert (told["kind"], told["version"], told["size"]) == ("object", 1, len(object_bytes()))
    (frame,) = told["frames"]
    assert (frame["writer_id"], frame["sequence"], frame["stored_ms"]) == ("f" * 32, 3, 1_700_000_000_123)
    first, second = frame["ranges"]
    assert object_bytes()[first["byte_start"] : first["byte_end"]] == FIRST + MARKER
    assert object_bytes()[second["byte_start"] : second["byte_end"]] == SECOND
    assert [batch["record_count"] for batch in first["batches"]] == [2, 1]
    assert [batch["control"] for batch in first["batches"]] == [False, True]
    assert first["batches"][0]["byte_end"] == first["batches"][1]["byte_start"]


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_segment(tmp_path: Path, scheme: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "with space.seg"
    path.write_bytes(segment_bytes(sealed=True))
    told = shown_json(capsys, scheme + str(path))
    assert (told["kind"], told["sealed"], told["torn_size"]) == ("segment", True, 0)
    assert [frame["kind"] for frame in told["frames"]] == ["segment_frame", "segment_frame", "segment_seal"]
    later = told["frames"][1]["ranges"][1]
    assert path.read_bytes()[later["byte_start"] : later["byte_end"]] == SECOND
    assert main(["wal", "show", str(path), "--batches"]) == 0
    assert "cleanly" in capsys.readouterr().out


def test_a_torn_segment_is_shown_as_far_as_it_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "torn.seg"
    path.write_bytes(segment_bytes(sealed=False)[:-10])
    told = shown_json(capsys, str(path))
    assert (len(told["frames"]), told["sealed"]) == (1, False)
    assert told["torn_size"] == len(segment_bytes(sealed=False)) // 2 - 10
    assert main(["wal", "show", str(path)]) == 0
    assert "torn tail" in capsys.readouterr().out


def test_an_empty_segment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "empty.seg"
    path.write_bytes(b"")
    assert main(["wal", "show", str(path), "--batches"]) == 0
    assert "0 records" in capsys.readouterr().out


def test_damage_is_one_clear_line(wal_object: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = bytearray(object_bytes())
    body[100] ^= 1
    wal_object.write_bytes(body)
    assert "one.wal: frame is damaged (checksum)" in refused(capsys, str(wal_object))
    wal_object.write_bytes(b"")
    assert "too few" in refused(capsys, str(wal_object))
    wal_object.write_bytes(b"# just a text file, and long enough to hold a header\n" * 3)
    assert "does not start like a WAL frame" in refused(capsys, str(wal_object))


def test_a_newer_version_asks_for_an_upgrade(wal_object: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = bytearray(object_bytes())
    body[5] = 9
    wal_object.write_bytes(body)
    assert "version 9" in refused(capsys, str(wal_object))


def test_a_damaged_batch_in_a_sound_frame(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The frame's checksum holds, the batch's does not: it was damaged before it was written."""
    bad = FIRST[:-1] + b"!"
    path = tmp_path / "bad.wal"
    path.write_bytes(b"".join(encode([Part("t", 0, "c", [bad], 2)], writer_id="w", sequence=1, stored_ms=1).buffers))
    assert main(["wal", "show", str(path)]) == 0
    capsys.readouterr()
    assert "record batch has checksum" in refused(capsys, str(path), "--batches")


def test_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no such file" in refused(capsys, str(tmp_path / "nothing.wal"))
    assert "no such file" in refused(capsys, f"file://{tmp_path}/nothing.wal")
    assert "directory" in refused(capsys, str(tmp_path))
    assert "null" in refused(capsys, "a\0b")
    assert "s3q" in refused(capsys, "s3q://bucket/key")


def test_names_from_a_file_cannot_steer_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "evil.wal"
    evil = "\x1b[2Jtopic"
    path.write_bytes(
        b"".join(encode([Part(evil, 0, evil, [FIRST], 2)], writer_id=evil, sequence=1, stored_ms=1).buffers)
    )
    assert main(["wal", "show", str(path), "--batches"]) == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["wall"], "did you mean 'wal'?"),
        (["wal", "shwo", "x"], "did you mean 'show'?"),
        (["zzz"], "known are: "),
    ],
)
def test_an_unknown_command_gets_the_nearest(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(("words", "code"), [([], 2), (["wal"], 2), (["wal", "show"], 2), (["--help"], 0)])
def test_a_command_line_that_is_not_whole(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    capsys.readouterr()


def test_a_reader_that_leaves_early_and_a_poor_terminal(wal_object: Path) -> None:
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


def test_sizes_and_times_for_people() -> None:
    assert [human_size(size) for size in (0, 1023, 1024, 1536, 2**20, 3 * 2**30, 2**50)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "1.5 KiB",
        "1.0 MiB",
        "3.0 GiB",
        "1024.0 TiB",
    ]
    assert human_time(0) == "1970-01-01 00:00:00.000 UTC"
    assert human_time(-1) == "1969-12-31 23:59:59.999 UTC"
    assert human_time(-(2**63)) == f"{-(2**63)} ms"
