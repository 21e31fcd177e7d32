"""Tests of `make tools` with fake compilers: the builds, their paths, and the messages of failures."""

import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "tools.py"
PROGRAMS = [
    "azurite-blob",
    "delta-spark-jars",
    "iceberg-spark-jars",
    "kafka-apps-class",
    "kafka-class",
    "kafka-python-suite",
    "kafkajs-node",
    "kcat",
    "librdkafka-suite",
    "oxia",
    "schemas-go",
    "schemas-node",
    "spark-avro-jars",
    "spark-kafka-jars",
    "toxiproxy-server",
    "versitygw",
]
BUILT = [
    name for name in PROGRAMS if name not in ("kcat", "kafka-python-suite")
]  # installed on the machine; installed by pip

GO = """#!/bin/sh
case "$1 $2" in
  "version "*) echo go version go1.99.0 linux/amd64 ;;
  "install "*) echo "$2" >> "$BUILT"; sleep 0.1; name=${2##*/}; echo built > "$GOBIN/${name%@*}" ;;
  "mod init" | "get "*) ;;
  "mod download") echo "{\\"Dir\\": \\"$MODULE\\"}" ;;
  "build -o") echo built >> "$BUILT"; cp main.go "$3" 2> /dev/null || cp server/leader_controller.go "$3" ;;
  *) exit 2 ;;
esac
"""
NODE = "#!/bin/sh\necho v99.1.0\n"
NPM = """#!/bin/sh
[ "$1" != pack ] || { tar czf pack.tgz -C "$PACKAGE" package && echo pack.tgz; exit; }
echo "$1" >> "$BUILT"
"""
MAKE = """#!/bin/sh
if [ "$2" = libs ]; then touch src/librdkafka.so.1 src-cpp/librdkafka++.so.1; exit; fi
echo make >> "$BUILT"
printf '#!/bin/sh\\necho "$LD_LIBRARY_PATH" "$@"\\n' > tests/test-runner
chmod +x tests/test-runner
"""
MVN = """#!/bin/sh
echo mvn >> "$BUILT"
names='kafka-(tools|streams)|iceberg-aws-bundle|delta-storage|spark-(avro|sql-kafka-0-10)_2.13'
grep -qE "<artifactId>($names)<" pom.xml
"""
ECHO = '#!/bin/sh\necho "$@"\n'


@pytest.fixture
def machine(tmp_path: Path) -> dict[str, str]:
    """Returns the environment of a machine with the fake compilers and an empty home."""
    tools = tmp_path / "bin"
    tools.mkdir()
    programs = {"go": GO, "node": NODE, "npm": NPM, "mvn": MVN, "java": ECHO, "kcat": ECHO, "make": MAKE}
    for name, text in (programs | {"gcc": ECHO, "g++": ECHO}).items():
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    source = tmp_path / "module" / "server" / "leader_controller.go"
    source.parent.mkdir(parents=True)
    unpatched = [
        line[1:] for line in (SCRIPT.parent / "oxia-wal-order.patch").read_text().splitlines(True)[3:] if line[0] != "+"
    ]
    source.write_text("\n" * 801 + "".join(unpatched))
    write_librdkafka(tmp_path / "package" / "deps" / "librdkafka")
    write_sdist(tmp_path)
    return {
        "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(tmp_path / "home"),
        "LAKESTREAM_CACHE": str(tmp_path / "cache with a blank"),
        "MODULE": str(tmp_path / "module"),
        "BUILT": str(tmp_path / "built"),
        "PACKAGE": str(tmp_path),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path),
    }


def write_librdkafka(tree: Path) -> None:
    for folder in ("src", "src-cpp", "tests"):
        (tree / folder).mkdir(parents=True)
    (tree / "configure").write_text('echo "$@" > configured\n')
    (tree / "tests" / "test.c").touch()


def write_sdist(folder: Path) -> None:
    """Writes an sdist of kafka-python with the version in requirements.txt, for pip."""
    requirements = (SCRIPT.parents[1] / "requirements.txt").read_text()
    version = requirements.partition("\nkafka-python==")[2].split()[0]
    tree = folder / f"kafka_python-{version}"
    (tree / "test" / "integration").mkdir(parents=True)
    (tree / "test" / "integration" / "test_it.py").write_text("def test_it(): ...\n")
    build = '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
    (tree / "pyproject.toml").write_text(f'{build}[project]\nname = "kafka-python"\nversion = "{version}"\n')
    (tree / "PKG-INFO").write_text(f"Metadata-Version: 2.2\nName: kafka-python\nVersion: {version}\n")
    with tarfile.open(folder / f"{tree.name}.tar.gz", "w:gz") as tar:
        tar.add(tree, tree.name)


