"""Real servers for tests, each an `async with` block: Oxia (one or a cluster), S3, Azure Blob, a faulty network.

    async with s3_server(tmp_path) as s3:
        store = open_store(s3.endpoint, s3.bucket("lake"))

All listen on 127.0.0.1 on their own ports, keep files and logs in the given folder, and are killed at the end of the
block. `make tools` builds the programs.
"""

import asyncio
import base64
import email.utils
import hmac
import json
import signal
import tempfile
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lakestream.errors import Unavailable
from lakestream.testing.processes import Process, free_port, listens, program

_START_TRIES = 3
"""Another test may take a free port before the server binds it."""


async def _started(make: Callable[[int], Process]) -> tuple[Process, int]:
    for attempt in range(1, _START_TRIES + 1):
        port = free_port()
        process = make(port)
        try:
            process.start()
            await process.wait_ready(partial(listens, port))
        except BaseException as error:
            process.kill()
            if isinstance(error, Unavailable) and attempt < _START_TRIES:
                continue
            raise
        return process, port
    raise AssertionError("unreachable")


class StoreServer:
    """Server of a store, which tests can kill, freeze and restart."""

    process: Process
    port: int

    def kill(self) -> None:
        """Sends SIGKILL, like a crash."""
        self.process.kill()

    def freeze(self) -> None:
        """Sends SIGSTOP: connections stay open without responses, until `thaw`."""
        self.process.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.signal(signal.SIGCONT)

    async def restart(self) -> None:
        """Starts the server after `kill`, with its port and files."""
        self.process.start()
        await self.process.wait_ready(partial(listens, self.port))


# S3 and Azure


@dataclass(frozen=True)
class S3Server(StoreServer):
    endpoint: str
    root: Path
    access_key_id: str
    secret_access_key: str
    process: Process
    port: int
    region: str = "us-east-1"

    def bucket(self, name: str) -> str:
        """Creates a bucket, which is a folder under the root."""
        (self.root / name).mkdir(parents=True, exist_ok=True)
        return name


@asynccontextmanager
async def s3_server(folder: Path) -> AsyncIterator[S3Server]:
    """Runs versitygw over a folder. Without its --keep-alive, which breaks multipart uploads of some clients."""
    root = folder / "s3"
    key, secret = "test", "testsecret"

    def make(port: int) -> Process:
        root.mkdir(parents=True, exist_ok=True)
        args = ["--port", f"127.0.0.1:{port}", "-a", key, "-s", secret, "--quiet", "posix", str(root)]
        return Process("versitygw", args, folder / "versitygw.log")

    process, port = await _started(make)
    try:
        yield S3Server(f"http://127.0.0.1:{port}", root, key, secret, process, port)
    finally:
        process.kill()


@dataclass(frozen=True)
class AzureServer:
    endpoint: str
    """With the account's name in its path, as Azurite requires."""
    account_name: str
    account_key: str
    process: Process
    port: int

    async def container(self, name: str) -> str:
        """Creates a container."""
        date, version, kind = email.utils.formatdate(usegmt=True), "2021-12-02", "application/octet-stream"
        headers = {"Content-Type": kind, "x-ms-date": date, "x-ms-version": version}
        # Azure signs the verb, eleven standard headers by position (the fifth is the type), x-ms headers, the resource.
        positions = ["PUT", "", "", "", "", kind, "", "", "", "", "", ""]
        resource = f"/{self.account_name}/{self.account_name}/{name}"
        own = [f"x-ms-date:{date}", f"x-ms-version:{version}", resource, "restype:container"]
        signed = "\n".join([*positions, *own])
        mac = hmac.digest(base64.b64decode(self.account_key), signed.encode(), "sha256")
        headers["Authorization"] = f"SharedKey {self.account_name}:{base64.b64encode(mac).decode()}"
        url = f"{self.endpoint}/{name}?restype=container"
        await _send(urllib.request.Request(url, data=b"", method="PUT", headers=headers))
        return name


AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Azurite's published key, the same in every installation: no secret."""


@asynccontextmanager
async def azurite(folder: Path) -> AsyncIterator[AzureServer]:
    """Runs Azurite, an emulator of Azure Blob Storage, over a folder."""

    def make(port: int) -> Process:
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder / "azurite")]
        quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        return Process("azurite-blob", [*where, *quiet], folder / "azurite.log")

    process, port = await _started(make)
    endpoint = f"http://127.0.0.1:{port}/{AZURITE_ACCOUNT}"
    try:
        yield AzureServer(endpoint, AZURITE_ACCOUNT, AZURITE_KEY, process, port)
    finally:
        process.kill()


