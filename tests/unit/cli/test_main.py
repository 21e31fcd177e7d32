import subprocess
import sys

import pytest

from lakestream.cli.main import COMMANDS, main


@pytest.mark.parametrize("words", [["--help"], *([name, "--help"] for name in COMMANDS), ["topic", "create", "--help"]])
def test_every_command_has_help(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("usage: lakestream")


@pytest.mark.parametrize(("group", "former", "name"), [("table", "rejects", "dead-letters"), ("topic", "repair", "")])
def test_former_names_of_commands_work_but_are_not_shown(
    group: str, former: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([group, "--help"]) == 0
    listed = capsys.readouterr().out
    assert former not in listed
    assert name in listed
    assert main([group, former, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"usage: lakestream {group} {former} ")
    assert main([group, "nothing-like-it"]) == 2
    assert former not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["srve"], "unknown command 'srve'; did you mean 'serve'?"),
        (["topic", "lst"], "topic: unknown command 'lst'; did you mean 'list'?"),
        (["topic", "list", "--bootstarp", "x"], "unknown argument '--bootstarp'; did you mean --bootstrap?"),
        (["topic", "list", "--boot", "x"], "unknown argument '--boot'; did you mean --bootstrap?"),
        (["serve", "--port", "9092"], "unknown argument '--port'; did you mean --kafka HOST:PORT?"),
        (["topic", "list", "--port=9092"], "unknown argument '--port=9092'; did you mean --bootstrap HOST:PORT?"),
        (["serve", "--data", "x"], "unknown argument '--data'; did you mean --data-dir?"),
        (["serve", "--log.dirs", "x"], "unknown argument '--log.dirs'; did you mean --data-dir?"),
        (["serve", "--num.partitions", "3"], "unknown argument '--num.partitions'; did you mean --default-partitions?"),
        (
            ["topic", "create", "t", "--replication-factor", "3"],
            "unknown argument '--replication-factor'; leave it out",
        ),
        (["topic", "create", "t", "--config", "a=b"], "unknown argument '--config'; did you mean --set NAME=VALUE?"),
        (["topic", "create", "--topic", "t"], "unknown argument '--topic'; write the topic without a flag"),
        (["topic", "--create", "--topic", "t"], "topic: unknown option '--create'; did you mean 'create'?"),
        (["consume", "t", "--from-beginning"], "unknown argument '--from-beginning'; did you mean --from start?"),
        (["topic", "list", "--bootstrap-server", "x"], "unknown argument '--bootstrap-server'; did you mean --boot"),
        (["topic", "list", "--fast"], "unknown argument '--fast'; see --help"),
        (["topic", "list", "more"], "unknown argument 'more'; see --help"),
        (["consume"], "consume: the following arguments are required: topic; see lakestream consume --help"),
        (["topic"], "topic: the following arguments are required: COMMAND; see lakestream topic --help"),
        (["produce", "t", "--compression", "rar"], "produce: argument --compression: invalid choice: 'rar'"),
        (["topic", "create", "t", "--partitions", "x"], "topic create: argument --partitions: invalid int value: 'x'"),
    ],
)
def test_wrong_command_line_is_one_error_line(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"lakestream: {error}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "not_loaded"),
    [("serve", "confluent_kafka"), ("topic list", "lakestream.server.broker"), ("doctor", "uvicorn")],
)
def test_a_command_loads_only_what_it_uses(words: str, not_loaded: str) -> None:
    """For the memory of a broker, and the time of a small command."""
    check = (
        "import sys; from lakestream.cli.main import main;"
        f"assert main({[*words.split(), '--help']!r}) == 0; assert {not_loaded!r} not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", check], check=False, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["wall"], "did you mean 'wal'?"),
        (["wal", "shwo", "x"], "did you mean 'show'?"),
        (["zzz"], "use one of serve, "),
    ],
)
def test_unknown_command_suggests_the_nearest(words: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert error in capsys.readouterr().err


def test_version_and_help_are_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("lakestream 0.")
    assert main(["help"]) == 0
    assert capsys.readouterr().out.startswith("usage: lakestream ")
    assert main(["help", "topic", "create"]) == 0
    assert capsys.readouterr().out.startswith("usage: lakestream topic create ")
    assert main(["help", "tpoic"]) == 2
    assert "did you mean 'topic'?" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "code"), [([], 2), (["wal"], 2), (["wal", "show"], 2), (["--help"], 0)])
def test_incomplete_command_line_exits_with_2(words: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == code
    capsys.readouterr()
