"""Compiled kernels are cached on disk if possible, and work without a cache."""

import importlib.util
import logging
from pathlib import Path
from types import ModuleType

import pytest

from lakestream.data.table.kernels import compile as compiled
from lakestream.data.table.kernels.compile import kernel

SOURCE = """
from lakestream.data.table.kernels.compile import kernel

@kernel("int64(int64)")
def doubled(number):
    return 2 * number
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compiled, "_FOLDER", tmp_path / "kept")
    return tmp_path / "kept"


def imported(tmp_path: Path, source: str = SOURCE) -> ModuleType:
    path = tmp_path / "some_kernels.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("some_kernels", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_compiled_kernel_is_loaded_from_the_cache(tmp_path: Path, folder: Path) -> None:
    assert imported(tmp_path).doubled(21) == 42
    kept = {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb*")}
    assert len(kept) == 2, "an index and the code"
    again = imported(tmp_path)
    assert again.doubled(4) == 8
    assert sum(again.doubled.stats.cache_hits.values()) == 1
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.nb*")} == kept


def test_cache_of_another_source_is_not_used(tmp_path: Path, folder: Path) -> None:
    imported(tmp_path)
    kept = set(folder.rglob("*.nb*"))
    assert imported(tmp_path, SOURCE.replace("2 *", "3 *")).doubled(21) == 63
    assert len(set(folder.rglob("*.nb*")) - kept) == 2


def test_kernel_is_compiled_when_the_cache_is_damaged(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    imported(tmp_path)
    for path in folder.rglob("*.nbi"):
        path.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        assert imported(tmp_path).doubled(21) == 42
    assert "kernels.cache_failed kernel=doubled " in caplog.text


def test_kernel_is_compiled_when_the_cache_folder_is_not_writable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a read-only file system."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    with caplog.at_level(logging.WARNING):
        assert compiled._folder() is None
    assert "each process compiles all kernels; set NUMBA_CACHE_DIR to a folder" in caplog.text
    monkeypatch.setattr(compiled, "_FOLDER", None)
    assert imported(tmp_path).doubled(21) == 42
    assert not list(tmp_path.rglob("*.nb*"))


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"NUMBA_CACHE_DIR": "one", "LAKESTREAM_CACHE": "two", "XDG_CACHE_HOME": "three"}, "one"),
        ({"LAKESTREAM_CACHE": "two", "XDG_CACHE_HOME": "three"}, "two/kernels"),
        ({"XDG_CACHE_HOME": "three"}, "three/lakestream/kernels"),
        ({"HOME": "four"}, "four/.cache/lakestream/kernels"),
    ],
)
def test_cache_folder_follows_the_environment(
    environment: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NUMBA_CACHE_DIR", "LAKESTREAM_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert compiled._chosen_folder() == Path(folder)


def test_kernel_is_compiled_when_numba_cannot_cache_it(caplog: pytest.LogCaptureFixture) -> None:
    names: dict[str, object] = {"kernel": kernel}
    code = compile('@kernel("int64(int64)")\ndef doubled(number):\n    return 2 * number\n', "<nowhere>", "exec")
    with caplog.at_level(logging.WARNING):
        exec(code, names)
    doubled = names["doubled"]
    assert callable(doubled)
    assert doubled(21) == 42
    assert "kernels.cache_failed kernel=doubled " in caplog.text


def test_invalid_kernel_fails_at_its_definition() -> None:
    with pytest.raises(Exception, match="nothing_of_the_kind"):

        @kernel("int64(int64)")
        def wrong(number: int) -> int:
            return nothing_of_the_kind(number)  # type: ignore[name-defined, no-any-return]  # noqa: F821
