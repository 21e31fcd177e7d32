"""Runs the commands of the README's section on columns from schemas, as a user would copy them into a shell.

Only addresses and paths of programs are replaced, and the installation of packages is skipped.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.harness.processes.serve import Server, environment, serving, wait_until

README: Final = Path(__file__).parents[3] / "README.md"
SECTION: Final = "### Columns from schemas in two minutes"
COMMAND_S_MAX: Final = 60


def snippets(section: str) -> list[str]:
    """Returns the shell commands below a heading."""
    _, _, below = README.read_text().partition(f"{section}\n")
    return re.findall(r"```sh\n(.*?)```", re.split(r"\n##+ ", below)[0], re.DOTALL)


def with_addresses(text: str, server: Server, folder: Path) -> str:
    options = {
        "schema": f"--http {server.http}",
        "table": f"--data-dir {folder / 'data'}",
        "topic": f"--bootstrap {server.bootstrap}",
        "produce": f"--bootstrap {server.bootstrap}",
    }
    lines = []
    for line in text.splitlines():
        line = re.sub(r"\s+#.*", "", line)
        if line.startswith(".venv/bin/pip "):
            continue
        if match := re.match(r"\.venv/bin/lakestream (\w+)", line):
            line += f" {options[match[1]]}"
        lines.append(line)
    shell = re.sub(r"(?m)^\.venv/bin/python\b", sys.executable, "\n".join(lines))
    shell = re.sub(r"(?m)^\.venv/bin/lakestream\b", f"{sys.executable} -m lakestream", shell)
    return shell.replace("http://127.0.0.1:8080", f"http://{server.http}").replace("127.0.0.1:9092", server.bootstrap)


def run(text: str) -> str:
    """Runs commands in a shell that stops at the first failure; returns their output."""
    ended = subprocess.run(
        ["bash", "-euo", "pipefail"],
        input=text,
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
        env=environment(),
    )
    assert ended.returncode == 0, ended
    return ended.stdout


@pytest.mark.timeout(300)
def test_readme_section_on_columns_from_schemas_runs_as_written(tmp_path: Path) -> None:
    write, read, *more = snippets(SECTION)
    with serving(tmp_path, "--pipeline", "yes", "--interval", "500ms") as server:
        output = run(with_addresses(write, server, tmp_path))
        assert '"Payment"' in output, "the schema that the serializer registered"
        wait_until(lambda: "pipeline.moved ranges=" in server.output(), 100)  # a few seconds later
        rows = run(with_addresses(read, server, tmp_path))
        assert re.search(r"id\b.*\bamount\b.*\boffset", rows), rows
        assert re.search(r"│\s+1 │\s+9\.5 │\s+0 │", rows), rows
        for text in more:
            assert "payments: 1 dead letter" in run(with_addresses(text, server, tmp_path))
        assert server.stop() == 0
