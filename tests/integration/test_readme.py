"""The typed table of the README, done as it stands there: what is copied into a shell works, and prints what it should.

Only addresses and the way to the programs are others; packages are there already.
"""

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest
from tests.integration.test_serve import Server, environment, serving, wait_until

README: Final = Path(__file__).parents[2] / "README.md"
SECTION: Final = "### A typed table in two minutes"
COMMAND_S_MAX: Final = 60


def snippets(section: str) -> list[str]:
    """The code for shells below a heading."""
    _, _, below = README.read_text().partition(f"{section}\n")
    return re.findall(r"```sh\n(.*?)```", re.split(r"\n##+ ", below)[0], re.DOTALL)


def adapted(text: str, server: Server, folder: Path) -> str:
    where = {
        "schema": f"--http {server.http}",
        "table": f"--data-dir {folder / 'data'}",
        "topic": f"--bootstrap {server.bootstrap}",
    }
    lines = []
    for line in text.splitlines():
        line = re.sub(r"\s+#.*", "", line)
        if line.startswith(".venv/bin/pip "):
            continue
        if ours := re.match(r"\.venv/bin/lakestream (\w+)", line):
            line += f" {where[ours[1]]}"
        lines.append(line)
    shell = re.sub(r"(?m)^\.venv/bin/python\b", sys.executable, "\n".join(lines))
    shell = re.sub(r"(?m)^\.venv/bin/lakestream\b", f"{sys.executable} -m lakestream", shell)
    return shell.replace("http://127.0.0.1:8080", f"http://{server.http}").replace("127.0.0.1:9092", server.bootstrap)


def run(text: str) -> str:
    """What it prints, as a shell that stops at the first failure runs it."""
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
def test_a_typed_table_in_two_minutes(tmp_path: Path) -> None:
    write, read, *more = snippets(SECTION)
    with serving(tmp_path, "--pipeline", "yes", "--interval", "500ms") as server:
        said = run(adapted(write, server, tmp_path))
        assert '"Payment"' in said, "the schema that the serializer registered"
        wait_until(lambda: "pipeline.moved ranges=" in server.said(), 100)  # a few seconds later
        rows = run(adapted(read, server, tmp_path))
        assert re.search(r"id\b.*\bamount\b.*\boffset", rows), rows
        assert re.search(r"│\s+1 │\s+9\.5 │\s+0 │", rows), rows
        for text in more:
            assert "payments" in run(adapted(text, server, tmp_path))
        assert server.stop() == 0
