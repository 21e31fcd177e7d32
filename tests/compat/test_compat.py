"""A part of `make compat` that fits into `make test`: tests of other projects that must pass, chosen for breadth.

Also what is true of the lists: every test of both suites is in one, and docs/compat.md is written from them.
"""

from collections.abc import Iterator

import pytest
from tests.compat import report
from tests.compat.judge import unlisted
from tests.compat.lists import SUITES, expected
from tests.compat.model import Cluster
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
def test_the_subset_passes(suite: str, brokers: Cluster) -> None:
    lists = expected(suite)
    judged = list(run(lists.subset, lists, brokers, patience=PATIENCE))
    assert len(judged) == len(lists.subset) > 0
    assert [report.line(one) for one in judged if one.verdict.is_bad] == []


def test_every_test_of_the_suite_is_in_a_list(suite: str) -> None:
    assert [report.line(one) for one in unlisted(all_tests(suite), expected(suite))] == []


def test_the_page_is_written_from_the_lists() -> None:
    assert report.PAGE.read_text() == report.page(), "run python -m tests.compat --page"
