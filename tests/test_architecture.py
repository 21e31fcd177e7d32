"""Tests the layers, the size of folders and the mirrored tests. Imports inside functions count, too."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent / "src" / "lakestream"

LAYERS = [
    "__main__ cli testing",
    "server",
    "protocol pipeline",
    "coordination",
    "data",
    "catalog",
    "metadata",
    "storage",
    "schemas",
    "records",
    "json_values",
    "aio config model errors clock",
]
"""From top to bottom. A module imports only from its own layer and from those below."""

INNER_LAYERS = {
    "server": [
        "http",
        "process",
        "metrics_collector readiness",
        "broker pipeline",
        "node",
        "shared_pages gc_task latency_quantiles",
    ],
    "pipeline": [
        "driver",
        "micro_batch dead_letters delta",
        "table_setup commit",
        "repair maintenance",
        "spark",
        "topic_schemas worker refresh_requests backlog unfinished_moves plan transaction_cut topic_status tasks",
    ],
    "protocol/kafka": ["handlers", "dispatch", "services", "network", "wire", "errors fields"],
    "data": ["verify", "log", "wal table typed"],
    "data/table": ["history commit_check", "read", "write", "arrow", "kernels history_types"],
    "data/typed": [
        "validation columns_to_values values_to_columns",
        "json_schema format_codecs projection arrow",
        "avro json protobuf wire_format",
        "codec",
        "column_buffers",
        "kernels",
    ],
    "catalog": [
        "delta",
        "operations",
        "purge catalog",
        "topic_table_names",
        "pointers metadata_files namespaces staged_creates",
        "commit_checks",
        "topic_table",
        "manifests",
        "table_metadata",
        "identifiers locations errors",
    ],
}
"""The same inside of packages."""

INDEPENDENT = [
    ("metadata/sqlite", "metadata/oxia"),
    ("metadata/sqlite", "metadata/memory"),
    ("metadata/oxia", "metadata/memory"),
    ("protocol/kafka", "protocol/rest"),
]
"""Backends are interchangeable, and each protocol works without the others, so neither imports the other."""

MODULES_MAX = 16
"""In one folder."""

AIO_IMPORTS = {"lakestream.aio", "lakestream.errors", "lakestream.clock", "lakestream.model"}


def imports_of(source: str) -> Iterator[str]:
    """Yields the dotted name of everything of Lakestream that a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "lakestream")
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError("a relative import hides its layer: import the module by its full name")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lakestream":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def upward(layers: list[str], package: str, home: str, names: Iterator[str]) -> list[str]:
    """Returns the imports within the package that point to a higher layer than `home`."""
    rank = {name: level for level, line in enumerate(layers) for name in line.split()}
    assert home in rank, f"{package}.{home} has no layer: add it to LAYERS or INNER_LAYERS"
    prefix = package + "."
    found = []
    for name in names:
        target = name.removeprefix(prefix).split(".")[0] if name.startswith(prefix) else home
        if rank.get(target, rank[home]) < rank[home]:
            found.append(name)
    return found


def modules(folder: Path = ROOT) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "_pb2" not in path.name)


def module_name(path: Path) -> str:
    return ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__")


@cache
def import_graph() -> dict[str, set[str]]:
    paths = {module_name(path): path for path in modules()}

    def module_of(name: str) -> str:
        while name not in paths:
            name = name.rpartition(".")[0]
        return name

    return {name: {module_of(i) for i in imports_of(path.read_text())} - {name} for name, path in paths.items()}


@pytest.mark.parametrize("package", ["", *INNER_LAYERS])
def test_no_import_points_to_a_higher_layer(package: str) -> None:
    folder = ROOT / package
    layers = INNER_LAYERS[package] if package else LAYERS
    dotted = ".".join(("lakestream", *Path(package).parts))
    found = {}
    for path in modules(folder):
        home = path.relative_to(folder).parts[0].removesuffix(".py")
        if home != "__init__" and (names := upward(layers, dotted, home, imports_of(path.read_text()))):
            found[module_name(path)] = names
    assert found == {}


def test_modules_do_not_import_each_other_in_a_circle() -> None:
    remaining = {name: set(imports) for name, imports in import_graph().items()}
    while leaves := {name for name, imports in remaining.items() if not imports & remaining.keys()}:
        remaining = {name: imports for name, imports in remaining.items() if name not in leaves}
    assert sorted(remaining) == []


@pytest.mark.parametrize(("one", "other"), INDEPENDENT)
def test_interchangeable_packages_do_not_import_each_other(one: str, other: str) -> None:
    for mine, theirs in ((one, other), (other, one)):
        path = ROOT / mine
        for module in modules(path) if path.is_dir() else [path.with_suffix(".py")]:
            named = "lakestream." + theirs.replace("/", ".")
            assert not any(name.startswith(named) for name in imports_of(module.read_text())), module


def test_aio_imports_only_the_leaf_modules() -> None:
    for path in modules(ROOT / "aio"):
        for name in imports_of(path.read_text()):
            assert ".".join(name.split(".")[:2]) in AIO_IMPORTS, path


def test_folders_have_few_modules_and_a_stated_purpose() -> None:
    for folder in {path.parent for path in modules()}:
        count = sum(path.name != "__init__.py" for path in modules(folder) if path.parent == folder)
        assert count <= MODULES_MAX, f"{folder} has {count} modules: divide it by purpose"
        assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text())), f"{folder}: state the purpose"


def test_unit_tests_mirror_the_sources() -> None:
    """`test_claim_retry_lost_answers.py` tests the module or package `claim_retry` at the same path."""
    misplaced = []
    for path in sorted((TESTS / "unit").rglob("test_*.py")):
        relative = path.relative_to(TESTS / "unit").parent
        if relative.parts and relative.parts[0] in OUTSIDE_OF_SOURCES:
            continue
        words = path.stem.removeprefix("test_").split("_")
        names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
        home = ROOT / relative
        if not any((home / f"{name}.py").is_file() or (home / name).is_dir() for name in names):
            misplaced.append(str(path.relative_to(TESTS)))
    assert misplaced == []


OUTSIDE_OF_SOURCES = {"benchmarks", "jepsen_style", "scripts", "harness"}
"""Unit tests of code outside `src`."""


def test_keys_of_the_metadata_store_are_written_only_in_keys() -> None:
    for path in modules():
        if path.relative_to(ROOT).as_posix() == "metadata/keys.py" or "testing" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                assert not node.value.startswith(
                    (
                        *("/log/", "/fold/", "/table_end/", "/topics", "/brokers", "/cluster", "/probe", "/catalog"),
                        *("/groups/", "/offsets/", "/group_names"),
                    )
                ), path


@pytest.mark.parametrize(
    "source",
    [
        "from lakestream.data.log.log import Log",
        "import lakestream.data.log.log",
        "def late():\n    from lakestream.data import log",
        "from lakestream import data",
    ],
)
def test_upward_import_is_found(source: str) -> None:
    assert upward(LAYERS, "lakestream", "metadata", imports_of(source)) != []


def test_downward_import_is_allowed() -> None:
    assert upward(LAYERS, "lakestream", "data", imports_of("from lakestream.metadata import keys")) == []


def test_importing_the_package_loads_no_optional_dependency() -> None:
    """The embedded default needs neither gRPC nor Spark until it starts the pipeline."""
    needed = "import lakestream, lakestream.server.node, sys; assert not {'grpc', 'pyspark'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", needed], check=False).returncode == 0
