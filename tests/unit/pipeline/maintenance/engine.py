"""What another engine does to a typed table that has one file: it writes the same rows anew, changed as it likes."""

import io
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tests.unit.catalog.tables import ROOT
from tests.unit.pipeline.typed_world import Typed

from lakestream.catalog.data_files import FileDescription
from lakestream.catalog.listing import Listings
from lakestream.catalog.locations import Locations
from lakestream.catalog.rewrite import Rewrite, rewrite
from lakestream.catalog.topic_layout import OFFSET_ID


async def rewritten(typed: Typed, changed: Callable[[Any], Any], *, tells: bool = True) -> None:
    """`tells`: the lowest and the highest of columns, which is for engines to decide."""
    objects, locations = typed.world.objects, Locations(ROOT)
    loaded = await typed.driving.catalog.load_id(typed.partition.topic_id)
    (old,) = (await Listings(objects, locations).of_main(loaded.metadata)).data
    rows = pq.read_table(io.BytesIO(bytes(await objects.get(locations.key_of(old.location)))))
    sink = io.BytesIO()
    pq.write_table(changed(rows), sink)
    new = FileDescription(
        location=f"{loaded.metadata['location']}/data/theirs.parquet",
        partition=old.partition,
        offset_first=0,
        offset_last=len(rows) - 1,
        record_count=len(rows),
        size=len(sink.getvalue()),
        column_sizes={},
        value_counts={},
        null_counts={},
        lower_bounds={OFFSET_ID: (0).to_bytes(8, "little")} if tells else {},
        upper_bounds={OFFSET_ID: (len(rows) - 1).to_bytes(8, "little")} if tells else {},
        split_offsets=(),
    )
    await objects.create(locations.key_of(new.location), [sink.getvalue()])
    await rewrite(typed.driving.catalog, loaded, Rewrite(operation="replace", gone=[old], files=[new]))
