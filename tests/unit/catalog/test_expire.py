"""Which snapshots may go: Iceberg's rules, and that nobody who reads is left without files. Pure."""

from typing import Any

import pytest

from lakestream.catalog.expire import ExpirySettings, expiry
from lakestream.catalog.shapes import Json

HOUR = 3_600_000
NOW = 1_700_000_000_000
RULES = ExpirySettings(age_ms=HOUR, grace_ms=600_000)


def table(ages_ms: list[int], refs: dict[str, Json] | None = None, **properties: str) -> Json:
    """A line of snapshots 1, 2, …, each of which was main until the next one came."""
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


def test_the_old_ones_go_but_never_the_last() -> None:
    assert gone(table([])) == set()
    assert gone(table([9 * HOUR])) == set()
    assert gone(table([9 * HOUR, 8 * HOUR, HOUR // 2, 0])) == {1, 2}


def test_one_that_was_main_until_just_now_stays() -> None:
    assert gone(table([9 * HOUR, 599_999])) == set()
    assert gone(table([9 * HOUR, 600_001])) == {1}


def test_the_log_tells_of_a_rollback_what_parents_do_not() -> None:
    metadata = table([9 * HOUR, 8 * HOUR, 7 * HOUR])
    metadata["refs"]["main"]["snapshot-id"] = 1
    metadata["snapshot-log"].append({"snapshot-id": 1, "timestamp-ms": NOW - 1})
    assert gone(metadata) == {2}  # 3 was main a moment ago
    metadata["snapshot-log"][-1]["timestamp-ms"] = NOW - HOUR
    assert gone(metadata) == {2, 3}


def test_the_table_may_say_otherwise() -> None:
    days = {"history.expire.max-snapshot-age-ms": str(24 * HOUR)}
    metadata = table([9 * HOUR, 8 * HOUR, HOUR])
    metadata["properties"] = days
    assert gone(metadata) == set()
    metadata["properties"] = {"history.expire.min-snapshots-to-keep": "2"}
    assert gone(metadata) == {1}
    metadata["properties"] = {"history.expire.min-snapshots-to-keep": "many"}
    assert gone(metadata) == {1, 2}


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_what_a_branch_or_tag_points_at_stays(kind: str) -> None:
    assert gone(table([9 * HOUR] * 4 + [HOUR], {"kept": {"snapshot-id": 2, "type": kind}})) == {1, 3, 4}


def test_branches_and_tags_end_where_they_say_so() -> None:
    ends = {"snapshot-id": 2, "type": "tag", "max-ref-age-ms": 8 * HOUR}
    found = expiry(table([9 * HOUR, 8 * HOUR + 1, HOUR], {"ends": ends}), NOW, RULES)
    assert found.refs == ("ends",)
    assert found.snapshots == {1, 2}
    main = {"snapshot-id": 3, "type": "branch", "max-ref-age-ms": 1, "max-snapshot-age-ms": 20 * HOUR}
    assert not expiry(table([9 * HOUR, 8 * HOUR, HOUR], {"main": main}), NOW, RULES)


def test_what_no_branch_leads_to_goes_when_it_is_old() -> None:
    metadata = table([9 * HOUR, HOUR])
    metadata["snapshots"] += [
        {"snapshot-id": 7, "timestamp-ms": NOW - 5 * HOUR},
        {"snapshot-id": 8, "timestamp-ms": NOW - HOUR // 2},
    ]
    assert gone(metadata) == {1, 7}


def test_a_loop_of_parents_ends() -> None:
    metadata = table([9 * HOUR, 8 * HOUR, HOUR])
    metadata["snapshots"][0]["parent-snapshot-id"] = 3
    assert gone(metadata) <= {1, 2}


def test_the_oldest_go_first_and_not_all_at_once() -> None:
    few = ExpirySettings(age_ms=HOUR, grace_ms=0, at_once=2)
    assert gone(table([9 * HOUR, 8 * HOUR, 7 * HOUR, 6 * HOUR, 0]), few) == {1, 2}
