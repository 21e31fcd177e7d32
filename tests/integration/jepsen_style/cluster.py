"""Brokers on Oxia and an S3 server. The connections between any two of them can be cut.

clients ──▷ broker ──▷ Oxia          ▷ is a proxy of each broker: one broker can be disconnected from a store
               └─────▷ S3              while the others still reach it.
"""

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lakestream.testing.brokers import BrokerProcess, zone_of
from lakestream.testing.processes import Process, free_port, listens
from lakestream.testing.servers import OxiaServer, Proxy, S3Server, Toxiproxy, oxia_standalone, s3_server, toxiproxy

SHARDS = 4


@dataclass(frozen=True)
class Store:
    name: str
    process: Process
    port: int

    async def restart(self) -> None:
        self.process.start()
        await self.process.wait_ready(partial(listens, self.port))


@dataclass(frozen=True)
class Node:
    """Broker, and the proxies of its connections."""

    broker: BrokerProcess
    process: Process
    to_broker: Proxy
    to_oxia: Proxy
    to_s3: Proxy


@dataclass(frozen=True)
class Cluster:
    nodes: tuple[Node, ...]
    oxia: Store
    s3: Store

    @property
    def bootstrap(self) -> str:
        return ",".join(node.broker.address for node in self.nodes)

    def logs(self) -> str:
        return "\n".join(f"── broker {node.broker.number}\n{node.broker.log()}" for node in self.nodes)


@asynccontextmanager
async def cluster(folder: Path, brokers: int) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as opened:
        network = await opened.enter_async_context(toxiproxy())
        oxia = await opened.enter_async_context(oxia_standalone(folder / "oxia", SHARDS))
        s3 = await opened.enter_async_context(s3_server(folder))
        nodes = [await _node(number, folder, network, oxia, s3) for number in range(brokers)]
        for node in nodes:
            opened.callback(node.process.kill)
            node.broker.begin()
        for node in nodes:
            await node.broker.wait_ready()
        stores = Store("oxia", oxia.process, oxia.port), Store("s3", s3.process, s3.port)
        yield Cluster(tuple(nodes), *stores)


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
    return Node(BrokerProcess(number, process, log, port, to_broker), process, to_broker, to_oxia, to_s3)
