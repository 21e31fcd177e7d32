"""Starts and stops Spark for the pipeline: on this machine by default, or on a cluster.

Before: job.py.  After: java.py finds Java, class_data_sharing.py speeds up its start, jvm.py runs it.

Spark only distributes tasks here; rows never go through Java. So it can be small: the C1 compiler and the serial
collector, no web UI, and only the context, no SQL. Measured on two cores: started in 1 to 2 s with 2 s of CPU (6 s and
8 s as pyspark starts it), 0.28 GB, and 0.4 % of a core while idle.
"""

import contextlib
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lakestream.clock import SystemClock
from lakestream.errors import Misconfigured, Unavailable
from lakestream.pipeline.spark.class_data_sharing import Archive, cache_folder
from lakestream.pipeline.spark.java import find_java
from lakestream.pipeline.spark.jvm import Jvm

if TYPE_CHECKING:
    from pyspark import SparkContext

TASK_TRIES: Final = 4

_SIMPLE: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_SMALL: Final = (*_SIMPLE, "-Xss512k", "-Xmx512m")

_MASTER: Final = re.compile(r"local(\[(\*|[1-9]\d*)(, *[1-9]\d*)?\])?|spark://[^/]+:\d+(,[^/]+:\d+)*|yarn|k8s://.+")

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by `spark-submit`, which has started Java already and decides on the master."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    master: str = "local[*]"


class Spark:
    """A running Spark. pyspark allows one at a time in a process."""

    def __init__(self, context: "SparkContext", jvm: Jvm | None, archive: Archive | None) -> None:
        self.context = context
        self._jvm = jvm
        self._archive = archive

    @property
    def alive(self) -> bool:
        """Whether its Java runs. With `spark-submit`, Java is the parent of this process."""
        return self._jvm is None or self._jvm.alive

    def is_stopped(self) -> bool:
        """Whether Spark stopped by itself or by its cluster. Blocks; called after an error."""
        try:
            return not self.alive or bool(self.context._jsc.sc().isStopped())
        except Exception:  # any error of Java
            return True

    def stop(self) -> None:
        """Stops Spark. Blocks for a second or two; a few more if an archive is written. Harmless if Spark has ended."""
        _forget_context(self.context, is_ours=self._jvm is not None)
        if self._jvm is not None:
            self._jvm.stop()
        if self._archive is not None:
            self._archive.keep(SystemClock())


def is_local(master: str) -> bool:
    return master.startswith("local")


def start_spark(settings: SparkSettings) -> Spark:
    """Starts Spark. Blocks. Misconfigured: no suitable Java, or an invalid master. Unavailable: the start failed."""
    import pyspark

    _silence_py4j()
    _check_master(settings.master)
    environment = dict(os.environ)
    if _SUBMITTED in environment:
        return Spark(_open_context(_conf(settings.master, submitted=True), {}), None, None)
    local = is_local(settings.master)
    java = find_java(environment)
    spark_home = Path(pyspark.__file__).parent
    archive = Archive(cache_folder(environment), java, spark_home, _SMALL)
    flags = (*_SMALL, *archive.flags())
    conf = _conf(_with_tries(settings.master))
    java_environment = _environment(environment, spark_home, local=local)
    jvm = Jvm.start(java, spark_home, flags, conf, java_environment)
    try:
        gateway = {_SUBMITTED: str(jvm.address.port), "PYSPARK_GATEWAY_SECRET": jvm.address.secret}
        python = {"PYSPARK_PYTHON": java_environment["PYSPARK_PYTHON"]}
        return Spark(_open_context(conf, {**gateway, **python}), jvm, archive)
    except BaseException:
        jvm.stop(timeout_s=0)
        raise


def _environment(environment: Mapping[str, str], spark_home: Path, *, local: bool) -> dict[str, str]:
    result = {**environment, "SPARK_HOME": str(spark_home)}
    if local:
        return {**result, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    result.setdefault("PYSPARK_PYTHON", sys.executable)  # the same path on every machine, unless set
    return result


def _with_tries(master: str) -> str:
    """Adds the number of tries to a local master; without it, Spark does not retry a failed task on one machine."""
    match = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{match[1] or 1},{TASK_TRIES}]" if match else master


def _conf(master: str, *, submitted: bool = False) -> dict[str, str]:
    conf = {
        "spark.app.name": "lakestream-pipeline",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Spark keeps these for the web UI, even if it is disabled, and the process runs for months.
        "spark.ui.retainedJobs": "8",
        "spark.ui.retainedStages": "8",
        "spark.ui.retainedTasks": "64",
        "spark.ui.retainedDeadExecutors": "8",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "lakestream.pipeline.spark.worker_daemon",
        # Arrow's pool keeps its pages between micro-batches, as long as a worker lives: new pages cost 0.4 s/GB.
        "spark.executorEnv.MIMALLOC_PURGE_DELAY": "-1",
        "spark.executor.heartbeatInterval": "20s",
        "spark.speculation": "false",  # a second concurrent attempt would only write surplus files
        "spark.task.maxFailures": str(TASK_TRIES),
        "spark.executor.extraJavaOptions": " ".join(_SIMPLE),
    }
    if not submitted:
        conf["spark.master"] = master
    if is_local(master) and not submitted:
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    return conf


def _open_context(conf: Mapping[str, str], environment: Mapping[str, str]) -> "SparkContext":
    from pyspark import SparkConf, SparkContext

    # In the main thread pyspark would install its own handler of Ctrl-C.
    assert threading.current_thread() is not threading.main_thread()
    with _temporary_environment(environment):
        try:
            chosen = SparkConf()
            for name, value in conf.items():
                chosen.setIfMissing(name, value)
            context = SparkContext(conf=chosen)
        except Exception as error:
            _forget_gateway()
            raise _start_failed(conf.get("spark.master", ""), error) from error
    # The caller detects the end of Java; pyspark's own server would print long traces about it.
    context._accumulatorServer.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    return context


def _check_master(master: str) -> None:
    if _MASTER.fullmatch(master) is None:
        raise Misconfigured(f"invalid --master {master!r}: use local[*], spark://host:7077, yarn or k8s://…")


def _start_failed(master: str, error: Exception) -> Unavailable:
    text = str(error)
    cause = re.search(r"^(?:Caused by|:) ?[\w.$]+(?:Exception|Error): (.*)", text, re.MULTILINE)
    return Unavailable(f"Spark does not start on {master}: {cause[1] if cause else text.splitlines()[0]}")


def _forget_context(context: "SparkContext", *, is_ours: bool) -> None:
    """Removes the context that pyspark keeps in its class, so that another one can be started."""
    if is_ours:
        context._jsc = None  # it ends with its Java, which may have ended already, or hang
    context.stop()
    _forget_gateway()


def _forget_gateway() -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    SparkContext._active_spark_context = None
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None:
        with contextlib.suppress(Exception):  # its Java may have ended
            gateway.close()


def _silence_py4j() -> None:
    """Silences py4j, which logs long traces about closed connections, some of them with the root logger."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_py4j)  # added once, also by repeated calls


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


@contextlib.contextmanager
def _temporary_environment(environment: Mapping[str, str]) -> Iterator[None]:
    """Sets variables through which pyspark finds its Java, and restores them."""
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
