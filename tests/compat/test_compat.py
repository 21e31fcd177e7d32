"""The part of `make compat` that is in `make test`: tests of other projects that must pass, selected for breadth.

Also checks that every test of both suites is in a list, and that docs/compat.md is written from the lists.
"""

from collections.abc import Iterator

import pytest
from tests.compat import report
from tests.compat.lists import SUITES, expected
from tests.compat.model import Cluster
from tests.compat.result_checker import unlisted
from tests.compat.run import all_tests, cluster, run

from lakestream.errors import Misconfigured

PATIENCE = 3.0


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("compat")) as opened:
        yield opened


@pytest.fixture(params=SUITES)
def suite(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    try:
        all_tests(name)
    except Misconfigured as error:
        pytest.skip(str(error))
    return name


@pytest.mark.timeout(900)
def test_subset_of_the_suite_passes(suite: str, brokers: Cluster) -> None:
    lists = expected(suite)
    results = list(run(lists.subset, lists, brokers, patience=PATIENCE))
    assert len(results) == len(lists.subset) > 0
    assert [report.line(result) for result in results if result.verdict.is_bad] == []


def test_every_test_of_the_suite_is_in_a_list(suite: str) -> None:
    assert [report.line(result) for result in unlisted(all_tests(suite), expected(suite))] == []


def test_docs_page_matches_the_lists() -> None:
    assert report.PAGE.read_text() == report.page(), "run python -m tests.compat --page"
