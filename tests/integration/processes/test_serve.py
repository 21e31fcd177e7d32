"""`lakestream serve` as users run it: a process that is started, used, stopped, killed and restarted."""

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.harness.processes.serve import (
    COMMAND,
    WAIT_S,
    Server,
    cli,
    environment,
    error_of,
    is_running,
    output_of,
    serving,
    two_free_ports,
    wait_until,
)

from lakestream.testing.processes import free_port


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("serve")) as running:
        yield running


# One process


def test_serve_prints_its_addresses_exits_with_zero_and_keeps_records_over_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        output = first.output()
        assert f"Kafka     127.0.0.1:{first.kafka}\n" in output
        assert f"HTTP      http://{first.http}\n" in output
        assert str(tmp_path / "data") in output
        assert len(first.children()) == 2  # a broker, and HTTP
        output_of("topic", "create", "t", "--partitions", "1", "--bootstrap", first.bootstrap)
        output_of("produce", "t", "--bootstrap", first.bootstrap, stdin=b"before\n")
        assert first.stop() == 0
        assert first.output().endswith("stopping\n")
    with serving(tmp_path, kafka=first.kafka, http=first.http) as second:
        output_of("produce", "t", "--bootstrap", second.bootstrap, stdin=b"after\n")
        assert output_of("consume", "t", "--no-follow", "--bootstrap", second.bootstrap) == "before\nafter\n"
        second.process.send_signal(signal.SIGINT)
        assert second.wait_ended() == 0


