"""Brokers on Oxia and an S3 server, of which every process can fail.

With `cluster`, the connections between any two of them can be cut:

clients ──▷ broker ──▷ Oxia          ▷ is a proxy of each broker: one broker can be disconnected from a store
               └─────▷ S3              while the others still reach it.

`cluster_with_pipelines` has three Oxia nodes, pipelines, and a broker that can be added, but no proxies.
"""

import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.harness.processes.pipelines import BrokersAndPipelines, PipelineProcess, with_pipelines

from lakestream.testing.brokers import OXIA_CLUSTER_AND_S3, BrokerProcess, brokers, zone_of
from lakestream.testing.processes import Process, free_port
from lakestream.testing.servers import (
    OxiaServer,
    Proxy,
    S3Server,
    StoreServer,
    Toxiproxy,
    oxia_standalone,
    s3_server,
    toxiproxy,
)

SHARDS = 4


@dataclass(frozen=True)
class Node:
    """Broker, and the proxies of its connections by name."""

    broker: BrokerProcess
    proxies: dict[str, Proxy]


@dataclass(frozen=True)
class Cluster:
    nodes: tuple[Node, ...]
    stores: tuple[StoreServer, ...]
    pipelines: tuple[PipelineProcess, ...] = ()
    spare: Node | None = None
    """Broker that is not started: faults.py adds and removes it."""

    @property
    def bootstrap(self) -> str:
        return ",".join(node.broker.address for node in self.nodes)

    def processes(self) -> Iterator[Process]:
        yield from (node.broker.process for node in self.nodes)
        yield from (store.process for store in self.stores)
        yield from (pipeline.process for pipeline in self.pipelines)
        if self.spare is not None:
            yield self.spare.broker.process

    def logs(self) -> str:
        nodes = self.nodes if self.spare is None else (*self.nodes, self.spare)
        return "\n".join(f"── {node.broker.process.name}\n{node.broker.log()}" for node in nodes)


@asynccontextmanager
async def cluster_with_pipelines(
    folder: Path, broker_count: int, pipeline_count: int
) -> AsyncIterator[tuple[Cluster, BrokersAndPipelines]]:
    async with (
        brokers(folder, broker_count, OXIA_CLUSTER_AND_S3, spare=1) as started,
        with_pipelines(started, folder, pipeline_count) as system,
    ):
        nodes = tuple(Node(broker, {}) for broker in started)
        yield Cluster(nodes, started.stores, system.pipelines, Node(started.spare[0], {})), system


@asynccontextmanager
async def cluster(folder: Path, broker_count: int) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as opened:
        network = await opened.enter_async_context(toxiproxy())
        oxia = await opened.enter_async_context(oxia_standalone(folder / "oxia", SHARDS))
        s3 = await opened.enter_async_context(s3_server(folder))
        nodes = [await _node(number, folder, network, oxia, s3) for number in range(broker_count)]
        for node in nodes:
            opened.callback(node.broker.kill)
            node.broker.begin()
        for node in nodes:
            await node.broker.wait_ready()
        yield Cluster(tuple(nodes), (oxia, s3))


async def _node(number: int, folder: Path, network: Toxiproxy, oxia: OxiaServer, s3: S3Server) -> Node:
    port = free_port()
    to_broker = await network.proxy(f"127.0.0.1:{port}")
    to_oxia = await network.proxy(f"127.0.0.1:{oxia.port}")
    to_s3 = await network.proxy(f"127.0.0.1:{s3.port}")
    # Settings in the environment of the tests do not apply to the brokers.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("LAKESTREAM_")} | {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{to_s3.port}",
        "AWS_ACCESS_KEY_ID": s3.access_key_id,
        "AWS_SECRET_ACCESS_KEY": s3.secret_access_key,
        "AWS_REGION": s3.region,
    }
    options = ["--kafka", f"127.0.0.1:{port}", "--advertise", f"127.0.0.1:{to_broker.port}", "--zone", zone_of(number)]
    options += ["--http", f"127.0.0.1:{free_port()}", "--data-dir", str(folder / "data")]
    options += ["--metadata", f"oxia://127.0.0.1:{to_oxia.port}/default", "--storage", f"s3://{s3.bucket('lake')}"]
    log = folder / f"broker-{number}.log"
    command = [sys.executable, "-m", "lakestream", "broker"]
    process = Process(f"broker-{number}", options, log, command=command, environment=environment)
    name = process.name
    proxies = {name: to_broker, f"{name} to oxia": to_oxia, f"{name} to s3": to_s3}
    return Node(BrokerProcess(number, process, log, port, to_broker), proxies)
