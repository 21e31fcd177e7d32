"""Which snapshot of a topic's table is read: the newest that the catalog knows, looked at again and again.

The table is what is, so a delete that somebody commits is seen within a second. An older snapshot never stands in for a
newer one: below its next-offset it would show a gap that is none.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final, NamedTuple

from lakestream.catalog.bound_columns import bound_ids
from lakestream.catalog.catalog import Catalog, LoadedTable
from lakestream.catalog.errors import NoSuchTable, TableAltered
from lakestream.catalog.next_offsets import main_of, next_offsets
from lakestream.catalog.shapes import Json, schema_of
from lakestream.catalog.topic_layout import PARTITION_ID, VALUE_ID
from lakestream.catalog.topic_shape import check_columns
from lakestream.data.table.threads import Run
from lakestream.errors import Corrupt
from lakestream.model import PartitionId

LOOK_MS: Final = 1_000
"""How old what is known of a table may be."""
TABLES_MAX: Final = 2_000


class Table(NamedTuple):
    """A topic's table at one snapshot."""

    name: str
    location: str
    """Of its metadata file: another one is another state of the table."""
    manifest_list: str | None
    """None: nothing was ever committed."""
    next_offsets: Mapping[int, int]
    places: Mapping[int, int]
    """By partition spec: which of its fields is the topic's partition as it is."""
    topic_id: str = ""
    is_typed: bool = False
    """There are, or have been, rows whose values are in columns of their own, not in that of bytes."""


class _Known:
    def __init__(self) -> None:
        self.table: Table | None = None
        self.looked_s = float("-inf")
        self.lock = asyncio.Lock()


class Snapshots:
    def __init__(self, catalog: Catalog, run: Run) -> None:
        self._catalog = catalog
        self._run = run
        self._known: OrderedDict[str, _Known] = OrderedDict()

    async def newest(self, topic_id: str, age_ms: int = 0, *, confirmed: bool = False) -> Table:
        """Not older than `age_ms`. Corrupt: the table is gone, or was changed in a way that cannot be followed.
        `confirmed`: from a node that leads for certain, before anybody is told that something is missing."""
        known = self._known.setdefault(topic_id, _Known())
        self._known.move_to_end(topic_id)
        if len(self._known) > TABLES_MAX:
            self._known.popitem(last=False)
        since_s = asyncio.get_running_loop().time() - age_ms / 1000
        if known.table is not None and known.looked_s >= since_s and not confirmed:
            return known.table
        async with known.lock:
            if known.table is None or known.looked_s < since_s or confirmed:  # nobody looked while we waited
                await self._look(topic_id, known, confirmed)
            assert known.table is not None
            return known.table

    def known(self, topic_id: str) -> Table | None:
        """As it was when somebody last looked."""
        known = self._known.get(topic_id)
        return None if known is None else known.table

    async def reaching(self, partition: PartitionId, offset: int) -> Table:
        """One that has all rows up to `offset` and beyond."""
        for age_ms, confirmed in ((LOOK_MS, False), (0, False), (0, True)):
            table = await self.newest(partition.topic_id, age_ms, confirmed=confirmed)
            if table.next_offsets.get(partition.number, 0) > offset:
                return table
        raise TableAltered(
            f"table {table.name} has partition {partition.number} up to offset"
            f" {table.next_offsets.get(partition.number, 0)} only, but offset {offset} has left the log for it:"
            f" somebody set lakestream.next-offsets back"
        )

    async def _look(self, topic_id: str, known: _Known, confirmed: bool) -> None:
        begun_s = asyncio.get_running_loop().time()
        try:
            loaded = await self._catalog.load_id(topic_id, confirmed=confirmed)
        except NoSuchTable as error:
            topic = await self._catalog.topics.find_id(topic_id)
            raise Corrupt(
                f"the table of topic {topic.name if topic else topic_id} was dropped, and with it the records that had"
                " left the log: register its newest metadata file again, or delete the topic"
            ) from error
        if known.table is None or known.table.location != loaded.metadata_location:
            known.table = await self._run(lambda: _table(loaded))
        known.looked_s = begun_s


def _table(loaded: LoadedTable) -> Table:
    """Reading the metadata of a thousand snapshots takes some milliseconds: not on the event loop."""
    metadata = loaded.metadata
    try:
        check_columns(metadata)
        offsets = next_offsets(metadata)
    except TableAltered as error:
        raise TableAltered(f"table {loaded.name}: {error}") from error
    snapshot = main_of(metadata)
    listed = next((one.get("manifest-list") for one in metadata["snapshots"] if one["snapshot-id"] == snapshot), None)
    has_value = any(field["id"] == VALUE_ID for field in schema_of(metadata)["fields"])
    is_typed = not has_value or bool(bound_ids(metadata))
    places = _places(metadata)
    return Table(str(loaded.name), loaded.metadata_location, listed, offsets, places, loaded.topic_id, is_typed)


def _places(metadata: Json) -> dict[int, int]:
    return {
        spec["spec-id"]: place
        for spec in metadata["partition-specs"]
        for place, field in enumerate(spec["fields"])
        if field.get("source-id") == PARTITION_ID and field.get("transform") == "identity"
    }
