"""Storage settings for clients: endpoints and regions, never credentials."""

from pathlib import Path

import pytest

from lakestream.catalog.locations import client_settings

SECRETS = {
    "AWS_ACCESS_KEY_ID": "secret-1",
    "AWS_SECRET_ACCESS_KEY": "secret-2",
    "AWS_SESSION_TOKEN": "secret-3",
    "AZURE_STORAGE_ACCOUNT_KEY": "secret-4",
    "GOOGLE_SERVICE_ACCOUNT_KEY": "secret-5",
}


@pytest.mark.parametrize("scheme", ["file", "s3", "gs", "az"])
def test_client_settings_have_no_credentials(scheme: str, tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id=secret-6\naws_secret_access_key=secret-7\n"
    )
    for environ in (SECRETS, {}):
        settings = client_settings(scheme, environ | {"HOME": str(tmp_path), "AZURE_STORAGE_ACCOUNT_NAME": "acc"})
        assert "secret" not in str(settings)


def test_client_settings_of_s3() -> None:
    here = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_REGION": "r", "HOME": "/nowhere"}
    assert client_settings("s3", here) == {
        "s3.region": "r",
        "client.region": "r",
        "s3.endpoint": "http://127.0.0.1:1",
        "s3.path-style-access": "true",
        "s3.ssl.enabled": "false",
    }
    assert client_settings("s3", {"HOME": "/nowhere"}) == {}
    by_host = here | {"AWS_ENDPOINT_URL_S3": "https://s3.x", "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "true"}
    assert client_settings("s3", by_host)["s3.path-style-access"] == "false"
    assert "s3.ssl.enabled" not in client_settings("s3", by_host)


def test_client_settings_of_other_stores() -> None:
    assert client_settings("az", {"AZURE_STORAGE_ACCOUNT_NAME": "acc"}) == {"adls.account-name": "acc"}
    assert client_settings("gs", {"GOOGLE_BASE_URL": "http://x"}) == {"gcs.service.host": "http://x"}
    assert client_settings("file", {}) == {}
