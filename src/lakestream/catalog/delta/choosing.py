"""Whether a topic's table can be a Delta table too: asked when somebody chooses that, not when it is too late."""

from lakestream.catalog.catalog import Catalog
from lakestream.catalog.delta.schema import unsayable
from lakestream.catalog.errors import NoSuchTable
from lakestream.catalog.shapes import schema_of
from lakestream.errors import Misconfigured


async def check_delta(catalog: Catalog, topic_id: str) -> None:
    """Misconfigured: the table has columns that Delta cannot say. One that is not there yet may still become one."""
    try:
        loaded = await catalog.load_id(topic_id)
    except NoSuchTable:
        return
    if reasons := unsayable(schema_of(loaded.metadata)):
        more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        raise Misconfigured(f"topic setting lakestream.table.formats: no delta, since {reasons[0]}{more}")
