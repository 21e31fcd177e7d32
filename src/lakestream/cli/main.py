"""The command `lakestream`: finds the sub-command and runs it; exit_status.py has the exit codes."""

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from typing import NamedTuple, NoReturn

from lakestream.cli.exit_status import fail, run_and_exit_status
from lakestream.cli.kafka_options import instead_of
from lakestream.cli.output.progress import show_progress
from lakestream.cli.process.die_with import die_with
from lakestream.cli.server import resolve, run_on_server, runs_here
from lakestream.config.suggestions import did_you_mean, suggest


class Command(NamedTuple):
    help: str
    where: str = ""
    """`module:function` that adds its arguments, and a default `run`, which gets them and returns the exit code.

    Imported only when the command runs, so that `topic list` does not load a broker."""
    words: "Mapping[str, Command]" = {}  # noqa: RUF012 -- read only
    """Its sub-commands, if any."""
    is_hidden: bool = False
    """A former name of a command: it works, but is not listed in the help."""


_DEAD_LETTERS = Command("dead letters: rows without columns, and why", "dead_letters:configure")
_REPAIR = Command("convert the values of rows without columns again, with the current schemas", "repair:configure")

COMMANDS: Mapping[str, Command] = {
    "serve": Command("run brokers, HTTP and the pipeline", "serve:configure"),
    "broker": Command("run brokers and HTTP only", "serve:configure_broker"),
    "http": Command("run HTTP only: the catalog and the schema registry", "serve:configure_http"),
    "pipeline": Command("move records from the logs into tables, on Spark", "pipeline:configure"),
    "topic": Command(
        "create, describe and alter topics",
        words={
            "create": Command("create a topic", "topics:configure_create"),
            "list": Command("list all topics", "topics:configure_list"),
            "describe": Command("print a topic's partitions and settings", "topics:configure_describe"),
            "alter": Command("add partitions, change settings", "topics:configure_alter"),
            "delete": Command("delete topics and their records", "topics:configure_delete"),
            "repair": _REPAIR._replace(is_hidden=True),
        },
    ),
    "table": Command(
        "manage the tables of topics",
        words={
            "refresh": Command("wait until a table has all acknowledged records", "table:configure_refresh"),
            "dead-letters": _DEAD_LETTERS,
            "repair": _REPAIR,
            "rejects": _DEAD_LETTERS._replace(is_hidden=True),
            "accept-rollback": Command("resume a topic whose table was rolled back", "table_offsets:configure_accept"),
            "register": Command("register a metadata file as a topic's table", "table_offsets:configure_register"),
            "set-next-offsets": Command("set the next offsets of a topic's table", "table_offsets:configure_set"),
        },
    ),
    "group": Command(
        "list, describe, reset and delete consumer groups",
        words={
            "list": Command("list all groups with their lag", "cluster.groups:configure_list"),
            "describe": Command("print a group's offsets, lag and members", "cluster.groups:configure_describe"),
            "reset-offsets": Command("set a group's committed offsets", "cluster.groups:configure_reset"),
            "delete": Command("delete groups and their offsets", "cluster.groups:configure_delete"),
        },
    ),
    "schema": Command(
        "list, print and register schemas",
        words={
            "list": Command("list all subjects and their versions", "schema:configure_list"),
            "show": Command("print a schema", "schema:configure_show"),
            "register": Command("register the schema in a file", "schema:configure_register"),
        },
    ),
    "produce": Command("send the lines of standard input to a topic", "produce:configure"),
    "consume": Command("print the records of a topic", "consume:configure"),
    "status": Command("print brokers, topics, lag, tables and what is wrong", "cluster.status:configure"),
    "doctor": Command("check the stores, logs and tables against each other", "doctor.command:configure"),
    "wal": Command(
        "inspect the write-ahead log",
        words={"show": Command("print the content of a WAL object or segment", "wal:configure_show")},
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    _escape_unencodable_output()
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    if (error := _command_error(words)) is not None:
        return fail(error, 2)
    return run_and_exit_status(lambda: _run(words))


def _run(words: Sequence[str]) -> int:
    arguments, unknown = _parser(words).parse_known_args(words)
    if unknown:
        return fail(_unknown_argument(unknown[0], arguments.flags), 2)
    run: Callable[[argparse.Namespace], int] = arguments.run
    show_progress()
    if parent := getattr(arguments, "parent_process", 0):
        die_with(parent)
    if not runs_here(arguments, os.environ):
        return run_on_server(arguments, words)
    resolve(arguments)
    return run(arguments)


class _Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def error(self, message: str) -> NoReturn:
        raise SystemExit(fail(f"{self.prog.partition(' ')[2]}: {message}; see {self.prog} --help".lstrip(": "), 2))


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser("lakestream", description="One stream, written once: Kafka and a table.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"lakestream {version('lakestream')}")
    _add_commands(parser, COMMANDS, words)
    return parser


def _add_commands(parser: argparse.ArgumentParser, commands: Mapping[str, Command], words: Sequence[str]) -> None:
    group = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in commands.items():
        if name not in words[:1] and command.is_hidden:
            continue
        if command.is_hidden:  # argparse lists only commands with a help
            added = group.add_parser(name, description=command.help, allow_abbrev=False)
        else:
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
    parser.set_defaults(flags=[name for name in parser._option_string_actions if name.startswith("--")])


def _command_error(words: Sequence[str]) -> str | None:
    """Returns the error of an unknown command, with the nearest existing one; None if the command exists."""
    if not words or words[0].startswith("-"):
        return None
    if words[0] not in COMMANDS:
        return _unknown(words[0], COMMANDS)
    sub_commands = COMMANDS[words[0]].words
    if not sub_commands or len(words) < 2 or words[1] in sub_commands:
        return None
    if words[1].startswith("-"):
        word = words[1].strip("-")  # as of Kafka's programs: kafka-topics.sh --create
        return f"{words[0]}: unknown option {words[1]!r}; did you mean {word!r}?" if word in sub_commands else None
    return f"{words[0]}: {_unknown(words[1], sub_commands)}"


def _unknown(word: str, commands: Mapping[str, Command]) -> str:
    names = [name for name, command in commands.items() if not command.is_hidden]
    return f"unknown command {word!r}; {did_you_mean(word, names)}"


def _unknown_argument(word: str, flags: Sequence[str]) -> str:
    """Returns the error with the command's option for one of Kafka, else with those that are near."""
    option = word.partition("=")[0]
    if (instead := instead_of(option, flags)) is not None:
        advice = f"did you mean {instead}?" if instead.startswith("--") else instead
    elif near := suggest(option, flags) if option.startswith("--") else []:
        advice = f"did you mean {' or '.join(near)}?"
    else:
        advice = "see --help"
    return f"unknown argument {word!r}; {advice}"


def _escape_unencodable_output() -> None:
    """Escapes characters that the terminal's encoding lacks, so that they do not raise an error."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
