"""Output of a run: a line per test and a summary; and docs/compat.md, which is written from the lists."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from tests.compat.lists import SUITES, Expected, expected
from tests.compat.result_checker import Result, Verdict

PAGE: Final = Path(__file__).parents[2] / "docs" / "compat.md"


def line(result: Result) -> str:
    return (
        f"{result.verdict:<16} {result.took_s:6.1f} s  {result.case}{f'  ({result.reason})' if result.reason else ''}"
    )


def summary(results: Sequence[Result]) -> str:
    counts = Counter(result.verdict for result in results)
    skipped = Counter(result.reason for result in results if result.verdict is Verdict.SKIPPED)
    parts = [f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict]]
    return "\n".join(
        [
            *(line(result) for result in results if result.verdict.is_bad or result.verdict is Verdict.PASSES_NOW),
            *(f"skipped {count:3}: {reason}" for reason, count in skipped.most_common()),
            ", ".join(parts),
        ]
    )


def page() -> str:
    lists = [expected(suite) for suite in SUITES]
    return "\n".join([_HEAD, *_counts(lists), *(line for suite in lists for line in _suite(suite))])


_HEAD: Final = """\
# Test suites of other projects

Written from the lists in `tests/compat` by `python -m tests.compat --page`. The suites, and how to run them, are
described in [CONTRIBUTING.md](../CONTRIBUTING.md#other-projects-test-suites). *Guarded* tests must pass: `make compat`
fails when one does not, and reports a skipped test that passes. Tests with a * are also in `make test`.

Names are those of the suite. After `/` a name has the part of a test, after `@` the mode: `quick` for the suite's
quick mode, `idempotent` with idempotent producers, `no-commit` without automatic commits, `no-auto-create` against
brokers with `--auto-create-topics no`, `new-groups` with members of the consumer protocol (KIP-848).
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
