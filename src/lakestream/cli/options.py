"""Where settings come from: a flag beats the environment, which beats the file. Read once, at the start.

One table drives all three: `--data-dir`, `LAKESTREAM_DATA_DIR` and the key `data_dir` are the same thing.
"""

import argparse
import difflib
import os
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lakestream.durations import milliseconds
from lakestream.errors import Misconfigured
from lakestream.settings import Profile, Settings

ENVIRONMENT_PREFIX = "LAKESTREAM_"
WORKERS_MAX = 256
NOT_SETTINGS = frozenset({"LAKESTREAM_CONFIG", "LAKESTREAM_CACHE"})


class Option(NamedTuple):
    name: str
    metavar: str
    help: str
    read: Callable[[str], Any]
    setting: str = ""
    """What it is called in `Settings`, where that is another name: there it says its unit."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


def _profile(text: str) -> Profile:
    known = [profile.value for profile in Profile]
    if text not in known:
        raise ValueError(_unknown(text, known))
    return Profile(text)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{text!r} is not a number from 1 on")
    return int(text)


def _workers(text: str) -> int:
    if (count := _count(text)) > WORKERS_MAX:
        raise ValueError(f"{count} are more than {WORKERS_MAX}: give as many as there are cores")
    return count


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise ValueError(f"{text!r} is neither yes nor no")
    return text.lower() == "yes"


def _address_or_off(text: str) -> str:
    return "" if text == "off" else text


def _time(name: str, help: str) -> Option:
    return Option(name, "TIME", help, milliseconds, f"{name}_ms")


STORE_OPTIONS = (
    Option("data_dir", "DIR", "folder for all that lies on this machine", Path),
    Option("metadata", "STORE", "sqlite, or oxia://host:port[,host:port]/namespace", str),
    Option("storage", "URL", "file:///path, s3://bucket/prefix, gs://… or az://…", str),
    Option("wal_dir", "DIR", "folder for segments, on a disk that every broker mounts", Path),
    Option("profile", "PROFILE", "cost or latency, for topics that choose none", _profile),
)

BROKER_OPTIONS = (
    *STORE_OPTIONS,
    Option("kafka", "HOST:PORT", "where Kafka clients connect (127.0.0.1:9092)", str),
    Option(
        "http",
        "HOST:PORT",
        "where the Iceberg catalog, health and metrics are (127.0.0.1:8080), or off",
        _address_or_off,
    ),
    Option("advertise", "HOST[:PORT]", "what clients are told to connect to", str),
    Option("workers", "N", "broker processes, each on the port after the last one's (1)", _workers),
    Option("zone", "ZONE", "this broker's zone: clients there are sent to it", str),
    Option("default_partitions", "N", "of topics that are made without a number (4)", _count),
    Option(
        "auto_create_topics", "YES|NO", "whether to make a topic that a client asks for and is not there", _yes_or_no
    ),
    _time("offsets_retention", "how long a group's offsets are kept after its last member left (7d)"),
    _time("rebalance_delay", "how long an empty group waits for more members (200ms)"),
    _time("session_timeout_min", "the least that members may ask for (6s)"),
    _time("session_timeout_max", "the most that members may ask for (30m)"),
    _time("transaction_timeout_max", "the most that transactional producers may ask for (15m)"),
)

PIPELINE_OPTIONS = (
    *STORE_OPTIONS,
    _time("interval", "between rounds of the pipeline (5s)"),
    Option("master", "MASTER", "the Spark that the pipeline runs on: local[*], spark://host:7077, yarn, k8s://…", str),
)

SERVE_OPTIONS = (
    *BROKER_OPTIONS,
    Option("pipeline", "YES|NO", "whether to move the logs into tables too, beside the brokers", _yes_or_no),
    *PIPELINE_OPTIONS[len(STORE_OPTIONS) :],
)


def add_options(parser: argparse.ArgumentParser, options: Iterable[Option] = STORE_OPTIONS) -> None:
    for option in options:
        parser.add_argument(option.flag, metavar=option.metavar, help=f"{option.help} [${option.variable}]")
    parser.add_argument("--config", metavar="FILE.toml", help=f"settings in a file [${ENVIRONMENT_PREFIX}CONFIG]")


def settings_of(
    arguments: argparse.Namespace,
    environment: Mapping[str, str] | None = None,
    options: Iterable[Option] = STORE_OPTIONS,
) -> Settings:
    """One file and one environment serve all commands: what a command has no flag for is checked all the same."""
    environment = os.environ if environment is None else environment
    known = {option.name: option for option in SERVE_OPTIONS}
    chosen: dict[str, Any] = {}
    for where, texts in (
        _from_file(arguments.config or environment.get(ENVIRONMENT_PREFIX + "CONFIG"), known),
        _from_environment(environment, known),
        _from_flags(arguments, options),
    ):
        for name, text in texts.items():
            chosen[known[name].setting or name] = _read(known[name], text, where(known[name]))
    return Settings(**chosen)


Where = Callable[[Option], str]


def _from_flags(arguments: argparse.Namespace, options: Iterable[Option]) -> tuple[Where, dict[str, str]]:
    given = {option.name: value for option in options if (value := getattr(arguments, option.name)) is not None}
    return (lambda option: option.flag), given


def _from_environment(environment: Mapping[str, str], known: Mapping[str, Option]) -> tuple[Where, dict[str, str]]:
    names = {option.variable: option.name for option in known.values()}
    found: dict[str, str] = {}
    for variable, value in environment.items():
        if variable in names:
            found[names[variable]] = value
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable not in NOT_SETTINGS:
            raise Misconfigured(f"environment variable {_unknown(variable, names)}")
    return (lambda option: option.variable), found


def _from_file(path: str | None, known: Mapping[str, Option]) -> tuple[Where, dict[str, str]]:
    if path is None:
        return (lambda option: option.name), {}
    try:
        table = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise Misconfigured(f"settings file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(f"settings file {path} is not TOML: {error}") from error
    for key, value in table.items():
        if key not in known:
            raise Misconfigured(f"settings file {path}: key {_unknown(key, known)}")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise Misconfigured(f'settings file {path}: write {key} as text in quotes, as {key} = "…"')
    return (lambda option: f"{option.name} in {path}"), {key: str(value) for key, value in table.items()}


def _read(option: Option, text: str, where: str) -> Any:
    if not text:
        raise Misconfigured(f"{where} is empty: give {option.help}")
    try:
        return option.read(text)
    except ValueError as error:
        raise Misconfigured(f"{where}: {error}") from error


def _unknown(word: str, known: Iterable[str]) -> str:
    names = list(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.4)
    return f"{word!r} is not known; " + (f"did you mean {near[0]!r}?" if near else f"known are: {', '.join(names)}")
