"""Tests of librdkafka: one binary, one process per test, because a test that times out ends the process.

A case is `{test}[/{subtest}][ @{mode}]`. Subtests are selected by a part of their name, as in the suite. The names of
all tests are read from the suite's table, so that the lists must contain also the tests of a new version.
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
"""Version that the tests assume of the broker: the highest that a test checks for."""
EMPTY_BELOW_S: Final = 0.001
"""A test that sends requests to a broker takes longer."""
PROCESS_S_MAX: Final = 900.0
"""0113 alone takes nine minutes."""
SCRIPTS: Final = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
}
"""Scripts of Kafka that some tests call, and the class that each starts."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")
_FAILURE: Final = r'TEST FAILURE\s*\n### Test "{test}.*? failed at (.*?) at \w{{3}} .*?: ###\s*\n(.*)'


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    flags: tuple[str, ...] = ()
    conf: str = ""
    scenario: str = "default"
    protocol: str = ""
    """Group protocol; empty for the classic protocol."""


MODES: Final = {
    "": Mode(),
    "quick": Mode(flags=("-Q",)),  # the suite's own quick mode: fewer parts, less data
    "idempotent": Mode(flags=("-P",)),
    # For consumers that assign partitions, and would commit at close.
    "no-commit": Mode(conf="enable.auto.commit=false\n"),
    "no-auto-create": Mode(scenario="noautocreate"),
    "new-groups": Mode(protocol="consumer"),  # KIP-848
}


@dataclass(frozen=True, slots=True)
class SuiteTest:
    test: str
    subtest: str
    mode: Mode


def suite_test(case: Case) -> SuiteTest:
    name, _, mode = case.name.partition(" @")
    test, _, subtest = name.partition("/")
    return SuiteTest(test, subtest, MODES[mode])


def all_tests() -> list[str]:
    """Returns the tests that need a broker: without local tests, mock brokers, known issues and manual tests."""
    source = (Path(program(PROGRAM)).resolve().parent / "test.c").read_text()
    table = source.partition("struct test tests[]")[2].partition("\n};")[0]
    entries = re.findall(r"_TEST\((\d{4}_\w+),(.*?)(?=_TEST\(|\Z)", table, re.DOTALL)
    excluded = re.compile(r"TEST_F_LOCAL|TEST_F_MANUAL|TEST_F_KNOWN_ISSUE\b")
    return [name for name, rest in entries if not excluded.search(rest) and not name.endswith("_mock")]


def queues(cases: Sequence[Case]) -> list[list[list[Case]]]:
    """Returns queues of runs; the runs of a queue are run one after the other, and a run is a list of cases.

    The suite selects tests by number, so tests with the same number and mode are one run. Runs of one number are never
    concurrent, because topics of one would match patterns of the other."""
    runs_by_number: dict[str, dict[tuple[str, Mode], list[Case]]] = {}
    for case in cases:
        test = suite_test(case)
        runs_by_number.setdefault(test.test[:4], {}).setdefault((test.subtest, test.mode), []).append(case)
    return [list(runs.values()) for runs in runs_by_number.values()]


def run(cases: Sequence[Case], cluster: Cluster, *, patience: float = 1.0, debug: bool = False) -> list[Outcome]:
    """Runs tests with one number.

    `patience` is a factor for the suite's time limits, for slow machines. With `debug` clients log why they wait."""
    test = suite_test(cases[0])
    folder = cluster.folder / re.sub(r"\W+", "-", str(cases[0]))
    folder.mkdir(parents=True)
    started = time.monotonic()
    with (folder / "output").open("w") as output:
        try:
            subprocess.run(
                [program(PROGRAM), *test.mode.flags, "-L", "-K", "-p1", "-r", "-s", test.mode.scenario],
                cwd=folder,
                env=_environment(test, cluster, folder, patience, debug),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                timeout=PROCESS_S_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            output.write(f"still running after {PROCESS_S_MAX:.0f} s\n")
    text = _COLOUR.sub("", (folder / "output").read_text(errors="replace"))
    took_s = time.monotonic() - started
    return [
        Outcome(case=case, state=state, reason=reason, output=text, took_s=took_s)
        for case in cases
        for state, reason in [_read(suite_test(case), folder / "report.json", text)]
    ]


def _environment(test: SuiteTest, cluster: Cluster, folder: Path, patience: float, debug: bool) -> dict[str, str]:
    auto = test.mode.scenario != "noautocreate"
    bootstrap = cluster.bootstrap if auto else cluster.bootstrap_without_auto_create
    settings = f"metadata.broker.list={bootstrap}\ntest.topic.random=true\ntest.timeout.multiplier={patience}\n"
    (folder / "test.conf").write_text(settings + test.mode.conf)
    environment = dict(os.environ) | {
        "RDKAFKA_TEST_CONF": str(folder / "test.conf"),
        "TEST_KAFKA_VERSION": KAFKA_VERSION,
        "TEST_REPORT": str(folder / "report.json"),
        "TESTS": test.test[:4],
        "KAFKA_PATH": str(_scripts(folder)),
        "BROKERS": bootstrap,
    }
    # CI changes the behaviour of tests.
    environment.pop("CI", None)
    if test.subtest:
        environment["SUBTESTS"] = test.subtest
    if test.mode.protocol:
        environment["TEST_CONSUMER_GROUP_PROTOCOL"] = test.mode.protocol
    if debug:
        environment["TEST_DEBUG"] = "cgrp,eos"
    return environment


def _scripts(folder: Path) -> Path:
    """Creates a folder with the scripts of an installed Kafka, for the tests that call them."""
    root = folder / "kafka"
    (root / "bin").mkdir(parents=True)
    for name, class_name in SCRIPTS.items():
        script = root / "bin" / name
        script.write_text(f'#!/bin/sh\nexec "{program("kafka-class")}" {class_name} "$@"\n')
        script.chmod(0o755)
    return root


def _read(test: SuiteTest, report: Path, output: str) -> tuple[State, str]:
    result = _report(report).get(test.test)
    if result is None:
        return State.FAILED, output.strip().rpartition("\n")[2] or "no report"
    if result["state"] == "PASSED":
        return _really_passed(test, result["duration"], output)
    if result["state"] == "SKIPPED":
        return State.SKIPPED_BY_SUITE, result["extra"] or _skip_reason(test.test, output)
    failure = re.search(_FAILURE.format(test=test.test), output) or re.search(_FAILURE.format(test=""), output)
    return State.FAILED, f"{failure[2].strip()} ({failure[1]})" if failure else "ended without a failure message"


def _really_passed(test: SuiteTest, took_s: float, output: str) -> tuple[State, str]:
    """Returns PASSED only if the test did something: a test that skips all its parts reports that it passed."""
    if test.subtest:
        part = re.escape(test.subtest)
        if skipped := re.search(rf"\[ \S*{part}.*: SKIP: (.*?) \]?$", output, re.MULTILINE):
            return State.SKIPPED_BY_SUITE, skipped[1]
        ran = re.search(rf"\[ \S*{part}.*: PASS", output) is not None
    else:
        ran = took_s >= EMPTY_BELOW_S
    return (State.PASSED, "") if ran else (State.EMPTY, "no subtest runs in this mode")


def _report(path: Path) -> dict[str, Any]:
    try:
        tests: dict[str, Any] = json.loads(path.read_text())["tests"]
    except (OSError, ValueError, KeyError):
        return {}
    return tests


def _skip_reason(test: str, output: str) -> str:
    match = re.search(rf"\[{test}\b.*SKIPPING TEST: (.*)", output)
    return match[1].strip() if match else "not in this mode"
