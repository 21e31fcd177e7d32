"""Why rows have no columns, for people and for programs: told by `table rejects` and by `topic repair`."""

from collections import Counter
from collections.abc import Mapping

from lakestream.cli.text import columns, printable
from lakestream.pipeline.maintenance.dead_letter import Reason

Firsts = Mapping[Reason, tuple[int, int]]
"""Partition and offset of the first row of each."""


def reasons_as_json(reasons: Counter[Reason], firsts: Firsts) -> list[dict[str, object]]:
    return [
        {
            "reason": reason.said,
            "schema_id": reason.schema_id or None,
            "rows": count,
            "partition": firsts[reason][0],
            "offset": firsts[reason][1],
        }
        for reason, count in reasons.most_common()
    ]


def reasons_in_columns(heading: str, reasons: Counter[Reason], firsts: Firsts, most: int | None = None) -> list[str]:
    """The most frequent first; nothing, where there are none. They hold names that strangers chose."""
    told = [
        (printable(reason.said), str(reason.schema_id or "-"), f"{count:,}", "{}/{}".format(*firsts[reason]))
        for reason, count in reasons.most_common(most)
    ]
    return list(columns([(heading, "schema", "rows", "first at"), *told], frozenset({1, 2}))) if told else []
