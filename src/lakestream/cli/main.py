"""The command `lakestream`: finds the sub-command and runs it; outcome.py says how commands end."""

import argparse
import difflib
import importlib
import io
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, NoReturn

from lakestream.cli.outcome import fail, outcome_of


class Command(NamedTuple):
    help: str
    where: str = ""
    """`module:function` that adds its arguments, and `run`, which gets them and gives the exit code.

    Loaded only when the command is used: who lists topics waits for no broker, and a broker carries no client."""
    words: "Mapping[str, Command]" = {}  # noqa: RUF012 -- read only
    """Its sub-commands, where it has any."""


COMMANDS: Mapping[str, Command] = {
    "serve": Command("everything in one: brokers, HTTP and the pipeline", "serve:configure"),
    "broker": Command("brokers and HTTP only", "serve:configure_broker"),
    "pipeline": Command("move the logs into tables, on Spark", "pipeline:configure"),
    "topic": Command(
        "make, look at and change topics",
        words={
            "create": Command("make a topic", "topics:configure_create"),
            "list": Command("all topics", "topics:configure_list"),
            "describe": Command("a topic's partitions and settings", "topics:configure_describe"),
            "alter": Command("add partitions, change settings", "topics:configure_alter"),
            "delete": Command("delete topics and their records", "topics:configure_delete"),
            "repair": Command("give rows their columns that could not have them before", "repair:configure"),
        },
    ),
    "table": Command(
        "the tables that topics become",
        words={
            "refresh": Command("wait until a table has everything that was acknowledged", "table:configure_refresh"),
            "rejects": Command("dead letters: rows without columns, and why", "rejects:configure"),
        },
    ),
    "schema": Command(
        "the schemas that values and keys are written with",
        words={
            "list": Command("all subjects and their versions", "schema:configure_list"),
            "show": Command("print a schema", "schema:configure_show"),
            "register": Command("register the schema in a file", "schema:configure_register"),
        },
    ),
    "produce": Command("send the lines of standard input to a topic", "produce:configure"),
    "consume": Command("print the records of a topic", "consume:configure"),
    "doctor": Command("check the stores, logs and tables against each other", "doctor:configure"),
    "wal": Command(
        "look into the write-ahead log",
        words={"show": Command("print what is inside a WAL object or segment", "wal:configure_show")},
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    _survive_narrow_terminals()
    if (mistake := _mistake(words)) is not None:
        return fail(mistake, 2)
    return outcome_of(lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    arguments, unknown = _parser(words).parse_known_args(words)
    if unknown:
        return fail(_unknown_argument(unknown[0], arguments.flags), 2)
    run: Callable[[argparse.Namespace], int] = arguments.run
    return run(arguments)


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(fail(f"{self.prog.partition(' ')[2]}: {message}; see {self.prog} --help".lstrip(": "), 2))


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser("lakestream", description="One stream, written once: Kafka and a table.", allow_abbrev=False)
    _add_commands(parser, COMMANDS, words)
    return parser


def _add_commands(parser: argparse.ArgumentParser, commands: Mapping[str, Command], words: Sequence[str]) -> None:
    group = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in commands.items():
        added = group.add_parser(name, help=command.help, description=command.help, allow_abbrev=False)
        if name not in words[:1]:
            continue
        if command.where:
            _configure(command.where, added)
        if command.words:
            _add_commands(added, command.words, words[1:])


def _configure(where: str, parser: argparse.ArgumentParser) -> None:
    module, _, function = where.partition(":")
    getattr(importlib.import_module(f"lakestream.cli.{module}"), function)(parser)
    parser.set_defaults(flags=re.findall(r"--[a-z-]+", parser.format_usage()))


def _mistake(words: Sequence[str]) -> str | None:
    """What is wrong with the first words, with the nearest right one."""
    if not words or words[0].startswith("-"):
        return None
    if words[0] not in COMMANDS:
        return _unknown(words[0], COMMANDS)
    known = COMMANDS[words[0]].words
    if not known or len(words) < 2 or words[1].startswith("-") or words[1] in known:
        return None
    return f"{words[0]}: {_unknown(words[1], known)}"


def _unknown(word: str, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(word, known, n=1, cutoff=0.4)
    advice = f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(known)}"
    return f"unknown command {word!r}; {advice}"


def _unknown_argument(word: str, flags: Sequence[str]) -> str:
    near = difflib.get_close_matches(word.partition("=")[0], flags, n=1, cutoff=0.4) if word.startswith("-") else []
    return f"unknown argument {word!r}" + (f"; did you mean {near[0]}?" if near else "; --help shows what there is")


def _survive_narrow_terminals() -> None:
    """A letter that the terminal cannot show must not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
