"""Every store has a URL, and an invalid URL gives one line of error message. No request is sent."""

import json
from pathlib import Path

import pytest

from lakestream.clock import RandomIds, SystemClock
from lakestream.errors import Misconfigured
from lakestream.storage.aws_profile import profile_settings
from lakestream.storage.local_store import FileStore
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.obstore_store import RemoteStore
from lakestream.storage.open_store import body_needs_no_signature, open_store


def opened(url: str) -> ObjectStore:
    return open_store(url, SystemClock(), RandomIds())


@pytest.fixture(autouse=True)
def _account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    key = {"disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", json.dumps(key))


@pytest.mark.parametrize("url", ["s3://lake", "s3://lake/", "s3://lake/a/b", "gs://lake/a", "az://lake/a/b/"])
def test_bucket_urls_open_a_remote_store(url: str) -> None:
    assert isinstance(opened(url), RemoteStore)


async def test_file_url_opens_a_local_store(tmp_path: Path) -> None:
    store = opened(f"file://{tmp_path}/with%20space")
    assert isinstance(store, FileStore)
    await store.put("k", [b"x"])
    await store.close()
    assert (tmp_path / "with space" / "k").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("s4://lake/x", 'unknown scheme "s4"; did you mean s3://lake/x?'),
        ("s3a://lake/x", 'unknown scheme "s3a"; did you mean s3://lake/x?'),
        ("gcs://lake", 'unknown scheme "gcs"; did you mean gs://lake?'),
        ("abfss://lake", 'unknown scheme "abfss"; did you mean az://lake?'),
        ("azure://lake", 'unknown scheme "azure"; did you mean az://lake?'),
        ("memory://x", 'unknown scheme "memory"; use file:///path, s3://, gs:// or az://'),
        ("http://x", 'unknown scheme "http"; use file:///path, s3://, gs:// or az://'),
        ("fil:///x", 'unknown scheme "fil"; use file:///path'),
        ("/var/lake", "no scheme; did you mean file:///var/lake?"),
        ("s3:///x", "names no bucket: write s3://bucket/prefix"),
        ("s3://", "names no bucket: write s3://bucket/prefix"),
        ("file://var/lake", "give an absolute path with three slashes, as file:///var/lake"),
        ("file:var/lake", "give an absolute path with three slashes"),
        ("s3://lake/a/../b", "has the segment '..'"),
        ("s3://lake/a//b", "has the segment ''"),
        ("s3://lake/a?region=x", "remove what follows the path"),
        ("s3://lake/a#b", "remove what follows the path"),
        ("s3://[lake/a", "Invalid IPv6 URL"),
        ("", "no scheme"),
    ],
)
def test_invalid_url_is_misconfigured_with_one_line(url: str, message: str) -> None:
    with pytest.raises(Misconfigured) as raised:
        opened(url)
    text = str(raised.value)
    assert message in text
    assert "\n" not in text


def test_credentials_in_the_url_are_rejected_and_not_repeated() -> None:
    with pytest.raises(Misconfigured, match="credentials go into the environment") as raised:
        opened("s3://key:hunter2@lake/x")
    assert "hunter2" not in str(raised.value)


def test_azure_url_is_misconfigured_without_an_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME")
    with pytest.raises(Misconfigured, match="Check the settings in the environment") as raised:
        opened("az://lake")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("key", ["not json", "[]", '"text"'])
def test_invalid_google_key_is_misconfigured(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", key)
    with pytest.raises(Misconfigured, match=r"GOOGLE_SERVICE_ACCOUNT_KEY is not the JSON") as raised:
        opened("gs://lake")
    assert key not in str(raised.value)


@pytest.mark.parametrize(
    ("endpoint", "safe"),
    [
        (None, True),
        ("https://s3.example.com", True),
        ("http://127.0.0.1:9000", True),
        ("http://[::1]:9000", True),
        ("http://localhost:9000", True),
        ("http://10.0.0.5:9000", False),
        ("http://minio:9000", False),
        ("http://localhost.example.com", False),
    ],
)
def test_body_is_unsigned_only_with_tls_or_on_loopback(endpoint: str | None, safe: bool) -> None:
    assert body_needs_no_signature(endpoint) is safe


# Profiles of the AWS command line


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text(
        "[default]\naws_access_key_id = A\naws_secret_access_key = a%b\n\n"
        "[work]\naws_access_key_id = W\naws_secret_access_key = w\naws_session_token = t\n"
    )
    (tmp_path / ".aws/config").write_text("[default]\nregion = eu-west-1\n[profile work]\nregion = eu-north-1\n")
    return tmp_path


def test_default_aws_profile_is_read(home: Path) -> None:
    settings = profile_settings({"HOME": str(home)})
    assert settings == {"access_key_id": "A", "secret_access_key": "a%b", "region": "eu-west-1"}


def test_named_aws_profile_is_read(home: Path) -> None:
    settings = profile_settings({"HOME": str(home), "AWS_PROFILE": "work"})
    assert settings == {"access_key_id": "W", "secret_access_key": "w", "session_token": "t", "region": "eu-north-1"}


def test_environment_overrides_the_aws_profile(home: Path) -> None:
    assert profile_settings({"HOME": str(home), "AWS_ACCESS_KEY_ID": "E", "AWS_REGION": "us-west-2"}) == {}
    assert profile_settings({"HOME": str(home), "AWS_WEB_IDENTITY_TOKEN_FILE": "/t"}) == {"region": "eu-west-1"}


def test_aws_profile_is_empty_without_files_and_misconfigured_when_unreadable(tmp_path: Path) -> None:
    assert profile_settings({"HOME": str(tmp_path)}) == {}
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/credentials").write_text("no section = x\n")
    with pytest.raises(Misconfigured, match=r"cannot read .*\.aws/credentials") as raised:
        profile_settings({"HOME": str(tmp_path)})
    assert "\n" not in str(raised.value)
