import pytest

from lakestream.cli.output.kafka_client import settings_from
from lakestream.errors import Rejected


def test_settings_are_name_value_pairs() -> None:
    assert settings_from(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in ("a", "=1"):
        with pytest.raises(Rejected, match="name=value"):
            settings_from([wrong])
