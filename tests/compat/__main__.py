"""`make compat`: other projects' own tests against real brokers. Passed, failed, or skipped and why.

python -m tests.compat                          everything; exit code 1 when a guarded test fails
python -m tests.compat --only 0081 --brokers 3  what has 0081 in its name, against three brokers
python -m tests.compat --guarded                without those that are skipped, which run to see whether they still fail
python -m tests.compat --page                   writes docs/compat.md anew, and runs nothing
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.compat import report
from tests.compat.judge import Judged, unlisted
from tests.compat.lists import SUITES, Expected, expected
from tests.compat.model import Case
from tests.compat.run import all_tests, cluster, run

from lakestream.testing.brokers import OXIA_AND_S3, SQLITE_AND_DISK


def main() -> int:
    options = _options()
    if options.page:
        report.PAGE.write_text(report.page())
        print(f"{report.PAGE} written")
        return 0
    judged: list[Judged] = []
    with tempfile.TemporaryDirectory(prefix="compat-") as temporary:
        folder = Path(options.keep or temporary).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        for lists in (expected(suite) for suite in options.suite or SUITES):
            for name, cases in _parts(lists, options):
                # Each has brokers of its own: topics that one part leaves behind match patterns of the other.
                with cluster(folder / name, options.brokers, options.stores) as where:
                    for one in run(cases, lists, where, patience=options.patience, jobs=options.jobs):
                        print(report.line(one), flush=True)
                        judged.append(one)
            judged += unlisted(all_tests(lists.suite), lists)
    print(f"\n{report.summary(judged)}")
    return int(any(one.verdict.is_bad for one in judged))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.compat", description=__doc__.partition("\n")[0])
    parser.add_argument("--suite", action="append", choices=SUITES, help="one of them only")
    parser.add_argument("--only", metavar="TEXT", default="", help="tests with this in their name")
    parser.add_argument("--guarded", action="store_true", help="only what must pass")
    parser.add_argument("--subset", action="store_true", help="only what is also in make test")
    parser.add_argument("--brokers", type=int, default=1, metavar="N", help="how many brokers (1)")
    parser.add_argument("--stores", choices=(SQLITE_AND_DISK, OXIA_AND_S3), default=SQLITE_AND_DISK)
    parser.add_argument("--jobs", type=int, default=0, metavar="N", help="tests at once (as many as cores)")
    parser.add_argument("--patience", type=float, default=2.0, metavar="X", help="stretches the tests' time limits (2)")
    parser.add_argument("--keep", metavar="DIR", help="a new folder for all that tests and brokers say")
    parser.add_argument("--page", action="store_true", help="write docs/compat.md from the lists")
    return parser.parse_args()


def _parts(lists: Expected, options: argparse.Namespace) -> list[tuple[str, list[Case]]]:
    wanted = _wanted(lists, options)
    guarded, skipped = ([case for case in wanted if (case in lists.skipped) is part] for part in (False, True))
    parts = [(f"{lists.suite}-guarded", guarded), (f"{lists.suite}-skipped", skipped)]
    return [(name, cases) for name, cases in parts if cases]


def _wanted(lists: Expected, options: argparse.Namespace) -> list[Case]:
    chosen = lists.subset if options.subset else lists.guarded if options.guarded else lists.cases
    apart = lists.alone if options.brokers > 1 else frozenset()
    return [case for case in chosen if options.only in case.name and case not in apart]


if __name__ == "__main__":
    sys.exit(main())
