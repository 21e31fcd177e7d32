"""The command `lakestream`: finds the sub-command, and turns every expected error into one line and an exit code.

0: done. 1: it could not be done, standard error says why. 2: the command line is wrong. 130: interrupted.
"""

import argparse
import difflib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from lakestream.cli import doctor, serve, wal
from lakestream.errors import LakestreamError

Configure: TypeAlias = Callable[[argparse.ArgumentParser], None]
"""Adds a command's arguments, and `run`, which gets them and gives the exit code."""


class Command(NamedTuple):
    help: str
    configure: Configure | None = None
    words: "Mapping[str, Command]" = {}  # noqa: RUF012 -- read only
    """Its sub-commands, where it has any."""


COMMANDS: Mapping[str, Command] = {
    "broker": Command("serve Kafka clients", serve.configure),
    "doctor": Command("check the stores, and every log's claims against its bytes", doctor.configure),
    "wal": Command(
        "look into the write-ahead log",
        words={"show": Command("print what is inside a WAL object or segment", wal.configure_show)},
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    _survive_narrow_terminals()
    if (mistake := _mistake(words)) is not None:
        return _fail(mistake, 2)
    try:
        arguments = _parser().parse_args(words)
        run: Callable[[argparse.Namespace], int] = arguments.run
        code = run(arguments)
        sys.stdout.flush()
        return code
    except SystemExit as ended:  # argparse: --help, or a wrong command line that it has already reported
        return ended.code if isinstance(ended.code, int) else 2
    except LakestreamError as error:
        return _fail(str(error), 1)
    except BrokenPipeError:
        # The reader (`head`, a pager) has seen enough. Nothing may be flushed into the closed pipe on exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(str(error), 1)
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("lakestream", description="One stream, written once: Kafka and a table.")
    _add_commands(parser, COMMANDS)
    return parser


def _add_commands(parser: argparse.ArgumentParser, commands: Mapping[str, Command]) -> None:
    group = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, command in commands.items():
        added = group.add_parser(name, help=command.help, description=command.help)
        if command.configure is not None:
            command.configure(added)
        if command.words:
            _add_commands(added, command.words)


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


def _fail(message: str, code: int) -> int:
    print(f"lakestream: {' '.join(message.split())}", file=sys.stderr)
    return code


def _survive_narrow_terminals() -> None:
    """A letter that the terminal cannot show must not end the command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
