"""Spark for the pipeline: on this machine by default, on a cluster where there is one. Started, watched, ended.

Before: job.py.  After: java.py finds Java, archive.py makes its start quick, jvm.py runs it.

Spark hands out tasks here, and nothing else: rows never go through Java. So it may be small: the simple compiler and
the simple collector, no web pages, and only the context, no SQL. Measured on two cores: up in 1 to 2 s for
2 s of CPU (6 s and 8 s as pyspark starts it), 0.28 GB, and 0.4 % of a core while idle.
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
from lakestream.pipeline.archive import Archive, cache_folder
from lakestream.pipeline.java import find_java
from lakestream.pipeline.jvm import Jvm

if TYPE_CHECKING:
    from pyspark import SparkContext

TASK_TRIES: Final = 4

_SIMPLE: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
_SMALL: Final = (*_SIMPLE, "-Xss512k", "-Xmx512m")

_MASTER: Final = re.compile(r"local(\[(\*|[1-9]\d*)(, *[1-9]\d*)?\])?|spark://[^/]+:\d+(,[^/]+:\d+)*|yarn|k8s://.+")

_SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
"""Set by `spark-submit`, which has started Java already and has its own idea of where to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    master: str = "local[*]"


class Spark:
    """One at a time in a process: pyspark has it so."""

    def __init__(self, context: "SparkContext", jvm: Jvm | None, archive: Archive | None) -> None:
        self.context = context
        self._jvm = jvm
        self._archive = archive

    @property
    def alive(self) -> bool:
        """Whether its Java runs. With `spark-submit` that is whose child we are."""
        return self._jvm is None or self._jvm.alive

    def is_stopped(self) -> bool:
        """Whether it has given up, or been told to by its cluster. Blocks; asked when something went wrong."""
        try:
            return not self.alive or bool(self.context._jsc.sc().isStopped())
        except Exception:  # whatever Java has to say about it
            return True

    def share_done(self) -> float:
        """Of the tasks of the jobs under way; 0 where there are none. Blocks for a moment; for who looks on."""
        try:
            tracker = self.context.statusTracker()
            jobs = [tracker.getJobInfo(job) for job in tracker.getActiveJobsIds()]
            stages = [tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
            counts = [(stage.numCompletedTasks, stage.numTasks) for stage in stages if stage is not None]
        except Exception:  # whatever Java has to say about it
            return 0.0
        return sum(done for done, _ in counts) / max(1, sum(tasks for _, tasks in counts))

    def stop(self) -> None:
        """Blocks for a second or two; a few more where an archive is made. Harmless where it has died."""
        _forget_context(self.context, is_ours=self._jvm is not None)
        if self._jvm is not None:
            self._jvm.stop()
        if self._archive is not None:
            self._archive.keep(SystemClock())


def is_local(master: str) -> bool:
    return master.startswith("local")


def start_spark(settings: SparkSettings) -> Spark:
    """Blocks. Misconfigured: there is no Java that fits, or no such master. Unavailable: it does not come up."""
    import pyspark

    _keep_py4j_quiet()
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
    seen_by_java = _environment(environment, spark_home, local=local)
    jvm = Jvm.start(java, spark_home, flags, conf, seen_by_java)
    try:
        gateway = {_SUBMITTED: str(jvm.address.port), "PYSPARK_GATEWAY_SECRET": jvm.address.secret}
        python = {"PYSPARK_PYTHON": seen_by_java["PYSPARK_PYTHON"]}
        return Spark(_open_context(conf, {**gateway, **python}), jvm, archive)
    except BaseException:
        jvm.stop(patience_s=0)
        raise


def _environment(environment: Mapping[str, str], spark_home: Path, *, local: bool) -> dict[str, str]:
    seen = {**environment, "SPARK_HOME": str(spark_home)}
    if local:
        return {**seen, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    seen.setdefault("PYSPARK_PYTHON", sys.executable)  # the same place on every machine, unless they say otherwise
    return seen


def _with_tries(master: str) -> str:
    """On one machine Spark gives up after the first failure of a task, unless the master says how often to try."""
    match = re.fullmatch(r"local(?:\[(\*|\d+)\])?", master)
    return f"local[{match[1] or 1},{TASK_TRIES}]" if match else master


def _conf(master: str, *, submitted: bool = False) -> dict[str, str]:
    conf = {
        "spark.app.name": "lakestream-pipeline",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # Kept for the pages that nobody looks at: it runs for months.
        "spark.ui.retainedJobs": "8",
        "spark.ui.retainedStages": "8",
        "spark.ui.retainedTasks": "64",
        "spark.ui.retainedDeadExecutors": "8",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "lakestream.pipeline.preload",
        # Arrow's pool keeps the pages it has from round to round, as long as a worker lives: fresh ones cost 0.4 s/GB.
        "spark.executorEnv.MIMALLOC_PURGE_DELAY": "-1",
        "spark.executor.heartbeatInterval": "20s",
        "spark.speculation": "false",  # a second try beside the first would only make files that nobody wants
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

    # In the main thread pyspark would take Ctrl-C for itself.
    assert threading.current_thread() is not threading.main_thread()
    with _environment_for_now(environment):
        try:
            chosen = SparkConf()
            for name, value in conf.items():
                chosen.setIfMissing(name, value)
            context = SparkContext(conf=chosen)
        except Exception as error:
            _forget_gateway()
            raise _start_failed(conf.get("spark.master", ""), error) from error
    # A Java that dies is noticed by whoever waits for it; pyspark's own server would print pages about it.
    context._accumulatorServer.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
    return context


def _check_master(master: str) -> None:
    if _MASTER.fullmatch(master) is None:
        raise Misconfigured(f"--master {master!r} is none that Spark knows: local[*], spark://host:7077, yarn, k8s://…")


def _start_failed(master: str, error: Exception) -> Unavailable:
    said = str(error)
    told = re.search(r"^(?:Caused by|:) ?[\w.$]+(?:Exception|Error): (.*)", said, re.MULTILINE)
    return Unavailable(f"Spark does not start on {master}: {told[1] if told else said.splitlines()[0]}")


def _forget_context(context: "SparkContext", *, is_ours: bool) -> None:
    """So that another one can be started: pyspark keeps what it has in its class."""
    if is_ours:
        context._jsc = None  # it ends with its Java, which may have died, or hang
    context.stop()
    _forget_gateway()


def _forget_gateway() -> None:
    from pyspark import SparkContext

    gateway = SparkContext._gateway
    SparkContext._active_spark_context = None
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is not None:
        with contextlib.suppress(Exception):  # its Java may be gone
            gateway.close()


def _keep_py4j_quiet() -> None:
    """It has pages to say about a connection that ends, and says some of them in everybody's name."""
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    logging.getLogger().addFilter(_not_of_py4j)  # once, however often


def _not_of_py4j(record: logging.LogRecord) -> bool:
    return Path(record.pathname).parent.name != "py4j"


@contextlib.contextmanager
def _environment_for_now(environment: Mapping[str, str]) -> Iterator[None]:
    """pyspark is told through it where its Java is."""
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
