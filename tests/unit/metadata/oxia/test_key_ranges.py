"""Ranges and names in Oxia's key order."""

import pytest

from lakestream.errors import Rejected
from lakestream.metadata.oxia.key_ranges import PROBE_PATH, check_folder, check_key, is_child, range_of
from lakestream.metadata.store import Folder, Key

LOG = Folder("/log/a/0", "/log/a/0")


def test_range_contains_the_children_of_a_folder() -> None:
    assert range_of(LOG) == ("/log/a/0/", "/log/a/0//")
    assert range_of(LOG, "005") == ("/log/a/0/005", "/log/a/0//")
    assert range_of(LOG, "005", "floor") == ("/log/a/0/005", "/log/a/0/floor")


@pytest.mark.parametrize("path", ["/log/a/0/1", "/log/a/0/~", "/log/a/0/floor"])
def test_direct_child_is_in_the_folder(path: str) -> None:
    assert is_child(LOG, path)


@pytest.mark.parametrize("path", ["", "/log/a/0", "/log/a/0/", "/log/a/0/1/x", "/log/a/01", "/log/b/0/1", "__oxia/x"])
def test_other_paths_are_not_in_the_folder(path: str) -> None:
    assert not is_child(LOG, path)


@pytest.mark.parametrize("path", ["", "a", "/", "/a/", "/a//b", "__oxia/commit-offset", PROBE_PATH])
def test_invalid_keys_that_oxia_accepts_are_rejected(path: str) -> None:
    with pytest.raises(Rejected):
        check_key(Key(path, "home"))


def test_key_without_a_home_is_rejected() -> None:
    with pytest.raises(Rejected):
        check_key(Key("/a/b", ""))


def test_names_with_a_slash_are_rejected() -> None:
    with pytest.raises(Rejected):
        check_folder(LOG, "a/b")
    with pytest.raises(Rejected):
        check_folder(Folder("", "home"))
    assert check_folder(LOG, "a", None) == LOG