# A network that can be made faulty


@dataclass(frozen=True)
class Proxy:
    """One proxy of toxiproxy: forwards connections on `port` to its upstream, with the added faults."""

    name: str
    port: int
    _api: str

    async def add(self, toxic: str, attributes: Mapping[str, int], *, stream: str = "downstream") -> str:
        """Adds a fault and returns its name, for `remove`. `add("timeout", {"timeout": 0})` drops all responses.

        `downstream` is the direction from the server to the client. Types: latency, timeout, reset_peer, limit_data,
        bandwidth, slicer, slow_close.
        """
        name = f"{toxic}_{stream}"
        body = {"name": name, "type": toxic, "stream": stream, "attributes": dict(attributes)}
        await _call("POST", f"{self._api}/proxies/{self.name}/toxics", body)
        return name

    async def remove(self, toxic: str) -> None:
        await _call("DELETE", f"{self._api}/proxies/{self.name}/toxics/{toxic}")

    async def cut(self) -> None:
        """Closes all connections and refuses new ones, until `restore`."""
        await _call("POST", f"{self._api}/proxies/{self.name}", {"enabled": False})

    async def restore(self) -> None:
        await _call("POST", f"{self._api}/proxies/{self.name}", {"enabled": True})


@dataclass(frozen=True)
class Toxiproxy:
    process: Process
    _api: str

    async def proxy(self, upstream: str) -> Proxy:
        """Creates a proxy to `host:port`."""
        for _ in range(_START_TRIES):
            port = free_port()
            name = f"to-{port}"
            body = {"name": name, "listen": f"127.0.0.1:{port}", "upstream": upstream, "enabled": True}
            try:
                await _call("POST", f"{self._api}/proxies", body)
            except Unavailable:
                continue
            return Proxy(name, port, self._api)
        raise Unavailable(f"toxiproxy created no proxy to {upstream} in {_START_TRIES} tries")


@asynccontextmanager
async def toxiproxy() -> AsyncIterator[Toxiproxy]:
    with tempfile.TemporaryDirectory(prefix="toxiproxy-") as folder:

        def make(port: int) -> Process:
            args = ["-host", "127.0.0.1", "-port", str(port)]
            return Process("toxiproxy-server", args, Path(folder) / "toxiproxy.log")

        process, port = await _started(make)
        try:
            yield Toxiproxy(process, f"http://127.0.0.1:{port}")
        finally:
            process.kill()


async def _call(method: str, url: str, body: Mapping[str, object] | None = None) -> None:
    data = None if body is None else json.dumps(body).encode()
    await _send(urllib.request.Request(url, data=data, method=method, headers={"Content-Type": "application/json"}))


async def _send(request: urllib.request.Request) -> None:
    def send() -> None:
        try:
            with urllib.request.urlopen(request, timeout=5):
                pass
        except urllib.error.HTTPError as error:
            with error:
                raise Unavailable(f"{request.full_url} failed: {error.read().decode()[:200]}") from None

    await asyncio.to_thread(send)


# Oxia


@dataclass(frozen=True)
class OxiaServer(StoreServer):
    url: str
    port: int
    process: Process


@asynccontextmanager
async def oxia_standalone(folder: Path, shards: int = 1) -> AsyncIterator[OxiaServer]:
    """Runs a whole cluster in one process. Its namespace is `default`."""
    server = await start_oxia_standalone(folder, shards)
    try:
        yield server
    finally:
        server.process.kill()


async def start_oxia_standalone(folder: Path, shards: int) -> OxiaServer:
    """Starts a server that outlives an event loop; the caller kills it."""
    metrics_port = free_port()

    def make(port: int) -> Process:
        where = ["--data-dir", str(folder / "db"), "--wal-dir", str(folder / "wal")]
        ports = ["-p", f"127.0.0.1:{port}", "-m", f"127.0.0.1:{metrics_port}"]
        return Process("oxia", ["standalone", "-s", str(shards), *ports, *where], folder / "oxia.log")

    process, port = await _started(make)
    return OxiaServer(f"oxia://127.0.0.1:{port}/default", port, process)


