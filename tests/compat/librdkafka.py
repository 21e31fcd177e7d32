"""librdkafka's own tests: one binary, one process per test, because a test that runs out of time ends the process.

A case is `{test}[/{subtest}][ @{mode}]`. Subtests are chosen by a piece of their name, as the suite does it. Which
tests there are is read from the suite's own table, so that a new version of it cannot hide one from our lists.
"""

import json
import os
import re
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.compat.model import Case, Cluster, Outcome, State

from lakestream.testing.processes import program

SUITE: Final = "librdkafka"
PROGRAM: Final = "librdkafka-suite"
KAFKA_VERSION: Final = "4.2.0"
"""What tests take our broker for. The highest that they ask about."""
EMPTY_BELOW_S: Final = 0.001
"""Nothing that talks to a broker is faster."""
PROCESS_S_MAX: Final = 900.0
"""0113 takes nine minutes by itself."""
SCRIPTS: Final = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
}
"""Kafka's own that some tests call, and the class that each starts."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_FAILURE: Final = r'TEST FAILURE\s*\n### Test "{test}.*? failed at (.*?) at \w{{3}} .*?: ###\s*\n(.*)'


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    flags: tuple[str, ...] = ()
    conf: str = ""
    scenario: str = "default"
    protocol: str = ""
    """Of groups; empty: the classic one."""


MODES: Final = {
    "": Mode(),
    "quick": Mode(flags=("-Q",)),  # the suite's own quick mode: fewer parts, less data
    "idempotent": Mode(flags=("-P",)),
    "no-commit": Mode(conf="enable.auto.commit=false\n"),  # consumers that assign, and would commit when they close
    "no-auto-create": Mode(scenario="noautocreate"),
    "new-groups": Mode(protocol="consumer"),  # KIP-848
}


@dataclass(frozen=True, slots=True)
class Chosen:
    test: str
    subtest: str
    mode: Mode


def chosen(case: Case) -> Chosen:
    name, _, mode = case.name.partition(" @")
    test, _, subtest = name.partition("/")
    return Chosen(test, subtest, MODES[mode])


def all_tests() -> list[str]:
    """All that talk to a broker: no local ones, no own stand-ins for brokers, none given up or started by hand."""
    source = (Path(program(PROGRAM)).resolve().parent / "test.c").read_text()
    table = source.partition("struct test tests[]")[2].partition("\n};")[0]
    entries = re.findall(r"_TEST\((\d{4}_\w+),(.*?)(?=_TEST\(|\Z)", table, re.DOTALL)
    apart = re.compile(r"TEST_F_LOCAL|TEST_F_MANUAL|TEST_F_KNOWN_ISSUE\b")
    return [name for name, rest in entries if not apart.search(rest) and not name.endswith("_mock")]


def queues(cases: Sequence[Case]) -> list[list[list[Case]]]:
    """What runs one after the other, and in there what is one run: the suite chooses by number, so tests that share one
    run together, once. Nothing of one number runs twice at a time, in whatever mode: where one subscribes to a pattern,
    the other's topics match it."""
    found: dict[str, dict[tuple[str, Mode], list[Case]]] = {}
    for case in cases:
        which = chosen(case)
        found.setdefault(which.test[:4], {}).setdefault((which.subtest, which.mode), []).append(case)
    return [list(runs.values()) for runs in found.values()]


def run(cases: Sequence[Case], cluster: Cluster, *, patience: float = 1.0, debug: bool = False) -> list[Outcome]:
    """Of tests with one number. `patience` stretches the suite's own time limits: for slow machines. `debug`: clients
    say why they wait."""
    which = chosen(cases[0])
    folder = cluster.folder / re.sub(r"\W+", "-", str(cases[0]))
    folder.mkdir(parents=True)
    started = time.monotonic()
    with (folder / "said").open("w") as said:
        try:
            subprocess.run(
                [program(PROGRAM), *which.mode.flags, "-L", "-K", "-p1", "-r", "-s", which.mode.scenario],
                cwd=folder,
                env=_environment(which, cluster, folder, patience, debug),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                timeout=PROCESS_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            said.write(f"still running after {PROCESS_S_MAX:.0f} s\n")
    text = _COLOUR.sub("", (folder / "said").read_text(errors="replace"))
    took_s = time.monotonic() - started
    return [
        Outcome(case=case, state=state, why=why, said=text, took_s=took_s)
        for case in cases
        for state, why in [_read(chosen(case), folder / "report.json", text)]
    ]


def _environment(which: Chosen, cluster: Cluster, folder: Path, patience: float, debug: bool) -> dict[str, str]:
    auto = which.mode.scenario != "noautocreate"
    bootstrap = cluster.bootstrap if auto else cluster.bootstrap_without_auto_create
    settings = f"metadata.broker.list={bootstrap}\ntest.topic.random=true\ntest.timeout.multiplier={patience}\n"
    (folder / "test.conf").write_text(settings + which.mode.conf)
    environment = dict(os.environ) | {
        "RDKAFKA_TEST_CONF": str(folder / "test.conf"),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "TEST_REPORT": str(folder / "report.json"),
        "TESTS": which.test[:4],
        "KAFKA_PATH": str(_scripts(folder)),
        "BROKERS": bootstrap,
    }
    # It changes what tests do.
    environment.pop("CI", None)
    if which.subtest:
        environment["SUBTESTS"] = which.subtest
    if which.mode.protocol:
        environment["TEST_CONSUMER_GROUP_PROTOCOL"] = which.mode.protocol
    if debug:
        environment["TEST_DEBUG"] = "cgrp,eos"
    return environment


def _scripts(folder: Path) -> Path:
    """A folder that looks like an installed Kafka to those tests."""
    root = folder / "kafka"
    (root / "bin").mkdir(parents=True)
    for name, class_name in SCRIPTS.items():
        script = root / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{program("kafka-class")}" {class_name} "$@"\n')
        script.chmod(0o755)
    return root


def _read(which: Chosen, report: Path, said: str) -> tuple[State, str]:
    found = _report(report).get(which.test)
    if found is None:
        return State.FAILED, said.strip().rpartition("\n")[2] or "no report"
    if found["state"] == "PASSED":
        return _really_passed(which, found["duration"], said)
    if found["state"] == "SKIPPED":
        return State.LEFT_OUT, found["extra"] or _skip_reason(which.test, said)
    failure = re.search(_FAILURE.format(test=which.test), said) or re.search(_FAILURE.format(test=""), said)
    return State.FAILED, f"{failure[2].strip()} ({failure[1]})" if failure else "ended before its end"


def _really_passed(which: Chosen, took_s: float, said: str) -> tuple[State, str]:
    """A test that leaves out all its parts says that it passed."""
    if which.subtest:
        part = re.escape(which.subtest)
        if skipped := re.search(rf"\[ \S*{part}.*: SKIP: (.*?) \]?$", said, re.MULTILINE):
            return State.LEFT_OUT, skipped[1]
        ran = re.search(rf"\[ \S*{part}.*: PASS", said) is not None
    else:
        ran = took_s >= EMPTY_BELOW_S
    return (State.PASSED, "") if ran else (State.EMPTY, "nothing to do in this mode")


def _report(path: Path) -> dict[str, Any]:
    try:
        tests: dict[str, Any] = json.loads(path.read_text())["tests"]
    except (OSError, ValueError, KeyError):
        return {}
    return tests


def _skip_reason(test: str, said: str) -> str:
    found = re.search(rf"\[{test}\b.*SKIPPING TEST: (.*)", said)
    return found[1].strip() if found else "not in this mode"
