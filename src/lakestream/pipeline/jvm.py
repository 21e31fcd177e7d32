"""Spark's Java process, started without Spark's shell scripts: a shell and one more Java less, and it is ours to watch.

Before: java.py, spark.py.  It ends when its standard input is closed, so it never outlives this process, however that
ends. Everything here blocks: called in a thread.
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
from lakestream.pipeline.java import Java

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
    "-XX:+ExitOnOutOfMemoryError",  # so that it is noticed, and started again
)
"""As Spark's own launcher has it, but for the vector module, which small Javas lack and nothing here uses."""

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
"""One line for what is worth one. What a worker died of is said twice by Spark: by the task's owner is enough."""


class Address(NamedTuple):
    """Where the Java process answers to Python."""

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
        """Blocks for a second or so. Unavailable: it ended, or does not answer."""
        with _folder() as folder:
            answer = folder / "address"
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
                env={**environment, "_PYSPARK_DRIVER_CONN_INFO_PATH": str(answer), "SPARK_CONNECT_MODE": "0"},
                start_new_session=True,  # Ctrl-C is for us; what it means for Spark we say ourselves
            )
            try:
                return cls(process, _address(process, answer))
            except BaseException:
                _end(process, patience_s=0)
                raise

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self, patience_s: float = STOP_S_MAX) -> None:
        _end(self._process, patience_s)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """Only for the start: nothing is left behind, even if we are killed later."""
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


def _address(process: "subprocess.Popen[bytes]", answer: Path) -> Address:
    """Spark writes the file under another name and renames it: it is there, or it is whole."""
    until_s = time.monotonic() + START_S_MAX
    while not answer.exists():
        if process.poll() is not None:
            raise Unavailable(
                f"Spark's Java ended at its start with exit code {process.returncode}; its lines above say why"
            )
        if time.monotonic() > until_s:
            raise Unavailable(f"Spark's Java did not answer within {START_S_MAX:.0f} s")
        time.sleep(_POLL_S)
    said = answer.read_bytes()
    port, size = struct.unpack_from(">ii", said)
    return Address(port, said[8 : 8 + size].decode())


def _end(process: "subprocess.Popen[bytes]", patience_s: float) -> None:
    assert process.stdin is not None
    with contextlib.suppress(OSError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
