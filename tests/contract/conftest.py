"""Fixtures that all contract tests of a run share."""

from collections.abc import Iterator

import pytest
from tests.harness.stores.metadata_backends import SHARED_OXIA


@pytest.fixture(scope="session", autouse=True)
def shared_servers() -> Iterator[None]:
    yield
    SHARED_OXIA.close()
