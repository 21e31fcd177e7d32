"""kafka-python's own integration tests, from its source distribution: a pytest suite, run by our pytest in its folder.

A case is `{file}::{test}`, as pytest names it, without the folder. All go into one process, each with a time limit.
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
"""Which one of its tests expects the client to infer from what our broker offers."""
RUN_S_MAX: Final = 1800
FOLDER: Final = "test/integration/"


def all_tests() -> list[str]:
    said = _pytest(["--collect-only", "-q", FOLDER], {}).stdout
    return [line.removeprefix(FOLDER) for line in said.splitlines() if "::" in line and line.startswith(FOLDER)]


def run(cases: Sequence[Case], cluster: Cluster, *, test_s_max: float) -> list[Outcome]:
    if not cases:
        return []
    report = cluster.folder / f"kafka-python-{len(list(cluster.folder.iterdir()))}.xml"
    limits = [f"--timeout={test_s_max}", "--tb=native", f"--junitxml={report}", "-o", "junit_logging=all"]
    first = cluster.bootstrap.split(",")[0]
    done = _pytest(["-q", *limits, *(f"{FOLDER}{case.name}" for case in cases)], {"KAFKA_URI": f"kafka://{first}"})
    found = dict(_outcomes(report)) if report.exists() else {}
    missing = Outcome(case=Case(SUITE, ""), state=State.FAILED, why="not run", said=done.stdout)
    return [
        Outcome(case=case, state=it.state, why=it.why, said=it.said, took_s=it.took_s)
        for case in cases
        for it in [found.get(case.name, missing)]
    ]


def _pytest(options: Sequence[str], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    # Options of the pytest around us are not meant for this one.
    own = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    return subprocess.run(
        [program(PROGRAM), *options],
        env=own | {"PYTHON": sys.executable, "KAFKA_VERSION": KAFKA_VERSION} | environment,
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
        bad = next((child for kind in ("failure", "error", "skipped") if (child := entry.find(kind)) is not None), None)
        yield (
            name,
            Outcome(
                case=Case(SUITE, name),
                state=State.PASSED if bad is None else State.LEFT_OUT if bad.tag == "skipped" else State.FAILED,
                why="" if bad is None else bad.get("message", "").partition("\n")[0],
                said="".join(entry.itertext()),
                took_s=float(entry.get("time", 0)),
            ),
        )


def _name(classname: str, test: str) -> str:
    """`test.integration.test_x[.TestY]` and `test_z` to `test_x.py[::TestY]::test_z`."""
    file, *classes = classname.removeprefix("test.integration.").split(".")
    return "::".join([f"{file}.py", *classes, test])