_OXIA_NODE_ONLINE = "Storage node is back online"
_OXIA_NODE_EVENTS = (_OXIA_NODE_ONLINE, "Node stopped responding to ping", "Storage node health check failed")
"""Events in the coordinator's log."""


@dataclass(frozen=True)
class OxiaClusterNode(StoreServer):
    process: Process
    port: int
    coordinator_log: Path
    inner: Proxy | None = None
    """Proxy for the cluster's connections to this node, if the cluster has a network. Clients use `address`."""

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def is_online(self) -> bool:
        """Returns whether the coordinator considers the node available.

        Until then it may elect the node, but does not notice when the node fails again: its shards would have no leader
        for ever."""
        is_online = True
        for line in self.coordinator_log.read_text(errors="replace").splitlines():
            if self.address in line and any(event in line for event in _OXIA_NODE_EVENTS):
                is_online = _OXIA_NODE_ONLINE in line
        return is_online


@dataclass(frozen=True)
class OxiaCluster:
    url: str
    nodes: tuple[OxiaClusterNode, ...]
    coordinator: Process
    _status: Path

    def leaders(self) -> dict[int, OxiaClusterNode]:
        """Returns the leader of each shard, from the coordinator's status file; omits shards without a leader."""
        try:
            status = json.loads(self._status.read_text())
        except (FileNotFoundError, json.JSONDecodeError):  # not written yet, or being written just now
            return {}
        by_address = {node.address: node for node in self.nodes}
        shards = status["clusterStatus"]["namespaces"]["default"]["shards"].items()
        leaders = {int(number): shard["leader"]["public"] for number, shard in shards if shard.get("leader")}
        return {number: by_address[address] for number, address in leaders.items()}

    async def wait_for_leaders(self, shards: int) -> None:
        async def led() -> bool:
            return len(self.leaders()) == shards

        await self.coordinator.wait_ready(led)


@asynccontextmanager
async def oxia_cluster(
    folder: Path, nodes: int = 3, shards: int = 4, network: Toxiproxy | None = None
) -> AsyncIterator[OxiaCluster]:
    """Runs a coordinator and `nodes` servers, with each shard on all of them.

    With a `network`, a test can cut one node off from the coordinator and the other nodes while clients still reach it.
    """
    log = folder / "coordinator.log"
    members = [await _oxia_node(folder / f"n{number}", log, network) for number in range(1, nodes + 1)]
    status = folder / "status.json"
    config = folder / "cluster.yaml"
    ports = ["-i", f"127.0.0.1:{free_port()}", "-m", f"127.0.0.1:{free_port()}"]
    metadata = ["--metadata", "file", "--file-clusters-status-path", str(status)]
    coordinator = Process("oxia", ["coordinator", "-f", str(config), *ports, *metadata], log)
    _write_cluster(config, [member[1] for member in members], nodes, shards)
    cluster = OxiaCluster(
        url=f"oxia://{','.join(node.address for node, _ in members)}/default",
        nodes=tuple(node for node, _ in members),
        coordinator=coordinator,
        _status=status,
    )
    try:
        for node in cluster.nodes:
            await node.restart()
        coordinator.start()
        await cluster.wait_for_leaders(shards)
        yield cluster
    finally:
        coordinator.kill()
        for node in cluster.nodes:
            node.kill()


async def _oxia_node(folder: Path, log: Path, network: Toxiproxy | None) -> tuple[OxiaClusterNode, dict[str, str]]:
    """Returns a server that is not started yet, and its entry in the cluster's configuration."""
    port = free_port()
    public, internal, metrics = f"127.0.0.1:{port}", *(f"127.0.0.1:{free_port()}" for _ in range(2))
    inner = await network.proxy(internal) if network else None
    where = ["--data-dir", str(folder / "db"), "--wal-dir", str(folder / "wal")]
    args = ["server", "-p", public, "-i", internal, "-m", metrics, *where]
    process = Process(f"oxia-{folder.name}", args, folder / "oxia.log", command=[program("oxia")])
    address = f"127.0.0.1:{inner.port}" if inner else internal
    return OxiaClusterNode(process, port, log, inner), {"name": folder.name, "public": public, "internal": address}


def _write_cluster(path: Path, servers: list[dict[str, str]], nodes: int, shards: int) -> None:
    namespace = {"name": "default", "initialShardCount": shards, "replicationFactor": nodes}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"namespaces": [namespace], "servers": servers}))  # JSON is YAML too
