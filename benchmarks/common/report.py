"""Results of a benchmark as rows, written as JSON and as a table in Markdown."""

import os
import platform
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

RESULTS = Path(__file__).parent.parent / "results"


@dataclass(frozen=True, slots=True)
class Subject:
    """Subject of a page of results."""

    name: str
    """Name of the result files and of `make bench-{name}`."""
    title: str
    how: str
    """Method of measurement, in a few sentences for readers of the table."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    benchmark: str
    what: str
    ours: float
    unit: str
    peer: float | None = None
    peer_is: str = ""
    ratio: float | None = None
    """Figure of Lakestream divided by that of the peer, median over pairs of runs: it can differ from the quotient of
    the two medians."""
    bar: str = ""
    """Target; empty if the figure has none."""
    met: bool | None = None
    quiet: bool = True
    """False if other processes used the machine during the runs."""
    note: str = ""
    commit: str = ""
    """The commit, if it differs from that of the rest of the page."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    commit: str
    date: str
    python: str
    cpu: str
    cores: int
    quick: bool
    rows: list[Row]


def row(
    benchmark: str,
    what: str,
    ours: float,
    unit: str,
    *,
    peer: float | None = None,
    peer_is: str = "",
    ratio: float | None = None,
    at_least: float | None = None,
    at_most: float | None = None,
    quiet: bool = True,
    note: str = "",
) -> Row:
    """Returns a row. `at_least` and `at_most` are targets of the ratio if there is one, else of the figure itself."""
    value = ours if ratio is None else ratio
    of = "" if ratio is None else " of peer"
    bar, met = "", None
    if at_least is not None:
        bar, met = f"≥ {at_least:g}{of}", value >= at_least
    elif at_most is not None:
        bar, met = f"≤ {at_most:g}{of}", value <= at_most
    return Row(
        benchmark=benchmark,
        what=what,
        ours=ours,
        unit=unit,
        peer=peer,
        peer_is=peer_is,
        ratio=ratio,
        bar=bar,
        met=met,
        quiet=quiet,
        note=note,
    )


def report(rows: list[Row], quick: bool) -> Report:
    return Report(
        commit=_commit(),
        date=time.strftime("%Y-%m-%d", time.gmtime()),
        python=platform.python_version(),
        cpu=_cpu(),
        cores=os.cpu_count() or 0,
        quick=quick,
        rows=rows,
    )


def write(results: Report, about: Subject, folder: Path = RESULTS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    json = msgspec.json.format(msgspec.json.encode(results), indent=2) + b"\n"
    (folder / f"{about.name}.json").write_bytes(json)
    (folder / f"{about.name}.md").write_text(page(results, about))


def read_results(about: Subject, folder: Path = RESULTS) -> Report | None:
    """Returns the results of the last run, or None if there are none."""
    path = folder / f"{about.name}.json"
    return msgspec.json.decode(path.read_bytes(), type=Report) if path.exists() else None


def page(results: Report, about: Subject) -> str:
    missed = sum(row.met is False for row in results.rows)
    targets = sum(row.met is not None for row in results.rows)
    return "\n".join(
        [
            f"# {about.title}",
            "",
            f"`make bench-{about.name}` at {results.commit} on {results.date}: "
            f"Python {results.python}, {results.cpu}, {results.cores} cores"
            + (", quick" if results.quick else "")
            + f". {targets - missed} of {targets} targets met.",
            about.how,
            "`~` marks rows during which other processes used more than a quarter of a core.",
            "",
            *table(results.rows),
            "",
        ]
    )


def table(rows: Sequence[Row]) -> list[str]:
    lines = ["| measurement | Lakestream | peer | ratio | target | met | note |", "|---|---:|---:|---:|---|---|---|"]
    for row in rows:
        peer = "" if row.peer is None else f"{figure(row.peer)} ({row.peer_is})"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        met = {None: "", True: "yes", False: "**no**"}[row.met]
        noisy = "" if row.quiet else " ~"
        ours = f"{figure(row.ours)} {row.unit}{noisy}"
        note = "; ".join(filter(None, [row.note, row.commit and f"at {row.commit}"]))
        lines.append(f"| {row.what} | {ours} | {peer} | {ratio} | {row.bar} | {met} | {note} |")
    return lines


def figure(value: float) -> str:
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _commit() -> str:
    def git(*args: str) -> str:
        return subprocess.run(["git", *args], capture_output=True, text=True, cwd=RESULTS.parent).stdout.strip()

    changed = git("status", "--porcelain", "--", ":/src", ":/benchmarks/*.py")
    return (git("rev-parse", "--short", "HEAD") or "no commit") + ("+" if changed else "")


def _cpu() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
