"""Another engine that rewrites the single file of a table with schemas, with changed rows."""

import io
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
from tests.harness.catalog.iceberg_tables import ROOT
from tests.harness.pipeline.schema_topic import SchemaTopic

from lakestream.catalog.locations import Locations
from lakestream.catalog.manifests.data_file import FileDescription
from lakestream.catalog.operations.live_files import LiveFileReader
from lakestream.catalog.operations.rewrite_files import Rewrite, rewrite
from lakestream.catalog.topic_table.columns import OFFSET_ID


async def rewrite_file(topic: SchemaTopic, changed: Callable[[Any], Any], *, with_bounds: bool = True) -> None:
    """Rewrites the file. `with_bounds`: with column bounds, which engines may leave out."""
    objects, locations = topic.world.objects, Locations(ROOT)
    loaded = await topic.pipeline.catalog.load_id(topic.partition.topic_id)
    (old,) = (await LiveFileReader(objects, locations).of_main(loaded.metadata)).data
    rows = pq.read_table(io.BytesIO(bytes(await objects.get(locations.key_of(old.location)))))
    sink = io.BytesIO()
    pq.write_table(changed(rows), sink)
    new = FileDescription(
        location=f"{loaded.metadata['location']}/data/foreign.parquet",
        partition=old.partition,
        offset_first=0,
        offset_last=len(rows) - 1,
        record_count=len(rows),
        size=len(sink.getvalue()),
        column_sizes={},
        value_counts={},
        null_counts={},
        lower_bounds={OFFSET_ID: (0).to_bytes(8, "little")} if with_bounds else {},
        upper_bounds={OFFSET_ID: (len(rows) - 1).to_bytes(8, "little")} if with_bounds else {},
        split_offsets=(),
    )
    await objects.create(locations.key_of(new.location), [sink.getvalue()])
    await rewrite(topic.pipeline.catalog, loaded, Rewrite(operation="replace", removed=[old], files=[new]))
