"""`lakestream serve` as users run it: a process that is started, asked, stopped, killed and started again."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lakestream.testing.processes import free_port

COMMAND = [sys.executable, "-m", "lakestream"]
WAIT_S = 30.0


class Server:
    """One `lakestream serve`, and what it said."""

    def __init__(self, folder: Path, *flags: str, kafka: int = 0, http: str = "") -> None:
        self.kafka = kafka or free_port()
        self.http = http or f"127.0.0.1:{free_port()}"
        self._out = folder / f"serve-{time.monotonic_ns()}.log"
        own = ["--data-dir", str(folder / "data"), "--kafka", f"127.0.0.1:{self.kafka}", "--http", self.http]
        own += ["--pipeline", "no"]  # but for the tests that are about it
        with self._out.open("wb") as out:
            self.process = subprocess.Popen(
                [*COMMAND, "serve", *own, *flags], stdout=out, stderr=out, env=environment(), start_new_session=True
            )

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.kafka}"

    def said(self) -> str:
        return self._out.read_text()

    def wait_ready(self) -> None:
        wait_until(lambda: "\nready" in self.said() or self.process.poll() is not None)
        assert "\nready" in self.said(), self.said()

    def wait_ended(self) -> int:
        return self.process.wait(WAIT_S)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.wait_ended()

    def children(self) -> list[int]:
        return [
            int(pid) for pid in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        ]

    def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        request = urllib.request.Request(f"http://{self.http}{path}", method=method)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the readings that have these labels."""
        wanted = [f'{label}="{value}"' for label, value in labels.items()]
        lines = [line for line in self.get("/metrics")[1].splitlines() if line.startswith((name + "{", name + " "))]
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if all(label in line for label in wanted))


@contextmanager
def serving(folder: Path, *flags: str, kafka: int = 0, http: str = "") -> Iterator[Server]:
    server = Server(folder, *flags, kafka=kafka, http=http)
    try:
        server.wait_ready()
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGKILL)
        server.process.wait()


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LAKESTREAM_")}


def cli(*words: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *words], input=stdin, capture_output=True, timeout=WAIT_S, check=False, env=environment()
    )


def done(*words: str, stdin: bytes = b"") -> str:
    """What a command that must succeed prints."""
    ended = cli(*words, stdin=stdin)
    assert (ended.returncode, ended.stderr) == (0, b""), ended
    return ended.stdout.decode()


def refused(*words: str, code: int = 1, stdin: bytes = b"") -> str:
    """The one line of a command that must fail."""
    ended = cli(*words, stdin=stdin)
    assert ended.returncode == code, ended
    said = ended.stderr.decode()
    assert said.startswith("lakestream: "), said
    assert said.count("\n") == 1, said
    return said


def wait_until(holds: Callable[[], object], wait_s: float = WAIT_S) -> None:
    until = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < until, "it did not come to that"
        time.sleep(0.02)


