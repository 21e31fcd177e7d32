"""Settings of a process: flags override the environment, which overrides the settings file. Read once, at the start.

One table defines all three: `--data-dir`, `LAKESTREAM_DATA_DIR` and the key `data_dir` are the same setting.
"""

import argparse
import os
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from lakestream.config.parsing import parse_milliseconds
from lakestream.config.settings import Profile, Settings
from lakestream.config.suggestions import did_you_mean
from lakestream.errors import Misconfigured
from lakestream.protocol.rest.same_origin import check_name

ENVIRONMENT_PREFIX = "LAKESTREAM_"
WORKERS_MAX = 256
SERVER_VARIABLE = "LAKESTREAM_SERVER"
NOT_SETTINGS = frozenset({"LAKESTREAM_CONFIG", "LAKESTREAM_CACHE", SERVER_VARIABLE})


class Option(NamedTuple):
    name: str
    metavar: str
    help: str
    read: Callable[[str], Any]
    setting: str = ""
    """Its name in `Settings`, if it differs: there it ends with its unit."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


def _profile(text: str) -> Profile:
    names = [profile.value for profile in Profile]
    if text not in names:
        raise ValueError(f"{text!r} is unknown: use one of {', '.join(names)}")
    return Profile(text)


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise ValueError(f"{text!r} is not a positive whole number")
    return int(text)


def _workers(text: str) -> int:
    if (count := _count(text)) > WORKERS_MAX:
        raise ValueError(f"{count} is more than {WORKERS_MAX}: use the number of cores")
    return count


def _yes_or_no(text: str) -> bool:
    if text.lower() not in ("yes", "no"):
        raise ValueError(f"{text!r} is neither yes nor no")
    return text.lower() == "yes"


def _address_or_off(text: str) -> str:
    return "" if text == "off" else text


def _host_names(text: str) -> tuple[str, ...]:
    return tuple(check_name(name) for name in text.split(","))


def _time(name: str, help: str) -> Option:
    return Option(name, "TIME", help, parse_milliseconds, f"{name}_ms")


STORE_OPTIONS = (
    Option("data_dir", "DIR", "folder for all files on this machine", Path),
    Option("metadata", "STORE", "sqlite, or oxia://host:port[,host:port]/namespace", str),
    Option("storage", "URL", "file:///path, s3://bucket/prefix, gs://… or az://…", str),
    Option("wal_dir", "DIR", "folder for segments, on a disk that every broker mounts", Path),
    Option("profile", "PROFILE", "cost or latency, for topics without a profile", _profile),
)

_HTTP_OPTIONS = (
    Option(
        "http",
        "HOST:PORT",
        "where the Iceberg catalog, the schema registry and metrics are served (127.0.0.1:8080), or off",
        _address_or_off,
    ),
    Option(
        "http_hosts",
        "NAME[,NAME]",
        "more host names of the HTTP port; *.example.com: all below; IP addresses need none",
        _host_names,
    ),
    Option("schema_versions_max", "N", "limit of schema versions in the registry (50000)", _count),
    Option("schema_bytes_max", "N", "limit of the bytes of all schemas in the registry (134217728)", _count),
)

HTTP_OPTIONS = (*STORE_OPTIONS, *_HTTP_OPTIONS)

BROKER_OPTIONS = (
    *STORE_OPTIONS,
    Option("kafka", "HOST:PORT", "where Kafka clients connect (127.0.0.1:9092)", str),
    *_HTTP_OPTIONS,
    Option("probe", "HOST:PORT", "where /healthz, /readyz and /metrics of each broker are served; default: none", str),
    Option("advertise", "HOST[:PORT]", "address that clients connect to", str),
    Option("workers", "N", "broker processes, each on the next port (1)", _workers),
    Option("zone", "ZONE", "zone of this broker, as broker.rack", str),
    Option("default_partitions", "N", "partitions of topics created without a number (4)", _count),
    Option("auto_create_topics", "YES|NO", "whether a metadata request creates a missing topic", _yes_or_no),
    _time("offsets_retention", "how long a group's offsets are kept after its last member left (7d)"),
    _time("rebalance_delay", "how long an empty group waits for more members (200ms)"),
    _time("session_timeout_min", "smallest session timeout of members (6s)"),
    _time("session_timeout_max", "largest session timeout of members (30m)"),
    _time("transaction_timeout_max", "largest timeout of transactional producers (15m)"),
)

PIPELINE_OPTIONS = (
    *STORE_OPTIONS,
    _time("interval", "between micro-batches of the pipeline (5s)"),
    Option("master", "MASTER", "Spark master of the pipeline: local[*], spark://host:7077, yarn, k8s://…", str),
)

SERVE_OPTIONS = (
    *BROKER_OPTIONS,
    Option("pipeline", "YES|NO", "whether to run the pipeline too", _yes_or_no),
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
    """Returns the settings. All commands share the file and the environment, so options of other commands are checked,
    too."""
    environment = os.environ if environment is None else environment
    all_options = {option.name: option for option in SERVE_OPTIONS}
    values: dict[str, Any] = {}
    for name_in_source, texts in (
        _from_file(arguments.config or environment.get(ENVIRONMENT_PREFIX + "CONFIG"), all_options),
        _from_environment(environment, all_options),
        _from_flags(arguments, options),
    ):
        for name, text in texts.items():
            option = all_options[name]
            values[option.setting or name] = _read(option, text, name_in_source(option))
    return Settings(**values)


NameInSource = Callable[[Option], str]
"""Returns the name of an option in its source, for error messages."""


def _from_flags(arguments: argparse.Namespace, options: Iterable[Option]) -> tuple[NameInSource, dict[str, str]]:
    texts = {option.name: value for option in options if (value := getattr(arguments, option.name)) is not None}
    return (lambda option: option.flag), texts


def _from_environment(
    environment: Mapping[str, str], options: Mapping[str, Option]
) -> tuple[NameInSource, dict[str, str]]:
    names = {option.variable: option.name for option in options.values()}
    texts: dict[str, str] = {}
    for variable, value in environment.items():
        if variable in names:
            texts[names[variable]] = value
        elif variable.startswith(ENVIRONMENT_PREFIX) and variable not in NOT_SETTINGS:
            raise Misconfigured(f"environment variable {_unknown(variable, names)}")
    return (lambda option: option.variable), texts


def _from_file(path: str | None, options: Mapping[str, Option]) -> tuple[NameInSource, dict[str, str]]:
    if path is None:
        return (lambda option: option.name), {}
    try:
        table = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise Misconfigured(f"settings file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Misconfigured(f"settings file {path} is not TOML: {error}") from error
    for key, value in table.items():
        if key not in options:
            raise Misconfigured(f"settings file {path}: key {_unknown(key, options)}")
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise Misconfigured(f'settings file {path}: write {key} as text in quotes, as {key} = "…"')
    return (lambda option: f"{option.name} in {path}"), {key: str(value) for key, value in table.items()}


def _read(option: Option, text: str, source_name: str) -> Any:
    if not text:
        raise Misconfigured(f"{source_name} is empty: give {option.help}")
    try:
        return option.read(text)
    except ValueError as error:
        raise Misconfigured(f"{source_name}: {error}") from error


def _unknown(word: str, names: Collection[str]) -> str:
    return f"{word!r} is unknown: {did_you_mean(word, names)}"
