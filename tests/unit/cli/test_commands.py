import subprocess
import sys

import pytest

from lakestream.cli.main import COMMANDS, main


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS), ["topic", "create", "--help"]])
def test_every_command_has_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("usage: lakestream")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["srve"], "unknown command 'srve'; did you mean 'serve'?"),
        (["topic", "lst"], "topic: unknown command 'lst'; did you mean 'list'?"),
        (["topic", "list", "--bootstarp", "x"], "unknown argument '--bootstarp'; did you mean --bootstrap?"),
        (["topic", "list", "--boot", "x"], "unknown argument '--boot'; did you mean --bootstrap?"),
        (["topic", "list", "more"], "unknown argument 'more'; --help shows what there is"),
        (["consume"], "consume: the following arguments are required: topic; see lakestream consume --help"),
        (["topic"], "topic: the following arguments are required: COMMAND; see lakestream topic --help"),
        (["produce", "t", "--compression", "rar"], "produce: argument --compression: invalid choice: 'rar'"),
        (["topic", "create", "t", "--partitions", "x"], "topic create: argument --partitions: invalid int value: 'x'"),
    ],
)
def test_a_wrong_command_line_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"lakestream: {said}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "not_loaded"),
    [("serve", "confluent_kafka"), ("topic list", "lakestream.broker"), ("doctor", "uvicorn")],
)
def test_a_command_loads_only_what_it_uses(words: str, not_loaded: str) -> None:
    """Memory of a broker, and the time that a small command takes."""
    check = (
        "import sys; from lakestream.cli.main import main;"
        f"assert main({[*words.split(), '--help']!r}) == 0; assert {not_loaded!r} not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False, capture_output=True).returncode == 0