def runs(pid: int) -> bool:
    """A process that ended and was not waited for does not run."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def lines(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("serve")) as running:
        yield running


# ── one process ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_says_where_everything_is_stops_with_zero_and_continues(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        said = first.said()
        assert f"Kafka     127.0.0.1:{first.kafka}\n" in said
        assert f"HTTP      http://{first.http}\n" in said
        assert str(tmp_path / "data") in said
        assert first.children() == []
        done("topic", "create", "t", "--partitions", "1", "--bootstrap", first.bootstrap)
        done("produce", "t", "--bootstrap", first.bootstrap, stdin=b"before\n")
        assert first.stop() == 0
        assert first.said().endswith("stopping\n")
    with serving(tmp_path, kafka=first.kafka, http=first.http) as second:
        done("produce", "t", "--bootstrap", second.bootstrap, stdin=b"after\n")
        assert done("consume", "t", "--no-follow", "--bootstrap", second.bootstrap) == "before\nafter\n"
        second.process.send_signal(signal.SIGINT)
        assert second.wait_ended() == 0


def test_what_a_killed_one_acknowledged_is_there(tmp_path: Path) -> None:
    with serving(tmp_path) as first:
        done("produce", "t", "--bootstrap", first.bootstrap, stdin=b"one\ntwo\n")
        first.process.kill()
        first.wait_ended()
    with serving(tmp_path, kafka=first.kafka) as second:
        shown = done("consume", "t", "--no-follow", "--bootstrap", second.bootstrap)
        assert sorted(shown.split()) == ["one", "two"]


def test_it_stops_while_consumers_wait(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        done("topic", "create", "t", "--bootstrap", server.bootstrap)
        follow = [*COMMAND, "consume", "t", "--bootstrap", server.bootstrap]
        with subprocess.Popen(follow, stdout=subprocess.PIPE, env=environment()) as consumer:
            wait_until(lambda: server.metric("lakestream_log_waited_for") > 0)
            begun = time.monotonic()
            assert server.stop() == 0
            assert time.monotonic() - begun < 15
            consumer.kill()


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_port_that_is_taken_is_one_clear_line(server: Server, tmp_path: Path, workers: str) -> None:
    flags = ["--data-dir", str(tmp_path), "--workers", workers]
    said = refused("serve", *flags, "--kafka", server.bootstrap, "--http", "127.0.0.1:0")
    assert f"cannot listen on {server.bootstrap} (address already in use): choose another with --kafka" in said
    said = refused("serve", *flags, "--kafka", "127.0.0.1:0", "--http", server.http)
    assert f"cannot listen on {server.http} (address already in use)" in said


def test_wrong_settings_are_one_clear_line(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert "did you mean --kafka?" in refused("serve", "--kakfa", "x", code=2)
    assert "--kafka 'x': write it as host:port" in refused("serve", "--kafka", "x", "--data-dir", str(tmp_path))
    assert "--data-dir" in refused("serve", "--data-dir", str(file / "x"), "--kafka", "127.0.0.1:0", "--http", "off")
    assert "--workers" in refused("broker", "--workers", "none")
    assert "no port 65536 for worker 1" in refused("broker", "--workers", "2", "--kafka", "127.0.0.1:65535")


# ── HTTP ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_health(server: Server) -> None:
    assert server.get("/healthz") == (200, '{"status":"ok"}')
    assert server.get("/readyz") == (200, '{"status":"ready"}')


def test_what_is_not_there_is_said_in_json(server: Server) -> None:
    status, said = server.get("/nowhere")
    assert (status, json.loads(said)) == (404, {"error": "GET /nowhere: not found"})
    status, said = server.get("/healthz", method="POST")
    assert (status, json.loads(said)) == (405, {"error": "POST /healthz: method not allowed"})


def test_metrics_count_what_was_done(server: Server) -> None:
    topic = "measured"
    before = server.metric("lakestream_log_appended_records_total")
    done("produce", topic, "--bootstrap", server.bootstrap, stdin=b"x" * 1000 + b"\ny\nz\n")
    done("consume", topic, "--no-follow", "--bootstrap", server.bootstrap)
    assert server.metric("lakestream_log_appended_records_total") - before == 3
    assert server.metric("lakestream_kafka_request_seconds_count", request="Produce", outcome="ok") >= 1
    assert server.metric("lakestream_kafka_request_bytes_total", request="Produce") > 1000
    assert server.metric("lakestream_kafka_response_bytes_total", request="Fetch") > 1000
    assert server.metric("lakestream_log_claims_total") >= 1
    assert server.metric("lakestream_log_views") >= 1
    assert server.metric("lakestream_process_resident_bytes", worker="0") > 0
    assert server.metric("lakestream_broker_info") == 1
    for line in server.get("/metrics")[1].splitlines():
        assert line.startswith(("# HELP lakestream_", "# TYPE lakestream_", "lakestream_")), line


def test_not_ready_while_the_storage_is_away(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        storage = tmp_path / "data" / "storage"
        storage.rename(tmp_path / "away")
        storage.write_text("no folder")
        wait_until(lambda: server.get("/readyz")[0] == 503)
        said = json.loads(server.get("/readyz")[1])
        assert said["status"] == "not ready"
        assert list(said["reasons"]) == ["storage"]
        assert server.get("/healthz")[0] == 200
        storage.unlink()
        (tmp_path / "away").rename(storage)
        wait_until(lambda: server.get("/readyz")[0] == 200)


# ── workers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


TWO = ["--workers", "2"]


def two_ports() -> int:
    """The first of two that follow one another."""
    while True:
        port = free_port()
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port + 1))
            return port


def test_two_workers_are_two_brokers_and_a_killed_one_comes_back(tmp_path: Path) -> None:
    with serving(tmp_path, *TWO, kafka=two_ports()) as server:
        other = f"127.0.0.1:{server.kafka + 1}"
        assert f"Kafka     {server.bootstrap}, {other}\n" in server.said()
        done("topic", "create", "t", "--partitions", "1", "--bootstrap", server.bootstrap)
        done("produce", "t", "--bootstrap", other, stdin=b"one\n")
        assert done("consume", "t", "--no-follow", "--bootstrap", server.bootstrap) == "one\n"
        wait_until(lambda: server.metric("lakestream_broker_info") == 2)

        first, second = server.children()
        os.kill(second, signal.SIGKILL)
        wait_until(lambda: len(server.children()) == 2 and second not in server.children())
        assert first in server.children()
        wait_until(lambda: cli("topic", "list", "--bootstrap", other).returncode == 0)
        assert server.said().count("worker.ended worker=1") == 1
        assert "killed_by=SIGKILL" in server.said()
        assert done("consume", "t", "--no-follow", "--bootstrap", other) == "one\n"

        children = server.children()
        assert server.stop() == 0
        assert not any(map(runs, children))


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_worker_outlives_the_parent(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path, *TWO, kafka=two_ports()) as server:
        children = server.children()
        assert len(children) == 2
        server.process.send_signal(number)
        assert server.wait_ended() == (-9 if number == signal.SIGKILL else 0)
        wait_until(lambda: not any(map(runs, children)))


def test_a_group_that_is_told_as_a_whole_ends_well(tmp_path: Path) -> None:
    """Ctrl-C reaches all processes of a terminal, and service managers tell all of a service."""
    for number in (signal.SIGINT, signal.SIGTERM):
        with serving(tmp_path, *TWO, kafka=two_ports()) as server:
            os.killpg(server.process.pid, number)
            assert server.wait_ended() == 0, server.said()


# ── the command line over Kafka ──────────────────────────────────────────────────────────────────────────────────────


def test_a_topic_from_its_making_to_its_end(server: Server) -> None:
    at = ["--bootstrap", server.bootstrap]
    assert done("topic", "create", "life", "--partitions", "2", "--set", "retention.ms=60000", *at) == (
        "topic life with 2 partitions\n"
    )
    assert "exists already" in refused("topic", "create", "life", *at)
    assert "did you mean 'retention.ms'?" in refused("topic", "create", "x", "--set", "retention.m=1", *at)
    assert {"topic": "life", "partitions": 2} in json.loads(done("topic", "list", "--json", *at))
    assert "life" in done("topic", "list", *at)
    done(
        "topic", "alter", "life", "--partitions", "3", "--set", "max.message.bytes=5000", "--unset", "retention.ms", *at
    )
    told = json.loads(done("topic", "describe", "life", "--json", *at))
    assert [(part["partition"], part["start"], part["end"]) for part in told["partitions"]] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 0, 0),
    ]
    assert told["settings"]["max.message.bytes"] == {"value": "5000", "set": True}
    assert told["settings"]["retention.ms"] == {"value": "604800000", "set": False}
    assert "max.message.bytes" in done("topic", "describe", "life", *at)
    assert "nothing to change" in refused("topic", "alter", "life", *at)
    assert done("topic", "delete", "life", *at) == "topic life deleted\n"
    assert "there is no topic life" in refused("topic", "describe", "life", *at)
    assert "there is no topic life" in refused("consume", "life", *at)


def test_records_pass_through_unchanged(server: Server) -> None:
    """What consume prints as JSON, produce takes: keys, headers with one name twice, null, bytes that are no text."""
    at = ["--bootstrap", server.bootstrap]
    for topic in ("source", "copy"):
        done("topic", "create", topic, "--partitions", "2", *at)
    given: list[dict[str, Any]] = [
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
    text = "".join(json.dumps(record) + "\n" for record in given)
    assert done("produce", "source", "--json", *at, stdin=text.encode()) == "3 records acknowledged\n"
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        dumped = done("consume", "source", "--json", "--no-follow", *at)
        assert done("produce", "copy", "--json", "--compression", codec, *at, stdin=dumped.encode()) == (
            "3 records acknowledged\n"
        )
    found = lines(done("consume", "copy", "--json", "--no-follow", "--partition", "0", "--count", "2", *at))
    assert [{**record, "offset": 0} for record in found] == [{**record, "offset": 0} for record in given[1:]]


def test_consume_from_anywhere(server: Server) -> None:
    at = ["--bootstrap", server.bootstrap]
    done("topic", "create", "places", "--partitions", "1", *at)
    text = "".join(json.dumps({"value": str(n), "timestamp": 1_700_000_000_000 + n * 60_000}) + "\n" for n in range(5))
    done("produce", "places", "--json", *at, stdin=text.encode())

    def found(*flags: str) -> str:
        return done("consume", "places", *flags, *at).replace("\n", "")

    assert found("--no-follow") == "01234"
    assert found("--no-follow", "--from", "3") == "34"
    assert found("--no-follow", "--from", "end") == ""
    assert found("--no-follow", "--from", "2023-11-14T22:15:00Z") == "234"
    assert found("--from", "start", "--count", "2") == "01"
    assert "Offset out of range" in refused("consume", "places", "--from", "99", *at)
    assert "give start, end" in refused("consume", "places", "--from", "then", *at)
    assert "no partition 7" in refused("consume", "places", "--partition", "7", *at)


def test_a_consumer_that_follows_sees_new_records_and_may_be_cut_off(server: Server) -> None:
    at = ["--bootstrap", server.bootstrap]
    done("topic", "create", "tail", *at)
    follow = [*COMMAND, "consume", "tail", "--from", "end", "--key-separator", "=", *at]
    with subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        wait_until(lambda: server.metric("lakestream_log_waited_for") > 0)
        done("produce", "tail", "--key-separator", ":", *at, stdin=b"k:v:w\n")
        assert consumer.stdout.readline() == b"k=v:w\n"
        consumer.stdout.close()
        done("produce", "tail", *at, stdin=b"nobody reads this\n" * 10)
        consumer.wait(WAIT_S)
        assert consumer.stderr.read() == b""


def test_what_could_not_be_sent_is_said(server: Server) -> None:
    at = ["--bootstrap", server.bootstrap]
    done("topic", "create", "small", "--partitions", "1", "--set", "max.message.bytes=1000", *at)
    ended = cli("produce", "small", *at, stdin=b"x" * 5000 + b"\n")
    assert ended.returncode == 1
    assert ended.stdout == b"0 records acknowledged\n"
    assert ended.stderr.decode().startswith("lakestream: 1 record not acknowledged: ")
    ended = cli("produce", "small", "--key-separator", ":", *at, stdin=b"k:v\nno key\n")
    assert (ended.returncode, ended.stdout) == (1, b"1 record acknowledged\n")
    assert ended.stderr.decode() == "lakestream: line 2: no key in it: ':' is missing\n"
    assert "line 1: not JSON" in cli("produce", "small", "--json", *at, stdin=b"{\n").stderr.decode()


@pytest.mark.alone
def test_a_broker_that_is_not_there_is_one_line_within_five_seconds(server: Server) -> None:
    nobody = f"127.0.0.1:{free_port()}"
    for words in (["topic", "list"], ["produce", "t"], ["consume", "t"]):
        begun = time.monotonic()
        assert "connection refused" in refused(*words, "--bootstrap", nobody)
        assert time.monotonic() - begun < 5
    begun = time.monotonic()
    assert "no Kafka broker answers" in refused("topic", "list", "--bootstrap", server.http)
    assert time.monotonic() - begun < 8