def start(machine: dict[str, str]) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, str(SCRIPT)], env=machine, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def run(machine: dict[str, str]) -> tuple[int, str, str]:
    with start(machine) as process:
        out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_tools_are_built_once_when_two_runs_are_concurrent(machine: dict[str, str]) -> None:
    with start(machine) as one, start(machine) as two:
        ready = []
        for process in (one, two):
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            ready.append(out.count("ready"))
    assert max(ready) == len(PROGRAMS)  # on a busy machine one run may start when some tools are built
    links = Path(machine["LAKESTREAM_CACHE"]) / "bin"
    assert sorted(path.name for path in links.iterdir()) == PROGRAMS
    assert all(path.resolve().exists() for path in links.iterdir())
    assert len(Path(machine["BUILT"]).read_text().splitlines()) == len(BUILT)
    assert "defer lc.Unlock()" in (links / "oxia").read_text()
    code, out, _ = run(machine)
    assert (code, out.count("\n")) == (0, 1)
    assert len(Path(machine["BUILT"]).read_text().splitlines()) == len(BUILT)
    assert "/libs/* a b c" in output_of(links / "kafka-class", "a", "b c")
    assert "/kafka-apps-4.3.1/libs/* a" in output_of(links / "kafka-apps-class", "a")
    assert output_of(links / "kcat", "-V") == "-V\n"
    suite = (links / "librdkafka-suite").resolve().parent
    assert output_of(links / "librdkafka-suite", "-Q") == f"{suite} -Q\n"
    assert "1 passed" in output_of(links / "kafka-python-suite", "-q", "test", PYTHON=sys.executable)


def output_of(program: Path, *arguments: str, **environment: str) -> str:
    env = dict(os.environ) | environment
    return subprocess.run([program, *arguments], check=True, capture_output=True, text=True, env=env).stdout


def test_tool_is_skipped_with_a_reason_when_it_cannot_be_built(machine: dict[str, str]) -> None:
    tools = Path(machine["PATH"].split(os.pathsep)[0])
    # A machine with only these programs: without mvn, kcat, apt-get and a compiler.
    bare = tools.parent / "bare"
    bare.mkdir()
    for name in ("sh", "sleep", "echo", "cp", "chmod", "git", "env", "tar", "gzip"):
        (bare / name).symlink_to(shutil.which(name) or "")
    (tools / "mvn").unlink()
    (tools / "kcat").unlink()
    (tools / "g++").unlink()
    code, out, err = run(machine | {"PATH": f"{tools}{os.pathsep}{bare}"})
    assert code == 0, err
    assert "kafka 4.3.1 is skipped: mvn is not on the PATH" in err
    assert "kcat 1.7.1 is skipped" in err
    assert "librdkafka-suite 1.10.1 is skipped: g++ is not on the PATH" in err
    assert out.count("ready") == len(PROGRAMS) - 8


def test_failed_build_prints_the_log_path_and_leaves_no_files(machine: dict[str, str]) -> None:
    go = Path(machine["PATH"].split(os.pathsep)[0]) / "go"
    go.write_text(GO.replace('"install "*)', '"install "*) echo no space left >&2; exit 7 ;; "never "*)'))
    code, _, err = run(machine)
    assert code == 1
    assert err.count("\n") == 1
    log = Path(err.split("; see ")[1].strip())
    assert "no space left" in log.read_text()
    assert list((Path(machine["LAKESTREAM_CACHE"]) / "tools").iterdir()) == []
    go.write_text(GO)
    assert run(machine)[0] == 0


def test_build_fails_when_a_patch_does_not_apply(machine: dict[str, str]) -> None:
    (Path(machine["MODULE"]) / "server" / "leader_controller.go").write_text("something else\n")
    code, _, err = run(machine)
    assert code == 1
    assert "oxia 0.14.0 failed" in err
