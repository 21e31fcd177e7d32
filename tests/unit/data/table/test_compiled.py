"""Kernels are kept between processes where that is possible, and work where it is not."""

import importlib.util
import logging
from pathlib import Path
from types import ModuleType

import pytest

from lakestream.data.table import compiled
from lakestream.data.table.compiled import kernel

SOURCE = """
from lakestream.data.table.compiled import kernel

@kernel("int64(int64)")
def doubled(number):
    return 2 * number
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiled, "_FOLDER", tmp_path / "kept")
    return tmp_path / "kept"


def imported(tmp_path: Path) -> ModuleType:
    path = tmp_path / "some_kernels.py"
    path.write_text(SOURCE)
    spec = importlib.util.spec_from_file_location("some_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_was_compiled_is_loaded_again(tmp_path: Path, folder: Path) -> None:
    assert imported(tmp_path).doubled(21) == 42
    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb*")}
    assert len(kept) == 2, "an index and the code"
    again = imported(tmp_path)
    assert again.doubled(4) == 8
    assert sum(again.doubled.stats.cache_hits.values()) == 1
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb*")} == kept


def test_what_is_kept_may_be_damaged(tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    imported(tmp_path)
    for path in folder.rglob("*.nbi"):
        path.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert imported(tmp_path).doubled(21) == 42
    assert "kernel doubled is compiled for this process only" in caplog.text


def test_nowhere_to_keep_anything(caplog: pytest.LogCaptureFixture) -> None:
    """As on a file system that is only for reading: numba itself refuses there."""
    names: dict[str, object] = {"kernel": kernel}
    code = compile('@kernel("int64(int64)")\ndef doubled(number):\n    return 2 * number\n', "<nowhere>", "exec")
    with caplog.at_level(logging.WARNING):
        exec(code, names)
    doubled = names["doubled"]
    assert callable(doubled)
    assert doubled(21) == 42
    assert "kernel doubled is compiled for this process only" in caplog.text


def test_a_wrong_kernel_is_an_error_where_it_stands() -> None:
    with pytest.raises(Exception, match="nothing_of_the_kind"):

        @kernel("int64(int64)")
        def wrong(number: int) -> int:
            return nothing_of_the_kind(number)  # type: ignore[name-defined, no-any-return]  # noqa: F821
