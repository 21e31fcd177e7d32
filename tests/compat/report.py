"""How a run is told: a line per test, a summary; and docs/compat.md, which is written from the lists."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.compat.judge import Judged, Verdict
from tests.compat.lists import SUITES, Expected, expected

PAGE: Final = Path(__file__).parents[2] / "docs" / "compat.md"


def line(judged: Judged) -> str:
    return f"{judged.verdict:<16} {judged.took_s:6.1f} s  {judged.case}{f'  ({judged.why})' if judged.why else ''}"


def summary(all_judged: Sequence[Judged]) -> str:
    counts = Counter(judged.verdict for judged in all_judged)
    skipped = Counter(judged.why for judged in all_judged if judged.verdict is Verdict.SKIPPED)
    parts = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
    return "\n".join(
        [
            *(line(judged) for judged in all_judged if judged.verdict.is_bad or judged.verdict is Verdict.PASSES_NOW),
            *(f"skipped {count:3}: {why}" for why, count in skipped.most_common()),
            ", ".join(parts),
        ]
    )


def page() -> str:
    lists = [expected(suite) for suite in SUITES]
    return "\n".join([_HEAD, *_counts(lists), *(line for suite in lists for line in _suite(suite))])


_HEAD: Final = """\
# Other projects' tests against our broker

Written from the lists in `tests/compat` by `python -m tests.compat --page`. What the suites are and how to run them is
in [CONTRIBUTING.md](../CONTRIBUTING.md#other-projects-tests). *Guarded* tests must pass: `make compat` fails when one
does not, and tells when a skipped one passes. Those with a * are also in `make test`.

A name is that of the suite. Behind `/` stands a part of a test, behind `@` how it is run: `quick` in the suite's own
quick mode, `idempotent` with idempotent producers, `no-commit` without automatic commits, `no-auto-create` against
brokers with `--auto-create-topics no`, `new-groups` with members that speak the new protocol (KIP-848).
"""


def _counts(lists: Iterable[Expected]) -> list[str]:
    rows = [f"| {suite.suite} | {len(suite.guarded)} | {len(suite.skipped)} |" for suite in lists]
    return ["| suite | guarded | skipped |", "|---|---|---|", *rows, ""]


def _suite(lists: Expected) -> list[str]:
    subset = set(lists.subset)
    passes = ", ".join(f"`{case.name}`{'*' if case in subset else ''}" for case in lists.guarded)
    return [f"## {lists.suite}", "", "Guarded:", passes, "", *_skipped(lists), ""]


def _skipped(lists: Expected) -> list[str]:
    by_reason: dict[str, list[str]] = {}
    for case, reason in lists.skipped.items():
        by_reason.setdefault(reason.text, []).append(f"`{case.name}`")
    rows = [f"| {text} | {', '.join(names)} |" for text, names in by_reason.items()]
    return ["| skipped because it | tests |", "|---|---|", *rows]
