"""The output of `lakestream table dead-letters`."""

from collections import Counter
from typing import Any

import pytest

from lakestream.cli.dead_letters import _as_json, _footer, _line, _summary_as_json, _summary_lines
from lakestream.cli.main import main
from lakestream.pipeline.dead_letters.model import DeadLetter, Summary
from lakestream.pipeline.tasks import Reason

UNKNOWN = Reason("schema 7: Schema 7 not found", 7)
UNFRAMED = Reason("does not start with a zero byte and a schema id", 0)


def letter(**more: Any) -> DeadLetter:
    plain = {"partition": 0, "offset": 7, "timestamp_ms": 1_700_000_000_123, "schema_id": 7, "reason": UNKNOWN.text}
    value = {"is_repairable": False, "key": None, "value": b"\0\0\0\0\7\x0ahello", "value_size": 11}
    return DeadLetter(**{**plain, **value, **more})


def test_line_has_position_time_value_and_reason() -> None:
    position, *_, reason = (part.strip() for part in _line(letter()).split("  ") if part)
    assert (position, reason) == ("0/7", "schema 7: Schema 7 not found")
    assert "2023-11-14 22:13:20.123 UTC" in _line(letter())
    assert "00000000070a68656c6c6f" in _line(letter())


def test_line_has_text_or_hex_and_marks_a_cut_value() -> None:
    assert "no json " in _line(letter(value=b"no json", value_size=7))
    assert "no… (7 B)" in _line(letter(value=b"no", value_size=7))
    assert "null" in _line(letter(value=None, value_size=0))
    assert "gr… (5 B)" in _line(letter(value="grü".encode()[:3], value_size=5)), "a character that was cut"
    assert "\x1b" not in _line(letter(value=b"\x1b[31mred", value_size=8))


def test_line_has_whether_the_row_can_be_repaired() -> None:
    assert _line(letter(reason="", is_repairable=True)).endswith("it can be repaired")
    assert _line(letter(is_repairable=True)).endswith("not found; some of it can be repaired")


def test_json_has_all_fields_of_a_dead_letter() -> None:
    output = _as_json(letter(reason="", is_repairable=True, schema_id=0, key=b"\xff", value=b"text", value_size=4))
    assert output == {
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


def test_json_has_cut_text_as_text() -> None:
    """A cut inside of a character is no reason for base64."""
    assert _as_json(letter(value="grü".encode()[:3], value_size=5))["value"] == "gr"
    assert _as_json(letter(value="gr€".encode()[:4], value_size=5))["value"] == "gr"
    assert _as_json(letter(value="grü".encode()[:3], value_size=3))["value"] == {"base64": "Z3LD"}, (
        "the value is not cut"
    )
    assert _as_json(letter(value=b"\xffgr\xc3", value_size=5))["value"] == {"base64": "/2dyww=="}
    assert _as_json(letter(value=b"", value_size=0))["value"] == ""
    assert _as_json(letter(value=None, value_size=0))["value"] is None


def test_control_characters_in_reasons_are_escaped() -> None:
    odd = Reason("no column fits \x1b[31mred\nline", 0)
    found = Summary(rows=1, reasons=Counter({odd: 1}), firsts={odd: (0, 3)})
    for output in (_line(letter(reason=odd.text)), *_summary_lines("orders", found)):
        assert output.isprintable(), output


def test_last_lines_have_repairable_rows_and_whether_there_are_more() -> None:
    assert list(_footer("orders", 0, 0, is_all=True)) == ["topic orders: no dead letters"]
    output = "\n".join(_footer("orders", 20, 2, is_all=False))
    assert "2 of these can be repaired: lakestream table repair orders" in output
    assert "more than these 20 exist" in output


def test_summary_has_counts_by_reason() -> None:
    found = Summary(rows=5, repairable=2, spelled=3, reasons=Counter({UNKNOWN: 2, UNFRAMED: 1}))
    found.firsts = {UNKNOWN: (0, 118), UNFRAMED: (1, 3)}
    first, repairable, _, *reasons, rows, also = _summary_lines("orders", found)
    assert first.startswith("topic orders: 5 dead letters")
    assert repairable == "2 can be repaired: lakestream table repair orders"
    assert [line.split()[-3:] for line in reasons] == [["7", "2", "0/118"], ["-", "1", "1/3"]]
    assert rows == "rows: lakestream table dead-letters orders --rows"
    assert also.endswith("no dead letters")
    assert list(_summary_lines("orders", Summary())) == ["topic orders: no dead letters"]
    output = _summary_as_json("orders", found)
    assert (output["rows"], output["repairable"], output["spelled_otherwise"]) == (5, 2, 3)


def test_help_explains_which_rows_are_no_dead_letters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", "dead-letters", "--help"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert "because the columns do not reproduce them, are no dead letters" in output
