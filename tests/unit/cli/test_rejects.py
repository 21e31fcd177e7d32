"""What `lakestream table rejects` prints of dead letters."""

from collections import Counter
from typing import Any

import pytest

from lakestream.cli.main import main
from lakestream.cli.rejects import _as_json, _below, _line, _summary_as_json, _summary_lines
from lakestream.pipeline.maintenance.dead_letter import DeadLetter, Reason, Summary

UNKNOWN = Reason("schema 7: Schema 7 not found", 7)
UNFRAMED = Reason("it does not begin with a zero byte and the id of a schema", 0)


def letter(**more: Any) -> DeadLetter:
    plain = {"partition": 0, "offset": 7, "timestamp_ms": 1_700_000_000_123, "schema_id": 7, "reason": UNKNOWN.said}
    value = {"is_repairable": False, "key": None, "value": b"\0\0\0\0\7\x0ahello", "value_size": 11}
    return DeadLetter(**{**plain, **value, **more})


def test_a_line_says_where_when_what_and_why() -> None:
    place, *_, why = (part.strip() for part in _line(letter()).split("  ") if part)
    assert (place, why) == ("0/7", "schema 7: Schema 7 not found")
    assert "2023-11-14 22:13:20.123 UTC" in _line(letter())
    assert "00000000070a68656c6c6f" in _line(letter())


def test_a_line_shows_text_as_text_and_says_what_was_cut() -> None:
    assert "no json " in _line(letter(value=b"no json", value_size=7))
    assert "no… (7 B)" in _line(letter(value=b"no", value_size=7))
    assert "null" in _line(letter(value=None, value_size=0))
    assert "gr… (5 B)" in _line(letter(value="grü".encode()[:3], value_size=5)), "a letter that was cut in two"
    assert "\x1b" not in _line(letter(value=b"\x1b[31mred", value_size=8))


def test_a_line_says_what_can_be_repaired() -> None:
    assert _line(letter(reason="", is_repairable=True)).endswith("it can be repaired")
    assert _line(letter(is_repairable=True)).endswith("not found; some of it can be repaired")


def test_a_line_for_programs() -> None:
    said = _as_json(letter(reason="", is_repairable=True, schema_id=0, key=b"\xff", value=b"text", value_size=4))
    assert said == {
        "partition": 0,
        "offset": 7,
        "timestamp": 1_700_000_000_123,
        "schema_id": None,
        "reason": None,
        "repairable": True,
        "key": {"base64": "/w=="},
        "value": "text",
        "value_size": 4,
    }


def test_a_text_that_is_cut_is_a_text_for_programs_too() -> None:
    """What is cut off in the middle of a letter is no reason for base64."""
    assert _as_json(letter(value="grü".encode()[:3], value_size=5))["value"] == "gr"
    assert _as_json(letter(value="gr€".encode()[:4], value_size=5))["value"] == "gr"
    assert _as_json(letter(value="grü".encode()[:3], value_size=3))["value"] == {"base64": "Z3LD"}, "it is all there is"
    assert _as_json(letter(value=b"\xffgr\xc3", value_size=5))["value"] == {"base64": "/2dyww=="}
    assert _as_json(letter(value=b"", value_size=0))["value"] == ""
    assert _as_json(letter(value=None, value_size=0))["value"] is None


def test_what_strangers_call_their_fields_is_safe_for_a_terminal() -> None:
    odd = Reason("no column fits \x1b[31mred\nline", 0)
    found = Summary(rows=1, reasons=Counter({odd: 1}), firsts={odd: (0, 3)})
    for said in (_line(letter(reason=odd.said)), *_summary_lines("orders", found)):
        assert said.isprintable(), said


def test_what_follows_the_lines() -> None:
    assert list(_below("orders", 0, 0, is_all=True)) == ["topic orders: no dead letters there"]
    said = "\n".join(_below("orders", 20, 2, is_all=False))
    assert "2 of these can be repaired: lakestream topic repair orders" in said
    assert "there are more than these 20" in said


def test_the_summary() -> None:
    found = Summary(rows=5, repairable=2, spelled=3, reasons=Counter({UNKNOWN: 2, UNFRAMED: 1}))
    found.firsts = {UNKNOWN: (0, 118), UNFRAMED: (1, 3)}
    first, repairable, _, *reasons, rows, besides = _summary_lines("orders", found)
    assert first.startswith("topic orders: 5 dead letters")
    assert repairable == "2 can be repaired: lakestream topic repair orders"
    assert [line.split()[-3:] for line in reasons] == [["7", "2", "0/118"], ["-", "1", "1/3"]]
    assert rows == "each of them: lakestream table rejects orders --rows"
    assert besides.endswith("no dead letters")
    assert list(_summary_lines("orders", Summary())) == ["topic orders: no dead letters, every value has its columns"]
    said = _summary_as_json("orders", found)
    assert (said["rows"], said["repairable"], said["spelled_otherwise"]) == (5, 2, 3)


def test_the_help_says_what_is_no_dead_letter(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "rejects", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "say what no column can, are no dead letters" in said
