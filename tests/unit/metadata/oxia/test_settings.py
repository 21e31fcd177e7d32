"""The URL of the store."""

import pytest

from lakestream.errors import Misconfigured
from lakestream.metadata.oxia import OxiaSettings


def test_one_address_and_a_namespace() -> None:
    settings = OxiaSettings.from_url("oxia://oxia.example:6648/lake")
    assert settings.addresses == ("oxia.example:6648",)
    assert settings.namespace == "lake"


def test_several_addresses_and_the_default_namespace() -> None:
    settings = OxiaSettings.from_url("oxia://a:1,b:2")
    assert settings.addresses == ("a:1", "b:2")
    assert str(settings) == "oxia://a:1,b:2/default"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:x",
        "oxia://",
        "oxia://host/ns",
        "oxia://host:x/ns",
        "oxia://a:1,/ns",
        "oxia://a:1/x/y",
        "oxia://a:99999/x",
    ],
)
def test_a_bad_url_says_how_to_write_it(url: str) -> None:
    with pytest.raises(Misconfigured, match="oxia://"):
        OxiaSettings.from_url(url)
