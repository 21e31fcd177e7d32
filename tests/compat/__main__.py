"""`make compat`: runs test suites of other projects against real brokers: passed, failed, or skipped with a reason.

python -m tests.compat                          all tests; exit code 1 if a guarded test fails
python -m tests.compat --only 0081 --brokers 3  tests with 0081 in their name, against three brokers
python -m tests.compat --guarded                without the skipped tests, which run to check whether they still fail
python -m tests.compat --page                   writes docs/compat.md, and runs no test
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.compat import report
from tests.compat.lists import SUITES, Expected, expected
from tests.compat.model import Case
from tests.compat.result_checker import Result, unlisted
from tests.compat.run import all_tests, cluster, run

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK


def main() -> int:
    options = _options()
    if options.page:
        report.PAGE.write_text(report.page())
        print(f"{report.PAGE} written")
        return 0
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="compat-") as temporary:
        folder = Path(options.keep or temporary).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        for lists in (expected(suite) for suite in options.suite or SUITES):
            for name, cases in _parts(lists, options):
                # Each part has its own brokers: topics of one part would match patterns of the other.
                with cluster(folder / name, options.brokers, options.stores) as brokers:
                    for result in run(cases, lists, brokers, patience=options.patience, jobs=options.jobs):
                        print(report.line(result), flush=True)
                        results.append(result)
            results += unlisted(all_tests(lists.suite), lists)
    print(f"\n{report.summary(results)}")
    return int(any(result.verdict.is_bad for result in results))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", action="append", choices=SUITES, help="run only this suite")
    parser.add_argument("--only", metavar="TEXT", default="", help="tests with this in their name")
    parser.add_argument("--guarded", action="store_true", help="only tests that must pass")
    parser.add_argument("--subset", action="store_true", help="only tests that are also in make test")
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="number of brokers (1)")
    parser.add_argument("--stores", choices=(SQLITE_AND_DISK, OXIA_AND_S3), default=SQLITE_AND_DISK)
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="concurrent tests (default: number of cores)")
    parser.add_argument(
        "--patience", type=float, default=2.0, metavar="X", help="factor for the time limits of the tests (2)"
    )
    parser.add_argument("--keep", metavar="DIR", help="a new folder for the output of tests and brokers")
    parser.add_argument("--page", action="store_true", help="write docs/compat.md from the lists")
    return parser.parse_args()


def _parts(lists: Expected, options: argparse.Namespace) -> list[tuple[str, list[Case]]]:
    chosen = _chosen(lists, options)
    guarded, skipped = (
        [case for case in chosen if (case in lists.skipped) is is_skipped] for is_skipped in (False, True)
    )
    parts = [(f"{lists.suite}-guarded", guarded), (f"{lists.suite}-skipped", skipped)]
    return [(name, cases) for name, cases in parts if cases]


def _chosen(lists: Expected, options: argparse.Namespace) -> list[Case]:
    candidates = lists.subset if options.subset else lists.guarded if options.guarded else lists.cases
    excluded = lists.one_broker_only if options.brokers > 1 else frozenset()
    return [case for case in candidates if options.only in case.name and case not in excluded]


if __name__ == "__main__":
    sys.exit(main())
