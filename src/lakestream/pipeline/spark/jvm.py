"""Runs Spark's Java process without Spark's shell scripts, which saves a shell and another Java process.

Before: java.py, session.py.  The process ends when its standard input is closed, so it never outlives this process,
even if this one is killed. All functions block: they are called in a thread.
"""

import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lakestream.errors import Unavailable
from lakestream.pipeline.spark.java import Java

START_S_MAX: Final = 120.0
STOP_S_MAX: Final = 15.0
_POLL_S: Final = 0.02

_OPENED: Final = (
    *("lang", "lang.invoke", "lang.reflect", "io", "net", "nio", "util", "util.concurrent", "util.concurrent.atomic"),
)
_OPENED_INSIDE: Final = (*("jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"),)

ALWAYS: Final = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in _OPENED),
    *(f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in _OPENED_INSIDE),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "--enable-native-access=ALL-UNNAMED",
    "-Djdk.reflect.useDirectMethodHandle=false",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-XX:-UsePerfData",
    "-XX:+ExitOnOutOfMemoryError",  # so that the driver notices it, and starts Spark again
)
"""The flags of Spark's own launcher without the vector module, which minimal Java runtimes lack and Lakestream does not
use."""

_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = \\
  %d{yyyy-MM-dd HH:mm:ss,SSS} %p{WARN=WARNING} spark: %replace{%m}{(?s)[\\r\\n].*}{}%ex{none}%n
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
"""
"""One line per event. Spark logs the failure of a worker twice; the line of the driver is enough."""


class Address(NamedTuple):
    """Address at which the Java process accepts the connection of Python."""

    port: int
    secret: str


class Jvm:
    def __init__(self, process: "subprocess.Popen[bytes]", address: Address) -> None:
        self._process = process
        self.address = address

    @classmethod
    def start(
        cls, java: Java, spark_home: Path, flags: Sequence[str], conf: Mapping[str, str], environment: Mapping[str, str]
    ) -> "Jvm":
        """Starts the process. Blocks for about a second. Unavailable: the process ended, or does not respond."""
        with _folder() as folder:
            address_file = folder / "address"
            logging = folder / "log4j2.properties"
            logging.write_text(_LOGGING)
            command = [
                *(str(java.program), *ALWAYS, *flags, f"-Dlog4j2.configurationFile={logging}"),
                *("-cp", _class_path(spark_home, environment), "org.apache.spark.deploy.SparkSubmit"),
                *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}")),
                "pyspark-shell",
            ]
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=sys.stderr.fileno(),
                env={**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(address_file), "SPARK_CONNECT_MODE": "0"},
                start_new_session=True,  # Ctrl-C must not reach Java: this process stops Spark
            )
            try:
                return cls(process, _address(process, address_file))
            except BaseException:
                _end(process, timeout_s=0)
                raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self, timeout_s: float = STOP_S_MAX) -> None:
        _end(self._process, timeout_s)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Exists only during the start, so that nothing is left even if this process is killed later."""
    folder = tempfile.mkdtemp(prefix="lakestream-spark-")
    try:
        yield Path(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _class_path(spark_home: Path, environment: Mapping[str, str]) -> str:
    settings = [
        environment[name] for name in ("SPARK_CONF_DIR", "HADOOP_CONF_DIR", "YARN_CONF_DIR") if name in environment
    ]
    return os.pathsep.join([*settings, f"{spark_home}/jars/*"])


def _address(process: "subprocess.Popen[bytes]", address_file: Path) -> Address:
    """Waits for the address of the process. Spark writes the file under another name and renames it when complete."""
    until_s = time.monotonic() + START_S_MAX
    while not address_file.exists():
        if process.poll() is not None:
            raise Unavailable(
                f"Spark's Java ended at its start with exit code {process.returncode}: see its log lines above"
            )
        if time.monotonic() > until_s:
            raise Unavailable(f"the start of Spark's Java timed out after {START_S_MAX:.0f} s")
        time.sleep(_POLL_S)
    content = address_file.read_bytes()
    port, size = struct.unpack_from(">ii", content)
    return Address(port, content[8 : 8 + size].decode())


def _end(process: "subprocess.Popen[bytes]", timeout_s: float) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout_s)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
