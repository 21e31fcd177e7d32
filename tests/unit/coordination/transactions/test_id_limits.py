"""Limits of transactional ids: what is counted."""

import logging

import pytest
from tests.harness.log.brokers import HandClock

from lakestream.coordination.transactions.id_limits import TooManyTransactionalIds, TransactionalIdLimits


def test_ids_are_counted_by_the_client_address_that_created_them() -> None:
    limits = TransactionalIdLimits(HandClock(), client_max=2)
    limits.create("a", "1.1.1.1")
    limits.create("b", "1.1.1.1")
    limits.note("a", "1.1.1.1")
    limits.create("c", "2.2.2.2")
    with pytest.raises(TooManyTransactionalIds, match="Transactional id 'd' is rejected: client address"):
        limits.create("d", "1.1.1.1")
    limits.forget("a")
    limits.create("d", "1.1.1.1")


def test_ids_without_a_known_client_count_only_in_the_store() -> None:
    """Records of older brokers do not contain the address."""
    limits = TransactionalIdLimits(HandClock(), store_max=3, client_max=1)
    for name in "abc":
        limits.create(name, "")
    with pytest.raises(TooManyTransactionalIds, match="the cluster has 3"):
        limits.create("d", "")


def test_count_of_the_store_replaces_what_was_added_since() -> None:
    limits = TransactionalIdLimits(HandClock(), store_max=2, client_max=1)
    limits.create("a", "1.1.1.1")
    limits.create("b", "2.2.2.2")
    limits.counted(1, {"b"})
    limits.create("c", "1.1.1.1")
    with pytest.raises(TooManyTransactionalIds):
        limits.create("d", "3.3.3.3")


def test_rejections_of_a_client_are_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    limits = TransactionalIdLimits(HandClock(), client_max=1)
    limits.create("a", "1.1.1.1")
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            with pytest.raises(TooManyTransactionalIds):
                limits.create(f"b{number}", "1.1.1.1")
    assert [line.split()[0] for line in caplog.messages] == ["transactions.id_rejected"]
    assert "limit=1" in caplog.text
