"""Conversion of the URLs of engines to object keys and back."""

import pytest

from lakestream.catalog.locations import Locations, overlap
from lakestream.errors import Corrupt, Misconfigured, Rejected


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
def test_url_and_key_convert_both_ways(root: str, key: str, url: str) -> None:
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
def test_all_spellings_of_a_url_give_the_same_key(root: str, url: str) -> None:
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
        "s3://b@other/a/t",
        "s3://other@b/a/t",
        "s3://b/a//t",
    ],
)
def test_url_outside_of_the_root_is_rejected(url: str) -> None:
    with pytest.raises(Rejected):
        Locations("s3://b/a").key_of(url)


@pytest.mark.parametrize("folder", ["wal", "wal/x", "probe/y", "WAL", "Wal/x", "PROBE"])
def test_reserved_folder_is_rejected(folder: str) -> None:
    with pytest.raises(Rejected, match="uses for other data"):
        Locations("s3://b/a").check_table_location(f"s3://b/a/{folder}/")


@pytest.mark.parametrize("url", ["s3://b/a/x", "s3://b/a/tables", "s3://b/a/TABLES/x", "s3://b/a/tablesx/x"])
def test_a_new_table_is_below_the_tables_root(url: str) -> None:
    with pytest.raises(Rejected, match="it is not below s3://b/a/tables: choose a folder below that"):
        Locations("s3://b/a").check_table_location(url)


def test_url_of_another_azure_account_is_rejected() -> None:
    with pytest.raises(Rejected):
        Locations("az://box/a", "acc").key_of("abfss://box@other.dfs.core.windows.net/a/t/f")


@pytest.mark.parametrize(
    "url",
    [
        "s3://b/a/tables/t/f",
        "s3a://b/a/tables/t/data/x=1/f.parquet",
        "S3://b/a/tables/t/metadata/%2e%2e/f",
        "s3://b/a/tables/t/f/",
    ],
)
def test_table_may_name_files_under_its_location(url: str) -> None:
    folder = Locations("s3://b/a").table("s3a://b/a/tables/t/")
    assert (folder.key, folder.location) == ("tables/t", "s3://b/a/tables/t")
    assert folder.key_of(url).startswith("tables/t/")
    assert folder.named_key(url) == folder.key_of(url)
    assert folder.own_keys([url, "s3://b/a/tables/u/f"]) == [folder.key_of(url)]


@pytest.mark.parametrize(
    "url",
    [
        "s3://b/a/tables/t",
        "s3://b/a/tables/t/",
        "s3://b/a/tables/t2/f",
        "s3://b/a/tables/T/f",
        "s3://b/a/tables/t/../u/f",
        "s3://b/a/tables/t/./f",
        "s3://b/a/tables/t//f",
        "s3://b/a/tables/t\\f",
        "s3://b/a/tables%2Ft/f",
        "s3://b/tables/t/f",
        "gs://b/a/tables/t/f",
        "s3://b/a/tables/t/data/_delta_log/1.json",
        "s3://b/a/tables/t/_Delta_Log/1.json",
        "tables/t/f",
        "",
    ],
)
def test_table_may_not_name_other_files(url: str) -> None:
    folder = Locations("s3://b/a").table("s3://b/a/tables/t")
    with pytest.raises(Rejected, match=r"a table may (name only|not name) files"):
        folder.key_of(url)
    with pytest.raises(Corrupt, match="cannot be read"):
        folder.named_key(url)
    assert folder.own_keys([url]) == []


def test_table_outside_of_the_tables_root_is_read_but_not_removable() -> None:
    locations = Locations("s3://b/a")
    assert locations.table("s3://b/a/mine/t").key_of("s3://b/a/mine/t/f") == "mine/t/f"
    assert not locations.table("s3://b/a/mine/t").is_removable
    assert locations.table("s3://b/a/tables/t").is_removable


def test_location_of_a_new_table_has_only_safe_characters() -> None:
    location = Locations("s3://b/a").new_table(("we.ird/ü", "x"), "t %+/" + "x" * 300, "f" * 32)
    assert location == f"s3://b/a/tables/we_ird__/x/t____{'x' * 75}-{'f' * 32}"


def test_folders_overlap_only_by_whole_path_segments() -> None:
    assert overlap("s3://b/t", "s3://b/t/x")
    assert overlap("s3://b/t", "s3://b/t")
    assert not overlap("s3://b/t", "s3://b/t2")


def test_azure_needs_an_account_name() -> None:
    with pytest.raises(Misconfigured, match="AZURE_STORAGE_ACCOUNT_NAME"):
        Locations("az://box/a")
