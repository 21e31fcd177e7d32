"""The layers, held by a test: data flows down. It sees imports inside functions too."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "src" / "lakestream"

LAYERS = [
    "__main__ cli testing",
    "process",
    "measures",
    "broker moving",
    "node",
    "protocol pipeline console",
    "coordination",
    "data",
    "catalog",
    "metadata",
    "storage",
    "schemas",
    "batch compression",
    "filed",
    "model errors checksum collector settings clock addresses board beside durations seldom",
]
INSIDE_DATA = ["log", "wal table typed", "cache"]

INDEPENDENT = [
    ("metadata/sqlite", "metadata/oxia"),
    ("metadata/sqlite", "metadata/memory"),
    ("metadata/oxia", "metadata/memory"),
    ("protocol/kafka", "protocol/rest"),
]
"""Backends are interchangeable, and each protocol goes without the others: none knows another."""


def imports_of(source: str) -> Iterator[str]:
    """Every module of ours that a module names, wherever in it the import stands."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "lakestream")
        elif isinstance(node, ast.ImportFrom) and node.level:
            raise AssertionError("a relative import hides its layer: name the module in full")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "lakestream":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def upward(layers: list[str], home: str, names: Iterator[str], depth: int) -> list[str]:
    """The imports that point up. `depth`: which part of a dotted name is the layer's."""
    rank = {name: place for place, line in enumerate(layers) for name in line.split()}
    found = []
    for name in names:
        parts = name.split(".")
        if len(parts) > depth and parts[depth] in rank and rank[parts[depth]] < rank[home]:
            found.append(name)
    return found


def modules(folder: Path = ROOT) -> list[Path]:
    return sorted(path for path in folder.rglob("*.py") if "_pb2" not in path.name)


def layer_of(path: Path, root: Path) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_data_flows_down(path: Path) -> None:
    home = layer_of(path, ROOT)
    if home == "__init__":
        return
    assert home in " ".join(LAYERS).split(), f"{home} has no layer: give it one in LAYERS"
    assert upward(LAYERS, home, imports_of(path.read_text()), 1) == []


@pytest.mark.parametrize("path", modules(ROOT / "data"), ids=lambda path: str(path.relative_to(ROOT)))
def test_data_flows_down_inside_data(path: Path) -> None:
    home = layer_of(path, ROOT / "data")
    if home == "__init__":
        return
    names = (name for name in imports_of(path.read_text()) if name.startswith("lakestream.data."))
    assert upward(INSIDE_DATA, home, names, 2) == []


@pytest.mark.parametrize(("one", "other"), INDEPENDENT)
def test_siblings_do_not_know_one_another(one: str, other: str) -> None:
    for mine, theirs in ((one, other), (other, one)):
        path = ROOT / mine
        for module in modules(path) if path.is_dir() else [path.with_suffix(".py")]:
            named = "lakestream." + theirs.replace("/", ".")
            assert not any(name.startswith(named) for name in imports_of(module.read_text())), module


def test_no_key_is_spelled_outside_the_page_of_keys() -> None:
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
def test_an_upward_import_is_seen(source: str) -> None:
    assert upward(LAYERS, "metadata", imports_of(source), 1) != []


def test_a_downward_import_is_fine() -> None:
    assert upward(LAYERS, "data", imports_of("from lakestream.metadata import keys"), 1) == []


def test_importing_lakestream_needs_no_extra() -> None:
    """Neither gRPC nor Spark is loaded by the package or by what one machine runs."""
    needed = "import lakestream, lakestream.node, sys; assert not {'grpc', 'pyspark'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", needed], check=False).returncode == 0
