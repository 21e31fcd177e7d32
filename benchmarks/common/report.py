"""What a benchmark found, as rows; written as JSON for machines and as a table for people."""

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
    """What a page is about."""

    name: str
    """Of its files, and of `make bench-{name}`."""
    title: str
    how: str
    """How it was measured, in a few sentences for whoever reads the table."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    benchmark: str
    what: str
    ours: float
    unit: str
    peer: float | None = None
    peer_is: str = ""
    ratio: float | None = None
    """Ours to the peer's, the median over pairs of runs: not always the quotient of the two medians."""
    bar: str = ""
    """What is asked, empty where the figure is only told."""
    met: bool | None = None
    quiet: bool = True
    """False: others used the machine meanwhile."""
    note: str = ""
    commit: str = ""
    """Where it was measured, if not where the rest of the page was."""


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
    """`at_least` and `at_most` are asked of the ratio where there is one, else of the figure itself."""
    judged = ours if ratio is None else ratio
    of = "" if ratio is None else " of peer"
    bar, met = "", None
    if at_least is not None:
        bar, met = f"≥ {at_least:g}{of}", judged >= at_least
    elif at_most is not None:
        bar, met = f"≤ {at_most:g}{of}", judged <= at_most
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


def write(found: Report, about: Subject, folder: Path = RESULTS) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    json = msgspec.json.format(msgspec.json.encode(found), indent=2) + b"\n"
    (folder / f"{about.name}.json").write_bytes(json)
    (folder / f"{about.name}.md").write_text(page(found, about))


def written(about: Subject, folder: Path = RESULTS) -> Report | None:
    """What the last run wrote."""
    path = folder / f"{about.name}.json"
    return msgspec.json.decode(path.read_bytes(), type=Report) if path.exists() else None


def page(found: Report, about: Subject) -> str:
    missed = sum(row.met is False for row in found.rows)
    asked = sum(row.met is not None for row in found.rows)
    return "\n".join(
        [
            f"# {about.title}",
            "",
            f"`make bench-{about.name}` at {found.commit} on {found.date}: "
            f"Python {found.python}, {found.cpu}, {found.cores} cores"
            + (", quick" if found.quick else "")
            + f". {asked - missed} of {asked} bars met.",
            about.how,
            "`~` marks rows during which others used more than a quarter of a core.",
            "",
            *table(found.rows),
            "",
        ]
    )


def table(rows: Sequence[Row]) -> list[str]:
    lines = ["| what | ours | peer | ratio | bar | met | note |", "|---|---:|---:|---:|---|---|---|"]
    for found in rows:
        peer = "" if found.peer is None else f"{figure(found.peer)} ({found.peer_is})"
        ratio = "" if found.ratio is None else f"{found.ratio:.2f}"
        met = {None: "", True: "yes", False: "**no**"}[found.met]
        loud = "" if found.quiet else " ~"
        ours = f"{figure(found.ours)} {found.unit}{loud}"
        note = "; ".join(filter(None, [found.note, found.commit and f"at {found.commit}"]))
        lines.append(f"| {found.what} | {ours} | {peer} | {ratio} | {found.bar} | {met} | {note} |")
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