def test_acknowledged_records_are_kept_when_serve_is_killed(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        output_of("produce", "t", "--bootstrap", first.bootstrap, stdin=b"one\ntwo\n")
        first.process.kill()
        first.wait_ended()
    with serving(tmp_path, kafka=first.kafka) as second:
        values = output_of("consume", "t", "--no-follow", "--bootstrap", second.bootstrap)
        assert sorted(values.split()) == ["one", "two"]


def test_serve_stops_while_consumers_wait_for_records(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        output_of("topic", "create", "t", "--bootstrap", server.bootstrap)
        follow = [*COMMAND, "consume", "t", "--bootstrap", server.bootstrap]
        with subprocess.Popen(follow, stdout=subprocess.PIPE, env=environment()) as consumer:
            wait_until(lambda: server.metric("lakestream_log_partitions_with_waiting_fetches") > 0)
            start_s = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - start_s < 15
            consumer.kill()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_error_is_one_line_when_a_port_is_in_use(server: Server, tmp_path: Path, workers: str) -> None:
    flags = ["--data-dir", str(tmp_path), "--workers", workers]
    error = error_of("serve", *flags, "--kafka", server.bootstrap, "--http", "127.0.0.1:0")
    assert f"cannot listen on {server.bootstrap} (address already in use): choose another with --kafka" in error
    error = error_of("serve", *flags, "--kafka", "127.0.0.1:0", "--http", server.http)
    assert f"cannot listen on {server.http} (address already in use)" in error


def test_error_is_one_line_when_a_setting_is_invalid(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "did you mean --kafka?" in error_of("serve", "--kakfa", "x", code=2)
    assert "--kafka 'x': write it as host:port" in error_of("serve", "--kafka", "x", "--data-dir", str(tmp_path))
    assert "--data-dir" in error_of("serve", "--data-dir", str(file / "x"), "--kafka", "127.0.0.1:0", "--http", "off")
    assert "--workers" in error_of("broker", "--workers", "none")
    assert "no port 65536 for worker 1" in error_of("broker", "--workers", "2", "--kafka", "127.0.0.1:65535")


# HTTP


def test_health_probes_return_ok_when_serve_is_ready(server: Server) -> None:
    assert server.get("/healthz") == (200, '{"status":"ok"}')
    assert server.get("/readyz") == (200, '{"status":"ready"}')


def test_errors_of_unknown_paths_and_methods_are_json(server: Server) -> None:
    status, body = server.get("/nowhere")
    assert (status, json.loads(body)) == (404, {"error": "GET /nowhere: not found"})
    status, body = server.get("/healthz", method="POST")
    assert (status, json.loads(body)) == (405, {"error": "POST /healthz: method not allowed"})


def test_requests_of_other_sites_are_rejected(server: Server) -> None:
    """A browser sends such requests for any page without a preflight: forms, and `fetch` in the mode `no-cors`."""
    schema = {"type": "struct", "fields": [{"id": 1, "name": "a", "type": "int", "required": False}]}
    tables = "/v1/namespaces/default/tables"
    assert server.post(tables, {"name": "mine", "schema": schema}, content_type="application/json").status == 200
    identifiers = [{"namespace": ["default"], "name": name} for name in ("mine", "stolen")]
    rename = dict(zip(("source", "destination"), identifiers, strict=True))
    register = {"schema": '"string"'}
    for path, body in (("/v1/tables/rename", rename), ("/subjects/stolen-value/versions", register)):
        headers_of_a_form = {"content_type": "text/plain", "origin": "http://evil.example"}
        assert server.post(path, body, **headers_of_a_form).status == 403
        assert server.post(path, body, content_type="application/json", origin="null").status == 403
        assert server.post(path, body, content_type="text/plain").status == 415
        assert server.post(path, body, content_type="application/json", host="evil.example").status == 421
    assert server.get(f"{tables}/mine")[0] == 200
    assert server.get("/subjects") == (200, "[]")


def test_requests_with_a_foreign_host_are_rejected(server: Server) -> None:
    """With DNS rebinding, the page and this server have the same origin for the browser; the Host is that of the
    page."""
    for path in ("/subjects", "/v1/namespaces", "/metrics", "/"):
        assert server.send("GET", path, host="evil.example").status == 421
    assert server.send("GET", "/healthz", host="evil.example").status == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST."])
def test_requests_with_any_name_of_the_loopback_address_are_accepted(server: Server, host: str) -> None:
    port = server.http.rpartition(":")[2]
    assert server.send("GET", "/subjects", host=f"{host}:{port}").status == 200
    origin = f"http://{host.lower().rstrip('.')}:{port}"
    compatibility = {"compatibility": "BACKWARD"}
    response = server.send(
        "PUT", "/config", compatibility, host=f"{host}:{port}", origin=origin, content_type="application/json"
    )
    assert response.status == 200
    assert not [name for name, _ in response.getheaders() if name.lower().startswith("access-control-")]


def test_only_configured_hosts_and_addresses_are_accepted_when_listening_on_all_addresses(tmp_path: Path) -> None:
    names = ["--http-hosts", "lake.example.com,*.svc.cluster.local", "--advertise", "advertised.example.com"]
    with serving(tmp_path, *names, http=f"0.0.0.0:{free_port()}") as server:
        expected = {
            "lake.example.com": 200,
            "lakestream.default.svc.cluster.local:8080": 200,
            "advertised.example.com": 200,
            socket.gethostname(): 200,
            "192.0.2.7": 200,
            "[2001:db8::1]:8080": 200,
            "localhost": 200,
            "evil.example": 421,
            "svc.cluster.local.evil.example": 421,
        }
        assert {host: server.send("GET", "/metrics", host=host).status for host in expected} == expected


def test_metrics_count_produced_and_consumed_records(server: Server) -> None:
    topic = "measured"
    before = server.metric("lakestream_log_appended_records_total")
    output_of("produce", topic, "--bootstrap", server.bootstrap, stdin=b"x" * 1000 + b"\ny\nz\n")
    output_of("consume", topic, "--no-follow", "--bootstrap", server.bootstrap)
    assert server.metric("lakestream_log_appended_records_total") - before == 3
    assert server.metric("lakestream_kafka_request_seconds_count", request="Produce", outcome="ok") >= 1
    assert server.metric("lakestream_kafka_request_bytes_total", request="Produce") > 1000
    assert server.metric("lakestream_kafka_response_bytes_total", request="Fetch") > 1000
    assert server.metric("lakestream_log_claims_total") >= 1
    assert server.metric("lakestream_log_cached_partitions") >= 1
    assert server.metric("lakestream_process_resident_bytes", worker="0") > 0
    assert server.metric("lakestream_broker_info") == 1
    for line in server.get("/metrics")[1].splitlines():
        assert line.startswith(("# HELP lakestream_", "# TYPE lakestream_", "lakestream_")), line


def test_serve_is_not_ready_while_its_storage_is_unavailable(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        storage = tmp_path / "data" / "storage"
        storage.rename(tmp_path / "away")
        storage.write_text("no folder")
        wait_until(lambda: server.get("/readyz")[0] == 503)
        readiness = json.loads(server.get("/readyz")[1])
        assert readiness["status"] == "not ready"
        assert list(readiness["reasons"]) == ["storage"]
        assert server.get("/healthz")[0] == 200
        storage.unlink()
        (tmp_path / "away").rename(storage)
        wait_until(lambda: server.get("/readyz")[0] == 200)


def test_brokers_serve_kafka_and_probes_while_http_is_stopped_or_killed(tmp_path: Path) -> None:
    probe = f"127.0.0.1:{free_port()}"
    with serving(tmp_path, "--probe", probe) as server:
        assert f"probes    http://{probe}\n" in server.output()
        broker, http = server.children()
        os.kill(http, signal.SIGSTOP)
        output_of("produce", "t", "--bootstrap", server.bootstrap, stdin=b"one\n")
        for path, content in (("/healthz", "ok"), ("/readyz", "ready"), ("/metrics", "lakestream_broker_info")):
            with urllib.request.urlopen(f"http://{probe}{path}", timeout=WAIT_S) as response:
                assert content in response.read().decode()
        os.kill(http, signal.SIGKILL)
        wait_until(lambda: len(server.children()) == 2 and http not in server.children())
        assert broker in server.children()
        assert "process.ended http" in server.output()
        wait_until(lambda: is_listening(server.http))
        assert server.get("/readyz")[0] == 200
        assert output_of("consume", "t", "--no-follow", "--bootstrap", server.bootstrap) == "one\n"


def test_http_is_not_ready_and_serves_the_catalog_while_its_broker_hangs(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        broker, _ = server.children()
        os.kill(broker, signal.SIGSTOP)
        status, body = server.get("/readyz")
        assert (status, list(json.loads(body)["reasons"])) == (503, ["broker 0"])
        assert server.get("/v1/namespaces")[0] == 200
        assert 'worker="http"' in server.get("/metrics")[1]
        os.kill(broker, signal.SIGCONT)
        wait_until(lambda: server.get("/readyz")[0] == 200)


def test_http_processes_serve_the_same_catalog_without_a_broker(tmp_path: Path) -> None:
    data = ["--data-dir", str(tmp_path / "data")]
    with serving(tmp_path) as server:
        output_of("topic", "create", "t", "--bootstrap", server.bootstrap)
        log = tmp_path / "http.log"
        address = f"127.0.0.1:{free_port()}"
        with log.open("wb") as out:
            command = [*COMMAND, "http", "--http", address, *data]
            other = subprocess.Popen(command, stdout=out, stderr=out, env=environment(), start_new_session=True)
        try:
            wait_until(lambda: "\nready" in log.read_text())
            assert f"HTTP      http://{address}\n" in log.read_text()
            assert "Kafka" not in log.read_text()
            schema = {"schema": '"string"'}
            assert server.post("/subjects/s/versions", schema, content_type="application/json").status == 200
            with urllib.request.urlopen(f"http://{address}/subjects", timeout=WAIT_S) as response:
                assert response.read() == b'["s"]'
            with urllib.request.urlopen(f"http://{address}/readyz", timeout=WAIT_S) as response:
                assert response.status == 200
        finally:
            other.terminate()
            assert other.wait(WAIT_S) == 0


def is_listening(address: str) -> bool:
    host, port = address.split(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


# Workers

TWO = ["--workers", "2"]


def test_two_workers_are_two_brokers_and_a_killed_worker_is_restarted(tmp_path: Path) -> None:
    with serving(tmp_path, *TWO, kafka=two_free_ports()) as server:
        other = f"127.0.0.1:{server.kafka + 1}"
        assert f"Kafka     {server.bootstrap}, {other}\n" in server.output()
        output_of("topic", "create", "t", "--partitions", "1", "--bootstrap", server.bootstrap)
        output_of("produce", "t", "--bootstrap", other, stdin=b"one\n")
        assert output_of("consume", "t", "--no-follow", "--bootstrap", server.bootstrap) == "one\n"
        wait_until(lambda: server.metric("lakestream_broker_info") == 2)

        first, second, http = server.children()
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: len(server.children()) == 3 and second not in server.children())
        assert {first, http} < set(server.children())
        wait_until(lambda: cli("topic", "list", "--bootstrap", other).returncode == 0)
        assert server.output().count("process.ended worker=1") == 1
        assert "killed_by=SIGKILL" in server.output()
        assert output_of("consume", "t", "--no-follow", "--bootstrap", other) == "one\n"

        children = server.children()
        assert server.stop() == 0
        assert not any(map(is_running, children))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_workers_end_when_the_parent_process_ends(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path, *TWO, kafka=two_free_ports()) as server:
        children = server.children()
        assert len(children) == 3
        server.process.send_signal(number)
        assert server.wait_ended() == (-9 if number == signal.SIGKILL else 0)
        wait_until(lambda: not any(map(is_running, children)))


def test_serve_exits_with_zero_when_a_signal_reaches_all_its_processes(tmp_path: Path) -> None:
    """Ctrl-C signals all processes of a terminal, and service managers all processes of a service."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with serving(tmp_path, *TWO, kafka=two_free_ports()) as server:
            os.killpg(server.process.pid, number)
            assert server.wait_ended() == 0, server.output()


# Commands over Kafka


def test_topic_is_created_listed_altered_described_and_deleted(server: Server) -> None:
    bootstrap = ["--bootstrap", server.bootstrap]
    assert output_of("topic", "create", "life", "--partitions", "2", "--set", "retention.ms=60000", *bootstrap) == (
        "topic life with 2 partitions\n"
    )
    assert "already exists" in error_of("topic", "create", "life", *bootstrap)
    assert "did you mean 'retention.ms'?" in error_of("topic", "create", "x", "--set", "retention.m=1", *bootstrap)
    listed = json.loads(output_of("topic", "list", "--json", *bootstrap))
    assert [one["partitions"] for one in listed if one["topic"] == "life"] == [2]
    assert "life" in output_of("topic", "list", *bootstrap)
    output_of(
        "topic",
        "alter",
        "life",
        "--partitions",
        "3",
        "--set",
        "max.message.bytes=5000",
        "--unset",
        "retention.ms",
        *bootstrap,
    )
    description = json.loads(output_of("topic", "describe", "life", "--json", *bootstrap))
    assert [
        (partition["partition"], partition["start"], partition["end"]) for partition in description["partitions"]
    ] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]
    assert description["settings"]["max.message.bytes"] == {"value": "5000", "set": True}
    assert description["settings"]["retention.ms"] == {"value": "604800000", "set": False}
    assert "max.message.bytes" in output_of("topic", "describe", "life", *bootstrap)
    assert "nothing to change" in error_of("topic", "alter", "life", *bootstrap)
    assert output_of("topic", "delete", "life", *bootstrap) == "topic life deleted\n"
    assert "topic life does not exist" in error_of("topic", "describe", "life", *bootstrap)
    assert "topic life does not exist" in error_of("consume", "life", *bootstrap)


def test_records_are_unchanged_when_the_json_of_consume_is_produced(server: Server) -> None:
    """Keys, a header name twice, null, and bytes that are not text."""
    bootstrap = ["--bootstrap", server.bootstrap]
    for topic in ("source", "copy"):
        output_of("topic", "create", topic, "--partitions", "2", *bootstrap)
    records: list[dict[str, Any]] = [
        {
            "key": "k",
            "value": "v",
            "headers": [["h", "1"], ["h", None]],
            "partition": 1,
            "timestamp": 1_700_000_000_000,
        },
        {"key": None, "value": None, "headers": [], "partition": 0, "timestamp": 1_700_000_000_001},
        {"key": {"base64": "/w=="}, "value": "", "headers": [], "partition": 0, "timestamp": 1_700_000_000_002},
    ]
    text = "".join(json.dumps(record) + "\n" for record in records)
    assert output_of("produce", "source", "--json", *bootstrap, stdin=text.encode()) == "3 records acknowledged\n"
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        dumped = output_of("consume", "source", "--json", "--no-follow", *bootstrap)
        assert output_of("produce", "copy", "--json", "--compression", codec, *bootstrap, stdin=dumped.encode()) == (
            "3 records acknowledged\n"
        )
    copied = lines(
        output_of("consume", "copy", "--json", "--no-follow", "--partition", "0", "--count", "2", *bootstrap)
    )
    assert [{**record, "offset": 0} for record in copied] == [{**record, "offset": 0} for record in records[1:]]


def test_consume_starts_at_an_offset_a_time_or_an_end(server: Server) -> None:
    bootstrap = ["--bootstrap", server.bootstrap]
    output_of("topic", "create", "places", "--partitions", "1", *bootstrap)
    text = "".join(json.dumps({"value": str(n), "timestamp": 1_700_000_000_000 + n * 60_000}) + "\n" for n in range(5))
    output_of("produce", "places", "--json", *bootstrap, stdin=text.encode())

    def values(*flags: str) -> str:
        return output_of("consume", "places", *flags, *bootstrap).replace("\n", "")

    assert values("--no-follow") == "01234"
    assert values("--no-follow", "--from", "3") == "34"
    assert values("--no-follow", "--from", "end") == ""
    assert values("--no-follow", "--from", "2023-11-14T22:15:00Z") == "234"
    assert values("--from", "start", "--count", "2") == "01"
    assert "it has 0 to 5 in partition 0" in error_of("consume", "places", "--from", "99", *bootstrap)
    assert "give start, end" in error_of("consume", "places", "--from", "then", *bootstrap)
    assert "no partition 7" in error_of("consume", "places", "--partition", "7", *bootstrap)


def test_following_consumer_prints_new_records_and_ends_silently_when_its_output_is_closed(server: Server) -> None:
    bootstrap = ["--bootstrap", server.bootstrap]
    output_of("topic", "create", "tail", *bootstrap)
    follow = [*COMMAND, "consume", "tail", "--from", "end", "--key-separator", "=", *bootstrap]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        wait_until(lambda: server.metric("lakestream_log_partitions_with_waiting_fetches") > 0)
        output_of("produce", "tail", "--key-separator", ":", *bootstrap, stdin=b"k:v:w\n")
        assert consumer.stdout.readline() == b"k=v:w\n"
        consumer.stdout.close()
        output_of("produce", "tail", *bootstrap, stdin=b"not read\n" * 10)
        consumer.wait(WAIT_S)
        assert consumer.stderr.read() == b""


def test_produce_reports_records_that_were_not_acknowledged(server: Server) -> None:
    bootstrap = ["--bootstrap", server.bootstrap]
    output_of("topic", "create", "small", "--partitions", "1", "--set", "max.message.bytes=1000", *bootstrap)
    ended = cli("produce", "small", *bootstrap, stdin=b"x" * 5000 + b"\n")
    assert ended.returncode == 1
    assert ended.stdout == b"0 records acknowledged\n"
    assert ended.stderr.decode().startswith("lakestream: 1 record not acknowledged: ")
    ended = cli("produce", "small", "--key-separator", ":", *bootstrap, stdin=b"k:v\nno key\n")
    assert (ended.returncode, ended.stdout) == (1, b"1 record acknowledged\n")
    assert ended.stderr.decode() == "lakestream: line 2: no key: separator ':' is missing\n"
    assert "line 1: not JSON" in cli("produce", "small", "--json", *bootstrap, stdin=b"{\n").stderr.decode()


@pytest.mark.alone
def test_error_is_one_line_within_five_seconds_when_the_broker_is_unreachable(server: Server) -> None:
    unreachable = f"127.0.0.1:{free_port()}"
    for arguments in (["topic", "list"], ["produce", "t"], ["consume", "t"]):
        start_s = time.monotonic()
        assert "connection refused" in error_of(*arguments, "--bootstrap", unreachable)
        assert time.monotonic() - start_s < 5
    start_s = time.monotonic()
    assert "no Kafka broker responds" in error_of("topic", "list", "--bootstrap", server.http)
    assert time.monotonic() - start_s < 8
