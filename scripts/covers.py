"""Lists the tests that execute a source file, from the coverage data of the last `make coverage`.

Usage: `make covers FILE=src/lakestream/data/log/claim_retry.py`.
"""

import sys
from collections import Counter
from pathlib import Path

from coverage import CoverageData


def covering(data_file: Path, source: Path) -> Counter[str]:
    """Returns the tests that execute lines of the file, each with the number of those lines."""
    data = CoverageData(basename=str(data_file))
    data.read()
    tests: Counter[str] = Counter()
    for contexts in data.contexts_by_lineno(str(source.resolve())).values():
        tests.update({context.partition("|")[0] for context in contexts if context})
    return tests


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print("usage: make covers FILE=src/lakestream/…/module.py", file=sys.stderr)
        return 2
    data_file, source = map(Path, arguments)
    if not source.is_file():
        print(f"file {source} does not exist: pass the path of a module, as src/lakestream/model.py", file=sys.stderr)
        return 2
    tests = covering(data_file, source)
    for test, lines in tests.most_common():
        print(f"{lines:5} lines  {test}")
    if not tests:
        print(f"No test in {data_file} executes {source}.")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
