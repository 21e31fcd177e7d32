import argparse
import re
from pathlib import Path

import pytest

from lakestream.cli.options import (
    BROKER_OPTIONS,
    PIPELINE_OPTIONS,
    SERVE_OPTIONS,
    STORE_OPTIONS,
    Option,
    add_options,
    settings_of,
)
from lakestream.cli.serve import for_worker
from lakestream.config.settings import Profile, Settings
from lakestream.errors import Misconfigured


def settings(
    *words: str, environment: dict[str, str] | None = None, options: tuple[Option, ...] = BROKER_OPTIONS
) -> Settings:
    parser = argparse.ArgumentParser()
    add_options(parser, options)
    return settings_of(parser.parse_args(words), environment or {}, options)


def test_flag_overrides_environment_which_overrides_file(tmp_path: Path) -> None:
    file = tmp_path / "l.toml"
    file.write_text('kafka = "f:1"\nhttp = "f:2"\nworkers = 3\nprofile = "cost"\n')
    found = settings(
        "--kafka", "a:1", "--config", str(file), environment={"LAKESTREAM_KAFKA": "e:1", "LAKESTREAM_HTTP": "e:2"}
    )
    assert (found.kafka, found.http, found.workers, found.profile) == ("a:1", "e:2", 3, Profile.COST)


def test_options_of_other_commands_are_read_from_file_and_environment(tmp_path: Path) -> None:
    file = tmp_path / "l.toml"
    file.write_text("workers = 2\n")
    found = settings("--config", str(file), environment={"LAKESTREAM_ZONE": "a"}, options=STORE_OPTIONS)
    assert (found.workers, found.zone) == (2, "a")


def test_http_off_disables_http() -> None:
    assert settings("--http", "off").http == ""
    assert settings().http == "127.0.0.1:8080"


def test_host_names_are_normalized() -> None:
    assert settings().http_hosts == ()
    found = settings("--http-hosts", "Lake.example.com., *.Example.org,[::1],10.0.0.7")
    assert found.http_hosts == ("lake.example.com", "*.example.org", "::1", "10.0.0.7")


@pytest.mark.parametrize("text", ["http://lake", "lake:8080", "lake/x", "a,,b", "*", "a.*.b", "lake example"])
def test_host_name_with_scheme_port_or_path_is_rejected(text: str) -> None:
    with pytest.raises(Misconfigured, match=r"is not a host name: write it without a scheme, a port or a path"):
        settings("--http-hosts", text)


def test_topics_are_auto_created_by_default() -> None:
    assert settings().auto_create_topics
    assert not settings("--auto-create-topics", "no").auto_create_topics


@pytest.mark.parametrize(
    ("toml", "error"),
    [
        ("workrs = 2", "did you mean 'workers'?"),
        ("workers = true", "as text in quotes"),
        ("workers = 0", "not a positive whole number"),
        ("workers = 100000", "use the number of cores"),
        ('profile = "fast"', "profile in {file}: 'fast' is unknown: use one of cost, latency"),
        ('profile = "quick"', "use one of cost, latency"),
        ('auto_create_topics = "maybe"', "'maybe' is neither yes nor no"),
        ("kafka = ", "is not TOML"),
    ],
)
def test_wrong_settings_file_is_rejected(tmp_path: Path, toml: str, error: str) -> None:
    file = tmp_path / "l.toml"
    file.write_text(toml)
    with pytest.raises(Misconfigured, match=re.escape(error.format(file=file))):
        settings("--config", str(file))


def test_unknown_environment_variable_is_rejected() -> None:
    with pytest.raises(Misconfigured, match="did you mean 'LAKESTREAM_KAFKA'"):
        settings(environment={"LAKESTREAM_KAFAK": "x"})


def test_each_worker_has_the_next_ports() -> None:
    shared = Settings(kafka="[::1]:9092", advertise="host:19092", probe="127.0.0.1:9190", workers=2)
    assert for_worker(shared, 0) == shared
    second = for_worker(shared, 1)
    assert (second.kafka, second.advertise, second.probe) == ("[::1]:9093", "host:19093", "127.0.0.1:9191")
    free = for_worker(Settings(kafka="127.0.0.1:0", advertise="host"), 1)
    assert (free.kafka, free.advertise) == ("127.0.0.1:0", "host")
    with pytest.raises(Misconfigured, match="no port 65536"):
        for_worker(Settings(kafka="h:65535"), 1)


def test_options_of_the_pipeline() -> None:
    assert settings(options=SERVE_OPTIONS).pipeline
    assert not settings("--pipeline", "no", options=SERVE_OPTIONS).pipeline
    found = settings("--interval", "250ms", "--master", "spark://h:7077", options=PIPELINE_OPTIONS)
    assert (found.interval_ms, found.master) == (250, "spark://h:7077")
    assert settings(environment={"LAKESTREAM_INTERVAL": "2m", "LAKESTREAM_PIPELINE": "no"}).interval_ms == 120_000


def test_options_of_groups_and_transactions() -> None:
    found = settings("--offsets-retention", "30d", "--transaction-timeout-max", "1h", options=SERVE_OPTIONS)
    assert (found.offsets_retention_ms, found.transaction_timeout_max_ms) == (30 * 86_400_000, 3_600_000)
    found = settings(environment={"LAKESTREAM_SESSION_TIMEOUT_MIN": "1s", "LAKESTREAM_REBALANCE_DELAY": "3s"})
    assert (found.session_timeout_min_ms, found.rebalance_delay_ms) == (1_000, 3_000)


def test_options_of_the_schema_registry() -> None:
    found = settings("--schema-versions-max", "10", "--schema-bytes-max", "2000", options=SERVE_OPTIONS)
    assert (found.schema_versions_max, found.schema_bytes_max) == (10, 2_000)


@pytest.mark.parametrize(
    ("text", "milliseconds"), [("5s", 5_000), ("1.5 s", 1_500), ("7", 7_000), ("1ms", 1), ("2h", 7_200_000)]
)
def test_durations_have_units(text: str, milliseconds: int) -> None:
    assert settings("--interval", text, options=PIPELINE_OPTIONS).interval_ms == milliseconds


@pytest.mark.parametrize("text", ["0", "0s", "-1s", "5 min", "s", "fast"])
def test_wrong_duration_is_rejected(text: str) -> None:
    with pytest.raises(Misconfigured, match="write it as 500ms"):
        settings(f"--interval={text}", options=PIPELINE_OPTIONS)
