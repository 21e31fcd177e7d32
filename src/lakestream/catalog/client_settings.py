"""What a client of the catalog must know of the storage to read tables itself: where it is, never how to get in.

Credentials stay with whoever has them: every engine brings its own.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from lakestream.storage.aws_profile import profile_settings


def azure_account(environ: Mapping[str, str]) -> str:
    return environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")


def client_settings(scheme: str, environ: Mapping[str, str]) -> dict[str, str]:
    """In the words of Iceberg's file readers, Java's and pyiceberg's."""
    match scheme:
        case "s3":
            return _s3(environ)
        case "gs":
            return _named("gcs.service.host", environ.get("GOOGLE_BASE_URL", ""))
        case "az":
            return _named("adls.account-name", azure_account(environ))
        case _:
            return {}


def _s3(environ: Mapping[str, str]) -> dict[str, str]:
    names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    endpoint = next((value for name in names if (value := environ.get(name))), "")
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or profile_settings(environ).get("region")
    settings = _named("s3.region", region or "") | _named("client.region", region or "")
    if not endpoint:
        return settings
    by_host = environ.get("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", "").lower() == "true"
    settings |= {"s3.endpoint": endpoint, "s3.path-style-access": "false" if by_host else "true"}
    if urlsplit(endpoint).scheme == "http":
        settings["s3.ssl.enabled"] = "false"
    return settings


def _named(name: str, value: str) -> dict[str, str]:
    return {name: value} if value else {}
