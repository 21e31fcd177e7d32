"""Selection of snapshots to expire: Iceberg's rules, and a grace period for queries. Pure."""

from typing import Any

import pytest

from lakestream.catalog.operations.expire_snapshots import ExpirySettings, expiry
from lakestream.catalog.table_metadata.json_model import Json

HOUR = 3_600_000
NOW = 1_700_000_000_000
RULES = ExpirySettings(age_ms=HOUR, grace_ms=600_000)


def table(ages_ms: list[int], refs: dict[str, Json] | None = None, **properties: str) -> Json:
    """Returns a table with the snapshots 1, 2, …, each `main` until the next one."""
    snapshots = []
    for number, age_ms in enumerate(ages_ms, start=1):
        snapshot: dict[str, Any] = {"snapshot-id": number, "timestamp-ms": NOW - age_ms}
        snapshots.append(snapshot | ({"parent-snapshot-id": number - 1} if number > 1 else {}))
    log = [{"snapshot-id": one["snapshot-id"], "timestamp-ms": one["timestamp-ms"]} for one in snapshots]
    main = {"main": {"snapshot-id": len(ages_ms), "type": "branch"}} if ages_ms else {}
    named = {name.replace("_", "."): text for name, text in properties.items()}
    return {"snapshots": snapshots, "snapshot-log": log, "refs": {**main, **(refs or {})}, "properties": named}


def gone(metadata: Json, settings: ExpirySettings = RULES) -> set[int]:
    return set(expiry(metadata, NOW, settings).snapshots)


def test_old_snapshots_expire_except_the_current_one() -> None:
    assert gone(table([])) == set()
    assert gone(table([9 * HOUR])) == set()
    assert gone(table([9 * HOUR, 8 * HOUR, HOUR // 2, 0])) == {1, 2}


def test_snapshot_that_was_main_recently_stays() -> None:
    assert gone(table([9 * HOUR, 599_999])) == set()
    assert gone(table([9 * HOUR, 600_001])) == {1}


def test_rolled_back_snapshot_stays_for_the_grace_period() -> None:
    metadata = table([9 * HOUR, 8 * HOUR, 7 * HOUR])
    metadata["refs"]["main"]["snapshot-id"] = 1
    metadata["snapshot-log"].append({"snapshot-id": 1, "timestamp-ms": NOW - 1})
    assert gone(metadata) == {2}  # 3 was main recently
    metadata["snapshot-log"][-1]["timestamp-ms"] = NOW - HOUR
    assert gone(metadata) == {2, 3}


def test_table_properties_override_the_settings() -> None:
    days = {"history.expire.max-snapshot-age-ms": str(24 * HOUR)}
    metadata = table([9 * HOUR, 8 * HOUR, HOUR])
    metadata["properties"] = days
    assert gone(metadata) == set()
    metadata["properties"] = {"history.expire.min-snapshots-to-keep": "2"}
    assert gone(metadata) == {1}


@pytest.mark.parametrize("text", ["many", "", "0", "-1", "٣", "9" * 19, "9" * 5_000])
@pytest.mark.parametrize("name", ["max-snapshot-age-ms", "min-snapshots-to-keep", "max-ref-age-ms"])
def test_defaults_are_used_when_a_property_is_not_a_number(name: str, text: str) -> None:
    metadata = table([9 * HOUR, 8 * HOUR, HOUR], {"tag": {"snapshot-id": 3, "type": "tag"}})
    metadata["properties"] = {f"history.expire.{name}": text}
    assert gone(metadata) == {1, 2}
    assert expiry(metadata, NOW, RULES).refs == ()


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_snapshots_of_branches_and_tags_stay(kind: str) -> None:
    assert gone(table([9 * HOUR] * 4 + [HOUR], {"kept": {"snapshot-id": 2, "type": kind}})) == {1, 3, 4}


def test_branches_and_tags_expire_after_max_ref_age() -> None:
    ends = {"snapshot-id": 2, "type": "tag", "max-ref-age-ms": 8 * HOUR}
    found = expiry(table([9 * HOUR, 8 * HOUR + 1, HOUR], {"ends": ends}), NOW, RULES)
    assert found.refs == ("ends",)
    assert found.snapshots == {1, 2}
    main = {"snapshot-id": 3, "type": "branch", "max-ref-age-ms": 1, "max-snapshot-age-ms": 20 * HOUR}
    assert not expiry(table([9 * HOUR, 8 * HOUR, HOUR], {"main": main}), NOW, RULES)


def test_unreferenced_snapshots_expire_by_age() -> None:
    metadata = table([9 * HOUR, HOUR])
    metadata["snapshots"] += [
        {"snapshot-id": 7, "timestamp-ms": NOW - 5 * HOUR},
        {"snapshot-id": 8, "timestamp-ms": NOW - HOUR // 2},
    ]
    assert gone(metadata) == {1, 7}


def test_cycle_of_parents_ends() -> None:
    metadata = table([9 * HOUR, 8 * HOUR, HOUR])
    metadata["snapshots"][0]["parent-snapshot-id"] = 3
    assert gone(metadata) <= {1, 2}


def test_oldest_snapshots_expire_first_up_to_the_limit() -> None:
    few = ExpirySettings(age_ms=HOUR, grace_ms=0, at_once=2)
    assert gone(table([9 * HOUR, 8 * HOUR, 7 * HOUR, 6 * HOUR, 0]), few) == {1, 2}
