"""Clients that are programs of their own: Kafka's command line, Java, KafkaJS, kcat. `make tools` brings them."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Final

import pytest

from lakestream.errors import Misconfigured
from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, Brokers, running_brokers
from lakestream.testing.processes import program

SETTINGS: Final = {
    "one-sqlite": (1, SQLITE_AND_DISK),
    "three-sqlite": (3, SQLITE_AND_DISK),
    "three-oxia-s3": (3, OXIA_AND_S3),
    "one-oxia-s3": (1, OXIA_AND_S3),
}
SOAK: Final = bool(os.environ.get("SOAK"))
RUN_S_MAX: Final = 60


def settings_for(name: str) -> list[str]:
    """The setting in which `make test` runs a client; all of them in `make soak`."""
    return list(SETTINGS) if SOAK else [name]


def pairs(clients: list[str]) -> list[tuple[str, str]]:
    """Each client with a setting of its own, as far as they go; all pairs in `make soak`."""
    return list(itertools.product(clients, SETTINGS)) if SOAK else list(zip(clients, SETTINGS, strict=False))


def cluster_of(setting: str, paths: pytest.TempPathFactory) -> Iterator[Brokers]:
    """Running brokers; at their end they still run, and none has said anything about a failure of its own."""
    count, stores = SETTINGS[setting]
    with running_brokers(paths.mktemp(setting), count, stores) as cluster:
        yield cluster
        said = cluster.logs()
        assert "Traceback" not in said, said
        assert all(broker.is_running for broker in cluster), said


def need(name: str) -> str:
    """Where the program is; the test is skipped where `make tools` could not bring it."""
    try:
        return program(name)
    except Misconfigured as reason:
        pytest.skip(f"{reason} (it may have been left out there for want of what it is built with)")


def java_sources_run() -> None:
    """Or the test is skipped."""
    if shutil.which("javac") is None:
        pytest.skip("there is no javac on the PATH: a JRE cannot run a source file")


def run(command: list[str], stdin: str = "", *, fails: bool = False) -> str:
    """What the program said, on both channels."""
    done = subprocess.run(
        command,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert (done.returncode != 0) == fails, f"{command} ended with {done.returncode}:\n{done.stdout}"
    return done.stdout
