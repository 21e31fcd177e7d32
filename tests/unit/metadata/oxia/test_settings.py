"""The URL of the store."""

import pytest

from lakestream.errors import Misconfigured
from lakestream.metadata.oxia import OxiaSettings


def test_url_with_an_address_and_a_namespace_is_parsed() -> None:
    settings = OxiaSettings.from_url("oxia://oxia.example:6648/lake")
    assert settings.addresses == ("oxia.example:6648",)
    assert settings.namespace == "lake"


def test_url_with_several_addresses_has_the_default_namespace() -> None:
    settings = OxiaSettings.from_url("oxia://a:1,b:2")
    assert settings.addresses == ("a:1", "b:2")
    assert str(settings) == "oxia://a:1,b:2/default"


def test_patient_settings_differ_only_in_their_timeouts() -> None:
    settings = OxiaSettings.from_url("oxia://a:1/ns")
    patient = settings.patient()
    assert patient.request_timeout_ms > settings.request_timeout_ms
    assert patient.retry_budget_ms > settings.retry_budget_ms
    assert str(patient) == str(settings)


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
def test_invalid_url_is_misconfigured_with_an_example(url: str) -> None:
    with pytest.raises(Misconfigured, match="oxia://"):
        OxiaSettings.from_url(url)
