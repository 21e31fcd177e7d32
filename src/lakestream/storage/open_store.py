"""Opens the object store of a URL: file:///path, s3://bucket/prefix, gs://bucket/prefix, az://container/prefix.

Credentials and endpoints come from the sources in docs/storage.md, never from the URL, because URLs are logged.
"""

import difflib
import json
import os
from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from lakestream.clock import Clock, Ids
from lakestream.errors import Misconfigured, Rejected
from lakestream.storage.aws_profile import profile_settings
from lakestream.storage.local_store import FileStore
from lakestream.storage.object_keys import check_key
from lakestream.storage.object_store import ObjectStore
from lakestream.storage.obstore_store import RemoteStore, client_options, no_retries

if TYPE_CHECKING:
    from obstore.store import GCSConfig, S3Config

_SCHEMES = ("file", "s3", "gs", "az")
_ALIASES = {"s3a": "s3", "s3n": "s3", "aws": "s3", "gcs": "gs", "gcp": "gs", "google": "gs", "azure": "az"}
_ALIASES |= {"abfs": "az", "abfss": "az", "wasb": "az", "wasbs": "az", "adl": "az", "local": "file", "path": "file"}


def open_store(url: str, clock: Clock, ids: Ids) -> ObjectStore:
    """Returns the store without retries, before any request. `check_store` checks whether it works."""
    parts = _split(url)
    if parts.scheme == "file":
        return FileStore(_folder_of(url, parts), clock, ids)
    bucket, prefix = _bucket_of(url, parts)
    try:
        return RemoteStore(_OPENERS[parts.scheme](bucket, prefix), f"{parts.scheme}://{bucket}")
    except (BaseError, ValueError, TypeError) as error:
        first_line = str(error).split("\n", 1)[0]
        raise Misconfigured(f'storage URL "{url}": {first_line}. Check the settings in the environment') from error


def folder_of(url: str) -> Path | None:
    """Returns the folder of a store on a disk; None for a bucket."""
    parts = _split(url)
    return _folder_of(url, parts) if parts.scheme == "file" else None


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise Misconfigured(f'storage URL "{url}": {error}') from error
    if parts.username or parts.password:
        raise Misconfigured(f"storage URL {parts.scheme}://…: credentials go into the environment, not into the URL")
    if parts.scheme not in _SCHEMES:
        raise Misconfigured(f'storage URL "{url}": {_did_you_mean(url, parts.scheme)}')
    if parts.query or parts.fragment:
        raise Misconfigured(f'storage URL "{url}": remove what follows the path; settings go into the environment')
    return parts


def _did_you_mean(url: str, scheme: str) -> str:
    if not scheme:
        return f"no scheme; did you mean file://{Path(url).absolute()}?"
    matches = difflib.get_close_matches(scheme, [*_SCHEMES, *_ALIASES], n=1, cutoff=0.4)
    match = _ALIASES.get(matches[0], matches[0]) if matches else ""
    hint = f"did you mean {match}://{url.split(':', 1)[1].lstrip('/')}?" if match and match != "file" else ""
    return f'unknown scheme "{scheme}"; {hint or "use file:///path, s3://, gs:// or az://"}'


def _folder_of(url: str, parts: SplitResult) -> Path:
    if parts.netloc or not parts.path.startswith("/"):
        raise Misconfigured(f'storage URL "{url}": give an absolute path with three slashes, as file:///var/lake')
    return Path(unquote(parts.path))


def _bucket_of(url: str, parts: SplitResult) -> tuple[str, str | None]:
    prefix = parts.path.strip("/")
    if not parts.netloc:
        raise Misconfigured(f'storage URL "{url}" names no bucket: write {parts.scheme}://bucket/prefix')
    try:
        return parts.netloc, check_key(prefix) if prefix else None
    except Rejected as error:
        raise Misconfigured(f'storage URL "{url}": {error}') from error


def _open_s3(bucket: str, prefix: str | None) -> S3Store:
    endpoint = _first_of("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
    config: S3Config = profile_settings(os.environ)
    if "AWS_UNSIGNED_PAYLOAD" not in os.environ:
        config["unsigned_payload"] = body_needs_no_signature(endpoint)
    return S3Store(
        bucket, prefix=prefix, config=config, client_options=client_options(endpoint), retry_config=no_retries()
    )


def _open_gcs(bucket: str, prefix: str | None) -> GCSStore:
    endpoint = _first_of("GOOGLE_BASE_URL") or _endpoint_in_key(os.environ.get("GOOGLE_SERVICE_ACCOUNT_KEY", ""))
    config: GCSConfig = {"base_url": endpoint} if endpoint else {}
    return GCSStore(
        bucket, prefix=prefix, config=config, client_options=client_options(endpoint), retry_config=no_retries()
    )


def _endpoint_in_key(key: str) -> str | None:
    """Returns the endpoint in a service account's key, if any. obstore uses it, so it decides whether TLS is used."""
    try:
        endpoint = json.loads(key).get("gcs_base_url") if key else None
    except (ValueError, AttributeError):
        raise Misconfigured("GOOGLE_SERVICE_ACCOUNT_KEY is not the JSON of a service account's key") from None
    return str(endpoint) if endpoint else None


def _open_azure(container: str, prefix: str | None) -> AzureStore:
    endpoint = _first_of("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    return AzureStore(container, prefix=prefix, client_options=client_options(endpoint), retry_config=no_retries())


_OPENERS: dict[str, Callable[[str, str | None], S3Store | GCSStore | AzureStore]] = {
    "s3": _open_s3,
    "gs": _open_gcs,
    "az": _open_azure,
}


def body_needs_no_signature(endpoint: str | None) -> bool:
    """Returns whether request bodies may stay unsigned: with TLS or on loopback.

    Signing the body (a SHA-256 over all of it) costs two thirds of the CPU of a put and only protects against changes
    in transit. TLS does that already, and loopback does not need it. The checksums in the objects detect accidental
    damage in any case.
    """
    if endpoint is None:
        return True  # the region's own endpoint: always TLS
    parts = urlsplit(endpoint)
    return parts.scheme == "https" or _is_loopback(parts.hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _first_of(*names: str) -> str | None:
    return next((value for name in names if (value := os.environ.get(name))), None)
