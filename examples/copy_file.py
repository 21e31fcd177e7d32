"""Copies the lines of a file to another file through a topic, with a distributed worker of Kafka Connect.

    .venv/bin/python examples/copy_file.py in.txt out.txt

The source connector is exactly-once: each line is in one transaction with its position in the file, so that a consumer
of committed records reads each line once, even if the worker is killed. The program also copies lines that are added to
the file later, until Ctrl-C stops it. The next run continues after the last copied line.
"""

import argparse
import json
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from lakestream.testing.processes import program

WORKER = "org.apache.kafka.connect.cli.ConnectDistributed"
TEXT = "org.apache.kafka.connect.storage.StringConverter"
WAIT_S = 120


def worker_settings(bootstrap: str, port: int) -> dict[str, str]:
    """Returns the configuration of a worker, which stores its state in topics that it creates.

    Workers with the same group.id and topics share the connectors."""
    return {
        "bootstrap.servers": bootstrap,
        "group.id": "copy-file",
        "listeners": f"http://127.0.0.1:{port}",
        "config.storage.topic": "copy-file-configs",
        "offset.storage.topic": "copy-file-offsets",
        "status.storage.topic": "copy-file-states",
        "config.storage.replication.factor": "1",
        "offset.storage.replication.factor": "1",
        "status.storage.replication.factor": "1",
        "key.converter": TEXT,
        "value.converter": TEXT,
        "exactly.once.source.support": "enabled",
        "scheduled.rebalance.max.delay.ms": "0",  # no delay for a killed worker to return
        "offset.flush.interval.ms": "1000",
    }


def source(path: Path, topic: str) -> dict[str, str]:
    return {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "file": str(path.absolute()),
        "topic": topic,
        "topic.creation.default.partitions": "1",  # keeps lines in order
        "topic.creation.default.replication.factor": "1",
        "exactly.once.support": "required",
        # A restarted worker waits until its previous transaction has timed out.
        "producer.override.transaction.timeout.ms": "10000",
    }


def sink(path: Path, topic: str) -> dict[str, str]:
    return {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector",
        "file": str(path.absolute()),
        "topics": topic,
        "consumer.override.isolation.level": "read_committed",
        "consumer.override.allow.auto.create.topics": "false",  # the source connector creates it with its settings
    }


class Worker:
    """Client of Connect's REST API, which retries while the worker starts or rebalances."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/connectors"

    def put(self, name: str, config: Mapping[str, str]) -> None:
        self._request("PUT", f"/{name}/config", config)

    def pause(self, name: str) -> None:
        self._request("PUT", f"/{name}/pause", {})

    def resume(self, name: str) -> None:
        self._request("PUT", f"/{name}/resume", {})

    def states(self, name: str) -> list[str]:
        """Returns the states of the connector and its tasks."""
        status = self._request("GET", f"/{name}/status")
        return [status["connector"]["state"], *(task["state"] for task in status["tasks"])]

    def _request(self, method: str, path: str, body: Mapping[str, str] | None = None) -> dict[str, dict[str, str]]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(self._url + path, data, headers, method=method)
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as response:
                    return json.loads(response.read() or b"{}")
            except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
                final = isinstance(error, urllib.error.HTTPError) and error.code not in (404, 409, 500)
                if final or time.monotonic() > deadline:
                    raise
                time.sleep(0.2)


def write_settings(folder: Path, settings: Mapping[str, str]) -> Path:
    path = folder / "worker.properties"
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description="copies the lines of a file to another file, through a topic")
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--topic", default="copied-lines")
    options = parser.parse_args()
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        settings = write_settings(Path(folder), worker_settings(options.bootstrap, port))
        with subprocess.Popen([program("kafka-apps-class"), WORKER, str(settings)]) as process:
            try:
                worker = Worker(port)
                worker.put("source", source(options.source, options.topic))
                worker.put("sink", sink(options.target, options.topic))
                process.wait()
            except KeyboardInterrupt:
                process.wait(30)
            finally:
                process.terminate()


if __name__ == "__main__":
    main()
