from datetime import UTC, datetime

import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END

from lakestream.cli.consume import parse_position
from lakestream.errors import Rejected


def test_position_is_a_mark_an_offset_or_a_time() -> None:
    assert parse_position("start") == OFFSET_BEGINNING
    assert parse_position("end") == OFFSET_END
    assert parse_position("12") == 12
    assert parse_position("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert isinstance(parse_position("2026-01-31"), datetime)
    with pytest.raises(Rejected, match="give start, end"):
        parse_position("-5")
