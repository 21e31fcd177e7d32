"""Integration tests of kafka-python, from its source distribution: a pytest suite, run in its own folder.

A case is `{file}::{test}`, the name in pytest without the folder. All tests run in one process, each with a time limit.
"""

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.compat.model import Case, Cluster, Outcome, State

from lakestream.testing.processes import program

SUITE: Final = "kafka-python"
PROGRAM: Final = "kafka-python-suite"
KAFKA_VERSION: Final = "4.3.0"
"""Version that one test expects the client to infer from the API versions of the broker."""
RUN_S_MAX: Final = 1800
FOLDER: Final = "test/integration/"


def all_tests() -> list[str]:
    output = _pytest(["--collect-only", "-q", FOLDER], {}).stdout
    return [line.removeprefix(FOLDER) for line in output.splitlines() if "::" in line and line.startswith(FOLDER)]


def run(cases: Sequence[Case], cluster: Cluster, *, test_s_max: float) -> list[Outcome]:
    if not cases:
        return []
    report = cluster.folder / f"kafka-python-{len(list(cluster.folder.iterdir()))}.xml"
    limits = [f"--timeout={test_s_max}", "--tb=native", f"--junitxml={report}", "-o", "junit_logging=all"]
    first = cluster.bootstrap.split(",")[0]
    done = _pytest(["-q", *limits, *(f"{FOLDER}{case.name}" for case in cases)], {"KAFKA_URI": f"kafka://{first}"})
    outcomes = dict(_outcomes(report)) if report.exists() else {}
    missing = Outcome(case=Case(SUITE, ""), state=State.FAILED, reason="not run", output=done.stdout)
    return [
        Outcome(case=case, state=outcome.state, reason=outcome.reason, output=outcome.output, took_s=outcome.took_s)
        for case in cases
        for outcome in [outcomes.get(case.name, missing)]
    ]


def _pytest(options: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    # Options of the calling pytest do not apply to this run.
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(
        [program(PROGRAM), *options],
        env=clean | {"PYTHON": sys.executable, "KAFKA_VERSION": KAFKA_VERSION} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )


def _outcomes(report: Path) -> Iterable[tuple[str, Outcome]]:
    for entry in ElementTree.parse(report).iter("testcase"):
        name = _name(entry.get("classname", ""), entry.get("name", ""))
        failure = next(
            (child for kind in ("failure", "error", "skipped") if (child := entry.find(kind)) is not None), None
        )
        yield (
            name,
            Outcome(
                case=Case(SUITE, name),
                state=State.PASSED
                if failure is None
                else State.SKIPPED_BY_SUITE
                if failure.tag == "skipped"
                else State.FAILED,
                reason="" if failure is None else failure.get("message", "").partition("\n")[0],
                output="".join(entry.itertext()),
                took_s=float(entry.get("time", 0)),
            ),
        )


def _name(classname: str, test: str) -> str:
    """Returns `test_x.py[::TestY]::test_z` for `test.integration.test_x[.TestY]` and `test_z`."""
    file, *classes = classname.removeprefix("test.integration.").split(".")
    return "::".join([f"{file}.py", *classes, test])
