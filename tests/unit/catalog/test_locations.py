"""URLs as engines write them, and the keys they mean."""

import pytest

from lakestream.catalog.locations import Locations, overlap
from lakestream.errors import Misconfigured, Rejected


@pytest.mark.parametrize(
    ("root", "key", "url"),
    [
        ("file:///var/lake", "tables/t/f", "file:///var/lake/tables/t/f"),
        ("file:///var/my%20lake", "tables/t", "file:///var/my lake/tables/t"),
        ("s3://bucket", "tables/t", "s3://bucket/tables/t"),
        ("s3://bucket/a/b", "tables/t", "s3://bucket/a/b/tables/t"),
        ("gs://bucket/a", "tables/t", "gs://bucket/a/tables/t"),
        ("az://box/a", "tables/t", "abfss://box@acc.dfs.core.windows.net/a/tables/t"),
    ],
)
def test_there_and_back(root: str, key: str, url: str) -> None:
    locations = Locations(root, "acc")
    assert locations.url_of(key) == url
    assert locations.key_of(url) == key


@pytest.mark.parametrize(
    ("root", "url"),
    [
        ("file:///var/lake", "file:/var/lake/t/f"),
        ("file:///var/lake", "/var/lake/t/f"),
        ("file:///var/lake", "file:///var/lake/t/f"),
        ("s3://b/a", "s3a://b/a/t/f"),
        ("az://box/a", "az://box/a/t/f"),
        ("az://box/a", "wasbs://box@acc.blob.core.windows.net/a/t/f"),
    ],
)
def test_one_place_in_several_spellings(root: str, url: str) -> None:
    assert Locations(root, "acc").key_of(url) == "t/f"


@pytest.mark.parametrize(
    "url",
    [
        "s3://other/a/t",
        "s3://b/ab/t",
        "s3://b/a",
        "s3://b/a/../x/t",
        "s3://b/a/x/../../t",
        "gs://b/a/t",
        "file:///b/a/t",
        "/etc/passwd",
        "t",
        "",
        "s3:b/a/t",
        "s3://b/a//t",
    ],
)
def test_outside_is_refused(url: str) -> None:
    with pytest.raises(Rejected):
        Locations("s3://b/a").key_of(url)


@pytest.mark.parametrize("folder", ["wal", "wal/x", "probe/y"])
def test_a_table_is_not_put_where_other_things_are(folder: str) -> None:
    with pytest.raises(Rejected, match="other things"):
        Locations("s3://b/a").check_table_location(f"s3://b/a/{folder}/")


def test_a_new_table_has_a_folder_that_every_engine_can_spell() -> None:
    location = Locations("s3://b/a").new_table(("we.ird/ü", "x"), "t %+/" + "x" * 300, "f" * 32)
    assert location == f"s3://b/a/tables/we_ird__/x/t____{'x' * 75}-{'f' * 32}"


def test_folders_overlap_by_whole_names() -> None:
    assert overlap("s3://b/t", "s3://b/t/x")
    assert overlap("s3://b/t", "s3://b/t")
    assert not overlap("s3://b/t", "s3://b/t2")


def test_azure_needs_its_account() -> None:
    with pytest.raises(Misconfigured, match="AZURE_STORAGE_ACCOUNT_NAME"):
        Locations("az://box/a")
