"""Broker processes keep acknowledged records when they are stopped or killed, and end with the test process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.harness.clients.kafka_clients import Confluent, Record
from tests.harness.processes.serve import wait_until_closed

from lakestream.testing.brokers import brokers
from lakestream.testing.processes import listens


def values(client: Confluent, count: int) -> list[bytes | None]:
    return [record.value for record in client.read("events", 0, count)]


async def test_acknowledged_records_are_kept_when_brokers_are_killed_and_restarted(tmp_path: Path) -> None:
    async with brokers(tmp_path, 2) as cluster:
        client = Confluent(cluster.bootstrap)
        client.create_topic("events")
        client.produce("events", [Record(b"before")])
        cluster[0].kill()
        client.produce("events", [Record(b"while one is dead")])
        await cluster[0].start()
        assert [broker.stop() for broker in cluster] == [0, 0]
        assert not any(broker.is_running for broker in cluster)
        for broker in cluster:
            await broker.start()
        client.produce("events", [Record(b"after")])
        assert values(client, 3) == [b"before", b"while one is dead", b"after"]
        ports = [broker.port for broker in cluster]
    assert [await listens(port) for port in ports] == [False, False]


TEST_PROCESS = """
import pathlib, sys, time
from lakestream.testing.brokers import running_brokers
with running_brokers(pathlib.Path(sys.argv[1])) as cluster:
    print(cluster[0].port, flush=True)
    time.sleep(60)
"""


def start_test_process(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen([sys.executable, "-c", TEST_PROCESS, str(folder)], stdout=subprocess.PIPE, text=True)


async def test_brokers_end_when_the_test_process_is_killed(tmp_path: Path) -> None:
    with start_test_process(tmp_path) as child:
        assert child.stdout is not None
        port = int(child.stdout.readline())
        os.kill(child.pid, signal.SIGKILL)
    await wait_until_closed(port)
