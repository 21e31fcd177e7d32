"""Clients that are external programs, which `make tools` installs: Kafka's tools, Java, KafkaJS, kcat."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from lakestream.errors import Misconfigured
from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK, BrokerProcesses, running_brokers
from lakestream.testing.processes import program

PROGRAMS: Final = Path(__file__).parent
"""Folder of the clients in Java, JavaScript and Go."""

SETTINGS: Final = {
    "one-sqlite": (1, SQLITE_AND_DISK),
    "three-sqlite": (3, SQLITE_AND_DISK),
    "three-oxia-s3": (3, OXIA_AND_S3),
    "one-oxia-s3": (1, OXIA_AND_S3),
}
SOAK: Final = bool(os.environ.get("SOAK"))
RUN_S_MAX: Final = 60


def settings_for(name: str) -> list[str]:
    """Returns the settings to test: one per client in `make test`, all in `make soak`."""
    return list(SETTINGS) if SOAK else [name]


def pairs(clients: list[str]) -> list[tuple[str, str]]:
    """Returns pairs of one client and one setting each; all combinations in `make soak`."""
    return list(itertools.product(clients, SETTINGS)) if SOAK else list(zip(clients, SETTINGS, strict=False))


def running_cluster(setting: str, paths: pytest.TempPathFactory) -> Iterator[BrokerProcesses]:
    """Runs brokers. At the end asserts that they are still running, and that no log contains an internal error."""
    count, stores = SETTINGS[setting]
    with running_brokers(paths.mktemp(setting), count, stores) as cluster:
        yield cluster
        logs = cluster.logs()
        assert "Traceback" not in logs, logs
        assert all(broker.is_running for broker in cluster), logs


def require_program(name: str) -> str:
    """Returns the path of the program; skips the test if `make tools` could not install it."""
    try:
        return program(name)
    except Misconfigured as reason:
        pytest.skip(f"{reason} (make tools skips a program whose build tools are missing)")


def require_javac() -> None:
    """Skips the test if javac is missing, without which Java cannot run a source file."""
    if shutil.which("javac") is None:
        pytest.skip("javac is not on the PATH: a JRE cannot run a source file")


def run(command: list[str], stdin: str = "", *, fails: bool = False) -> str:
    """Runs a program and returns its output, with standard error."""
    done = subprocess.run(
        command,
        input=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert (done.returncode != 0) == fails, f"{command} exited with {done.returncode}:\n{done.stdout}"
    return done.stdout
