"""Log lines name topics, not ids."""

import logging

import pytest

from lakestream.coordination.naming import topics_named_in_logs
from lakestream.model import PartitionId

ID = "0123456789abcdef0123456789abcdef"
OTHER = "f" * 32


def test_ids_of_topics_become_names(caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler()
    root = logging.getLogger()
    root.addHandler(handler)
    log = logging.getLogger("some.module")
    try:
        with topics_named_in_logs({ID: "orders"}.get):
            log.warning("log.history_unknown partition=%s error=%s", PartitionId(ID, 3), f"table {ID} of {OTHER}: 7 %")
            log.warning("wal/%s%s.wal", ID, "0")
        log.warning("after partition=%s", PartitionId(ID, 3))
    finally:
        root.removeHandler(handler)
    assert capsys.readouterr().err.splitlines() == [
        f"log.history_unknown partition=orders/3 error=table orders of {OTHER}: 7 %",
        f"wal/{ID}0.wal",
        f"after partition={ID}/3",
    ]
