"""A standalone Spark cluster on this machine: a master and workers, each a Java process from pyspark's own jars."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyspark

from lakestream.pipeline.java import find_java
from lakestream.pipeline.jvm import ALWAYS
from lakestream.testing.processes import Process, free_port, listens

HOME = Path(pyspark.__file__).parent
SMALL = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


def environment_of_a_machine() -> dict[str, str]:
    """What Spark's own scripts set, and on which address."""
    own = {"SPARK_HOME": str(HOME), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**own, "PYSPARK_PYTHON": sys.executable}


@dataclass(frozen=True)
class SparkCluster:
    master: str
    workers: tuple[Process, ...]


@asynccontextmanager
async def spark_cluster(folder: Path, workers: int = 2) -> AsyncIterator[SparkCluster]:
    """Each worker has one core. Executors are its children, and have its environment."""
    async with AsyncExitStack() as opened:
        port = free_port()
        log = folder / "master.log"
        master = _started(opened, "master.Master", log, ["--port", str(port), "--webui-port", "0"])
        await master.wait_ready(partial(listens, port))
        url = f"spark://127.0.0.1:{port}"
        flags = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(folder / "work"), url]
        members = tuple(
            _started(opened, "worker.Worker", folder / f"worker-{number}.log", flags) for number in range(workers)
        )

        async def all_known() -> bool:
            await asyncio.sleep(0.1)
            return len(re.findall(r"Registering worker 127\.0\.0\.1", log.read_text())) >= workers

        await master.wait_ready(all_known)
        yield SparkCluster(url, members)


def _started(opened: AsyncExitStack, name: str, log: Path, flags: list[str]) -> Process:
    java = find_java(os.environ)
    command = [str(java.program), *ALWAYS, *SMALL, "-cp", f"{HOME}/jars/*", f"org.apache.spark.deploy.{name}"]
    environment = {**os.environ, **environment_of_a_machine()}
    process = Process(name, ["--host", "127.0.0.1", *flags], log, command=command, environment=environment)
    process.start()
    opened.callback(process.kill)
    return process
