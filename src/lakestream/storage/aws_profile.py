"""Reads credentials and region from the files of the AWS command line (~/.aws), which obstore does not read.

Used only if the environment has no credentials. Profiles that need a role, a login page or a program are not supported:
export the credentials that the AWS tools return into the environment.
"""

from collections.abc import Mapping
from configparser import ConfigParser, Error
from pathlib import Path
from typing import TYPE_CHECKING

from lakestream.errors import Misconfigured

if TYPE_CHECKING:
    from obstore.store import S3Config

_NAMES_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)


def profile_settings(environ: Mapping[str, str]) -> "S3Config":
    home = Path(environ.get("HOME", "/")) / ".aws"
    profile = environ.get("AWS_PROFILE", "default")
    settings: S3Config = {}
    if not any(environ.get(name) for name in _NAMES_CREDENTIALS):
        credentials = _section(Path(environ.get("AWS_SHARED_CREDENTIALS_FILE", home / "credentials")), profile)
        if "aws_access_key_id" in credentials and "aws_secret_access_key" in credentials:
            settings["access_key_id"] = credentials["aws_access_key_id"]
            settings["secret_access_key"] = credentials["aws_secret_access_key"]
            if "aws_session_token" in credentials:
                settings["session_token"] = credentials["aws_session_token"]
    if not environ.get("AWS_REGION") and not environ.get("AWS_DEFAULT_REGION"):
        section = profile if profile == "default" else f"profile {profile}"
        region = _section(Path(environ.get("AWS_CONFIG_FILE", home / "config")), section).get("region")
        if region:
            settings["region"] = region
    return settings


def _section(path: Path, name: str) -> Mapping[str, str]:
    parser = ConfigParser(default_section="", interpolation=None)
    try:
        parser.read(path)
    except (Error, OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"cannot read {path}: {str(error).splitlines()[0]}") from error
    return parser[name] if parser.has_section(name) else {}
