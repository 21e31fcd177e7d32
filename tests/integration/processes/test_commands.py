"""Commands as users run them: what they print, and that they report no success for something they did not do."""

import base64
import io
import json
import os
import pty
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import fastavro
import pytest
from confluent_kafka import Consumer
from tests.harness.processes.serve import (
    COMMAND,
    WAIT_S,
    Server,
    cli,
    environment,
    error_of,
    output_of,
    serving,
    wait_until,
)

from lakestream.testing.processes import free_port

# A folder without a server


@pytest.mark.parametrize(
    "command",
    [
        "doctor",
        "pipeline --once",
        "table dead-letters orders",
        "table dead-letters orders --rows",
        "table repair orders",
        "table accept-rollback orders",
        "table set-next-offsets orders 0=1",
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_command_fails_and_creates_nothing_in_a_wrong_folder(tmp_path: Path, command: str, exists: bool) -> None:
    folder = tmp_path / "wrong"
    if exists:
        folder.mkdir()
    error = error_of(*command.split(), "--data-dir", str(folder))
    assert f"folder {folder} has no metadata.sqlite" in error
    assert "--data-dir" in error
    assert list(tmp_path.rglob("*")) == ([folder] if exists else [])


# A broker that all tests below share


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("serve")) as running:
        yield running


@pytest.fixture
def kafka(server: Server) -> list[str]:
    return ["--bootstrap", server.bootstrap]


@pytest.fixture
def both(server: Server) -> list[str]:
    return ["--bootstrap", server.bootstrap, "--http", server.http]


def test_error_of_a_missing_topic_advises_no_creation(kafka: list[str]) -> None:
    output_of("topic", "create", "orders", *kafka)
    assert "topic order does not exist; did you mean orders?" in error_of("topic", "delete", "order", *kafka)
    error = error_of("topic", "delete", "nothing", *kafka)
    assert "topic nothing does not exist; lakestream topic list prints all topics" in error


def test_produce_reports_that_it_created_the_topic(kafka: list[str]) -> None:
    created = "topic fresh did not exist: created with 4 partitions\n1 record acknowledged\n"
    assert output_of("produce", "fresh", *kafka, stdin=b"a\n") == created
    assert output_of("produce", "fresh", *kafka, stdin=b"a\n") == "1 record acknowledged\n"


def test_consume_from_a_missing_offset_reports_which_exist(kafka: list[str]) -> None:
    output_of("topic", "create", "short", "--partitions", "2", *kafka)
    output_of("produce", "short", "--json", *kafka, stdin=b'{"value": "a", "partition": 1}\n' * 3)
    error = error_of("consume", "short", "--from", "99999", *kafka)
    assert "Offset out of range" in error
    assert "0 to 0 in partition 0, 0 to 3 in partition 1" in error
    assert output_of("consume", "short", "--from", "2", "--partition", "1", "--no-follow", *kafka) == "a\n"


def test_layout_of_columns_that_do_not_exist_is_reported_as_waiting(kafka: list[str], both: list[str]) -> None:
    schema = ["--set", "lakestream.value.schema=json"]
    layout = ["--set", "lakestream.table.partition=day(foo), bucket(4, _stream.offset)"]
    output = output_of("topic", "create", "laid", *schema, *layout, *kafka)
    assert "lakestream.table.partition waits for column foo" in output
    assert "_stream" not in output
    output = output_of("topic", "alter", "laid", "--set", "lakestream.table.sort=bar", *both)
    assert "lakestream.table.sort waits for column bar" in output


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "data"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a file system cannot be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_readyz_names_a_full_disk(tmp_path: Path, full_disk: Path) -> None:
    with serving(tmp_path) as server:
        assert server.get("/readyz")[0] == 200
        filler = full_disk / "filler"
        with suppress(OSError), filler.open("wb") as file:
            while True:
                file.write(bytes(1024 * 1024))
        wait_until(lambda: server.get("/readyz")[0] == 503)
        assert "disk full" in (reason := json.loads(server.get("/readyz")[1])["reasons"]["disk"])
        assert str(full_disk) in reason
        filler.unlink()
        wait_until(lambda: server.get("/readyz")[0] == 200)


# Values with a schema, and terminals


FIELDS = [{"name": "id", "type": "long"}, {"name": "note", "type": "bytes"}]
AVRO = {"type": "record", "name": "Order", "fields": FIELDS}


def test_consume_decodes_values_by_the_schema_of_the_topic(
    tmp_path: Path, server: Server, kafka: list[str], both: list[str]
) -> None:
    file = tmp_path / "order.avsc"
    file.write_text(json.dumps(AVRO))
    registered = output_of("schema", "register", "typed-value", str(file), "--http", server.http, "--json")
    schema_id = json.loads(registered)["id"]
    output_of("topic", "create", "typed", "--partitions", "1", "--set", "lakestream.value.schema=registry", *kafka)
    out = io.BytesIO(b"\0" + schema_id.to_bytes(4, "big"))
    out.seek(0, io.SEEK_END)
    fastavro.schemaless_writer(out, AVRO, {"id": 7, "note": b"n"})
    framed = {"value": {"base64": base64.b64encode(out.getvalue()).decode()}, "key": "k"}
    output_of("produce", "typed", "--json", *kafka, stdin=json.dumps(framed).encode())
    consume = ["consume", "typed", "--no-follow"]
    assert output_of(*consume, *both) == '{"id": 7, "note": "n"}\n'
    (record,) = map(json.loads, output_of(*consume, "--json", *both).splitlines())
    assert (record["key"], record["value"]) == ("k", {"id": 7, "note": "n"})
    raw = cli(*consume, "--raw", *kafka)
    assert raw.stdout == out.getvalue() + b"\n"
    output_of("produce", "typed", *kafka, stdin=b"unframed\n")
    ended = cli(*consume, *both)
    assert ended.returncode == 0
    assert ended.stdout.endswith(b"unframed\n")
    assert b"does not start with a zero byte and a schema id" in ended.stderr


def test_consume_escapes_control_characters_only_on_a_terminal(kafka: list[str]) -> None:
    output_of("topic", "create", "colors", "--partitions", "1", *kafka)
    value = "\x1b[31mred\x9b2J\u202e\ttab ü".encode()
    output_of("produce", "colors", *kafka, stdin=value + b"\n")
    consume = ["consume", "colors", "--no-follow", *kafka]
    assert cli(*consume).stdout == value + b"\n"
    assert terminal_output(*consume) == "\\u001b[31mred\\u009b2J\\u202e\ttab ü\r\n"
    printed = terminal_output(*consume, "--json").removesuffix("\r\n")
    assert printed.isprintable()
    assert json.loads(printed)["value"] == value.decode()


def terminal_output(*arguments: str) -> str:
    """Runs a command whose standard output is a terminal."""
    own, terminal = pty.openpty()
    with subprocess.Popen([*COMMAND, *arguments], stdout=terminal, env=environment()) as process:
        os.close(terminal)
        out = b""
        with suppress(OSError):  # the terminal was closed
            while data := os.read(own, 4_096):
                out += data
        os.close(own)
        assert process.wait(WAIT_S) == 0
    return out.decode()


# Addresses


@pytest.mark.parametrize(
    ("advertised", "reason"),
    [
        ("broker.invalid", "broker.invalid:{kafka} (the name does not resolve"),
        ("127.0.0.1:1", "127.0.0.1:1 (connection refused"),
    ],
)
def test_wrong_advertised_address_is_reported_at_once(tmp_path: Path, advertised: str, reason: str) -> None:
    with serving(tmp_path, "--advertise", advertised) as server:
        for command in ("topic list", "topic create t", "produce t", "consume t"):
            start_s = time.monotonic()
            error = error_of(*command.split(), "--bootstrap", server.bootstrap)
            assert f"the broker at {server.bootstrap} returns this address to clients" in error
            assert reason.format(kafka=server.kafka) in error
            assert "--advertise" in error
            assert time.monotonic() - start_s < 10


def test_broker_warns_when_it_listens_on_all_addresses_without_advertise(tmp_path: Path) -> None:
    port = free_port()
    for number, (flags, warns) in enumerate((([], True), (["--advertise", "127.0.0.1"], False))):
        folder = tmp_path / str(number)
        folder.mkdir()
        with serving(folder, "--kafka", f"0.0.0.0:{port}", *flags) as server:
            assert ("set --advertise" in server.output()) == warns


# Groups, lists and the state of a cluster


def consumed(server: Server, group: str, topic: str, count: int) -> None:
    """Reads records as a member of a group, commits, and leaves."""
    consumer = Consumer({"bootstrap.servers": server.bootstrap, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    assert len(consumer.consume(count, WAIT_S)) == count
    consumer.commit(asynchronous=False)
    consumer.close()


def test_group_is_listed_described_reset_and_deleted(server: Server, kafka: list[str]) -> None:
    output_of("topic", "create", "grouped", "--partitions", "2", *kafka)
    lines = "".join(json.dumps({"value": str(n), "partition": n % 2}) + "\n" for n in range(10))
    output_of("produce", "grouped", "--json", *kafka, stdin=lines.encode())
    consumed(server, "readers", "grouped", 10)
    output_of("produce", "grouped", "--json", *kafka, stdin=lines.encode())

    assert "readers  empty  classic  grouped   10" in output_of("group", "list", *kafka)
    description = output_of("group", "describe", "readers", *kafka)
    assert description.startswith("group readers, empty, 0 members, lag 10\n")
    assert re.search(r"grouped +1 +5 +10 +5 +-", description), description
    assert "did you mean readers?" in error_of("group", "describe", "reader", *kafka)

    reset = ["group", "reset-offsets", "readers", *kafka]
    preview = output_of(*reset, "--to", "start")
    assert re.search(r"grouped +0 +5 +0\n", preview), preview
    assert "nothing was changed: add --execute" in preview
    assert json.loads(output_of("group", "describe", "readers", "--json", *kafka))["lag_records"] == 10
    output_of(*reset, "--to", "start", "--topic", "grouped:1", "--execute")
    assert json.loads(output_of("group", "describe", "readers", "--json", *kafka))["lag_records"] == 15
    rows = json.loads(output_of(*reset, "--to", "99", "--json"))["offsets"]
    assert [row["new"] for row in rows] == [10, 10], "limited to the end"
    assert "has no partition '7'" in error_of(*reset, "--to", "end", "--topic", "grouped:7")
    assert output_of("group", "delete", "readers", *kafka) == "group readers deleted\n"
    assert "group readers does not exist" in error_of("group", "delete", "readers", *kafka)


def test_offsets_of_a_group_with_members_are_not_reset(server: Server, kafka: list[str]) -> None:
    output_of("produce", "held", *kafka, stdin=b"a\n")
    member = Consumer({"bootstrap.servers": server.bootstrap, "group.id": "live", "auto.offset.reset": "earliest"})
    member.subscribe(["held"])
    assert member.consume(1, WAIT_S)
    member.commit(asynchronous=False)
    reset = ["group", "reset-offsets", "live", "--to", "start", *kafka]
    assert "the group has 1 member: stop them first" in output_of(*reset)
    assert "has 1 member: stop them before" in error_of(*reset, "--execute")
    assert re.search(r"held +\d +1 +1 +0 +rdkafka", output_of("group", "describe", "live", *kafka))
    member.close()


def test_topic_list_has_records_size_table_and_lag(kafka: list[str], both: list[str]) -> None:
    output_of("produce", "counted", *kafka, stdin=b"x" * 2000 + b"\n" + b"y\n")
    (row,) = [one for one in json.loads(output_of("topic", "list", "--json", *both)) if one["topic"] == "counted"]
    assert (row["records"], row["table"]) == (2, "")
    assert row["bytes"] > 2000
    (line,) = [line for line in output_of("topic", "list", *both).splitlines() if line.startswith("counted")]
    assert re.match(r"counted +4 +2 +\S+ KiB +- +\d", line), line
    nowhere = output_of("topic", "list", *kafka, "--http", f"127.0.0.1:{free_port()}")
    assert "tables and lag are not known: no HTTP of a broker can be reached" in nowhere


def test_topic_describe_leaves_out_settings_without_effect(kafka: list[str]) -> None:
    output_of("topic", "create", "described", "--set", "flush.ms=1000", *kafka)
    described = output_of("topic", "describe", "described", *kafka)
    assert re.search(r"flush.ms +1000 +has no effect", described)
    assert "retention.ms" in described
    for name in ("segment.bytes", "min.insync.replicas", "flush.messages"):
        assert name not in described


def test_status_has_brokers_topics_groups_tables_and_problems(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        both = ["--bootstrap", server.bootstrap, "--http", server.http]
        lines = b'{"value": "a", "partition": 0}\n{"value": "b", "partition": 0}\n'
        output_of("produce", "watched", "--json", *both[:2], stdin=lines)
        consumed(server, "slow", "watched", 1)
        wait_until(lambda: server.metric("lakestream_table_lag_records", topic="watched") == 2)
        ended = cli("status", *both)
        text = ended.stdout.decode()
        assert ended.returncode == 1, text
        assert f"brokers  1: {server.bootstrap}\n" in text
        assert re.search(r"topics   1, 4 partitions, 2 records, \d+ B\n", text), text
        assert re.search(r"slow +1 +empty", text), text
        assert "BAD  no pipeline has run yet, and 2 records wait for it: start lakestream pipeline\n" in text
        assert json.loads(cli("status", "--json", *both).stdout)["topics"]["watched"]["lag_records"] == 2


# Progress


def test_command_that_waits_reports_its_step_on_a_terminal() -> None:
    own, terminal = pty.openpty()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        list_topics = [*COMMAND, "topic", "list", "--bootstrap", address]
        with subprocess.Popen(list_topics, stderr=terminal, env=environment()) as process:
            os.close(terminal)
            assert os.read(own, 4_096).decode() == f"lakestream: connecting to {address} …\r\n"
            assert process.wait(WAIT_S) == 1
    os.close(own)
    assert "connecting" not in error_of("topic", "list", "--bootstrap", address), "standard error is no terminal"


def test_make_does_not_echo_its_recipes() -> None:
    root = Path(__file__).parents[3]
    printed = subprocess.run(["make", "-C", str(root), "--no-print-directory", "help"], capture_output=True, check=True)
    assert b"grep" not in printed.stdout
    assert ".SILENT:\n" in (root / "Makefile").read_text()


# One address


def test_commands_need_one_address_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    with serving(tmp_path) as running:
        monkeypatch.chdir(elsewhere)
        server = ["--server", f"http://{running.http}"]
        output_of("topic", "create", "t", *server)
        output_of("produce", "t", *server, stdin=b"one\n")
        assert output_of("consume", "t", "--no-follow", *server) == "one\n"
        assert "t " in output_of("topic", "list", *server)
        assert output_of("schema", "list", *server) == ""
        assert f"sqlite in {tmp_path / 'data'}" in output_of("doctor", *server)
        assert "does not exist" in error_of("table", "accept-rollback", "t", *server)  # without a pipeline
        assert "topic none does not exist" in error_of("doctor", "--topic", "none", *server)
        assert not list(elsewhere.iterdir())
        unknown = error_of("doctor", "--flul", *server, code=2)
        assert "did you mean --full?" in unknown
    assert "no Lakestream server can be reached" in error_of("doctor", *server)
    assert not list(elsewhere.iterdir())
