"""Check of `lakestream doctor` for dead letters: converts the values that have no columns again, as a repair would.

The table states which files have such values, so the result is the same after a restart of the pipeline.
"""

from collections.abc import AsyncIterator
from typing import Final

from lakestream.aio.progress import reported
from lakestream.catalog.catalog import Catalog
from lakestream.catalog.errors import NoSuchTable
from lakestream.cli.doctor.findings import Finding, note
from lakestream.cli.output.text import plural, printable
from lakestream.coordination import topic_config
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.errors import LakestreamError
from lakestream.metadata.topics import NamedTopic, Topic
from lakestream.pipeline.dead_letters.model import DeadLetterQuery, Summary
from lakestream.schemas.value_format import SchemaMode

FILES_MAX: Final = 32
"""Files that are read of each topic, unless all are checked."""


async def dead_letter_findings(
    catalog: Catalog, registry: SchemaReader, name: str, topic: Topic, *, full: bool
) -> AsyncIterator[Finding]:
    """Yields a note if a topic with schemas has dead letters."""
    # Imported here: Arrow and the kernels take a second to load.
    from lakestream.pipeline.dead_letters.scan import DeadLetters

    settings = topic_config.read(topic.settings)
    if settings.value_schema.mode is SchemaMode.NONE and settings.key_schema.mode is SchemaMode.NONE:
        return
    letters = DeadLetters(catalog, registry, catalog.clock)
    query = DeadLetterQuery(bytes_shown=0, files_max=None if full else FILES_MAX)
    try:
        with reported(f"counting the dead letters of {name}"):
            found = await letters.summary(NamedTopic(name, topic), query)
    except NoSuchTable:
        return
    except LakestreamError as error:  # damaged files are reported by the checks of the table
        yield note(f"{name} dead letters", f"cannot be counted: {error}")
        return
    if found.rows:
        yield note(f"{name} dead letters", _text(name, found))


def _text(name: str, found: Summary) -> str:
    reasons = found.reasons.most_common(1)
    why = f" ({printable(reasons[0][0].text)})" if reasons else ""
    can = f", {found.repairable:,} can be repaired" if found.repairable else ""
    rest = f"; {plural(found.files_skipped, 'older file')} not read" if found.files_skipped else ""
    return f"{plural(found.rows, 'row')} without columns{why}{can}{rest}; lakestream table dead-letters {name}"
