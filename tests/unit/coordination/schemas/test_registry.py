"""What the registry decides: ids, versions, compatibility, deletes, modes, contexts."""

import hashlib
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import pytest_asyncio
from tests.unit.coordination.schemas.stand_in import registry_over, wanted

from lakestream.clock import SystemClock
from lakestream.coordination.schemas.deleting import delete_subject, delete_version, remove_context, set_mode
from lakestream.coordination.schemas.names import EVERYTHING, Subject, parse
from lakestream.coordination.schemas.refusals import (
    ContextNotEmpty,
    Incompatible,
    InvalidSchema,
    InvalidSubject,
    NoSuchSchema,
    NoSuchSubject,
    NoSuchVersion,
    NotPermitted,
    Referenced,
    SubjectDeleted,
    SubjectNotDeleted,
    TooLarge,
    VersionDeleted,
    VersionNotDeleted,
)
from lakestream.coordination.schemas.registry import SchemaRegistry
from lakestream.coordination.schemas.scopes import Level, Mode, config_in_scope, mode_in_scope
from lakestream.coordination.schemas.shelf import SchemaShelf
from lakestream.coordination.schemas.state import LATEST, SchemaId, Use
from lakestream.errors import Corrupt
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.schemas import AT_ONCE, Configured, NewSchema, Pointer, Registered, SchemaLog, StoredText
from lakestream.metadata.store import MetadataStore
from lakestream.schemas.model import Format, Reference, Source


@pytest.fixture
def store() -> MetadataStore:
    return MemoryServer(SystemClock()).client()


@pytest_asyncio.fixture
async def registry(store: MetadataStore) -> AsyncIterator[SchemaRegistry]:
    registry = registry_over(store)
    yield registry
    registry.close()


async def put(registry: SchemaRegistry, subject: str, *fields: str, **more: object) -> tuple[int, int]:
    """Id and version."""
    found = await registry.register(wanted(subject, *fields, **more))  # type: ignore[arg-type]
    return found.version.id, found.version.number


async def configure(registry: SchemaRegistry, subject: str, **config: object) -> None:
    await registry.change(lambda state: Configured(subject, config))


async def delete(registry: SchemaRegistry, subject: str, number: int | None = None, *, permanent: bool = False) -> None:
    if number is None:
        await registry.change(lambda state: delete_subject(state, parse(subject), permanent=permanent))
    else:
        await registry.change(lambda state: delete_version(state, parse(subject), number, permanent=permanent))


async def mode(registry: SchemaRegistry, subject: str, mode: Mode | None, *, force: bool = False) -> None:
    await registry.change(lambda state: set_mode(state, parse(subject), mode, force=force))


# ── ids and versions ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_the_same_schema_has_the_same_id_in_every_subject(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", "x") == (1, 1)
    assert await put(registry, "a", "x") == (1, 1)
    assert await put(registry, "b", "x") == (1, 1)
    assert await put(registry, "b", "x", "y?") == (2, 2)
    assert registry.state.uses(SchemaId(".", 1)) == [Use("a", 1), Use("b", 1)]


async def test_blanks_make_no_other_schema_but_their_order_does(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", text='["x", "y"]') == (1, 1)
    assert await put(registry, "a", text=' [ "x",\n"y" ] ') == (1, 1)
    assert await put(registry, "a", text='["y","x"]') == (2, 2)
    assert (await registry.registration(parse("a"), 1)).text.text == '["x","y"]'


async def test_blanks_inside_strings_stay(registry: SchemaRegistry) -> None:
    await put(registry, "a", text='["x y", "say \\"a b\\" "]')
    assert (await registry.registration(parse("a"), 1)).text.text == '["x y","say \\"a b\\" "]'


async def test_normalized_it_is_what_it_means_that_counts(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", "y", "x", normalize=True) == (1, 1)
    assert await put(registry, "a", "x", "y", normalize=True) == (1, 1)
    await configure(registry, "", normalize=True)
    assert await put(registry, "b", "y", "x") == (1, 1)


async def test_types_of_schemas_are_told_apart(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", "x") == (1, 1)
    assert await put(registry, "b", "x", kind=Format.AVRO) == (2, 1)
    with pytest.raises(Incompatible, match="of type JSON"):
        await put(registry, "a", "x", kind=Format.AVRO)


async def test_metadata_is_part_of_a_schema_and_goes_on_with_the_next(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", "x") == (1, 1)
    assert await put(registry, "a", "x", metadata={"properties": {"owner": "me"}}) == (2, 2)
    assert await put(registry, "a", "x", "y?") == (3, 3)
    found = await registry.with_metadata(parse("a"), {"owner": "me"})
    assert found.version.number == 3
    assert await put(registry, "a", "x", "y?") == (3, 3)
    assert (await registry.lookup(wanted("a", "x", "y?"))).version.number == 3
    with pytest.raises(NoSuchSchema):
        await registry.with_metadata(parse("a"), {"owner": "you"})


async def test_what_is_no_schema_is_refused(registry: SchemaRegistry) -> None:
    with pytest.raises(InvalidSchema, match="of type JSON: it is no list of fields"):
        await put(registry, "a", text="{}")
    with pytest.raises(InvalidSchema, match="Empty schema"):
        await put(registry, "a", text="  ")
    with pytest.raises(TooLarge):
        await put(registry, "a", text="[" + " " * 1_000_000 + "]")
    assert registry.state.end == 0


@pytest.mark.parametrize("subject", ["", ":.ctx:", "__GLOBAL", ":.__GLOBAL:a", "a\nb", "x" * 2_000])
async def test_not_every_name_is_a_subject(registry: SchemaRegistry, subject: str) -> None:
    with pytest.raises(InvalidSubject):
        await put(registry, subject, "x")


async def test_a_guid_is_the_one_that_confluent_gives(registry: SchemaRegistry) -> None:
    """The MD5 of what is kept, and of its references."""
    await put(registry, "a", "x")
    await put(registry, "b", "x", references=(Pointer("name", "a", 1),))
    parts = [b'["x"]', b'["x"]' + b"name" + b"a" + bytes([0, 0, 0, 1])]
    for subject, part in zip("ab", parts, strict=True):
        found = await registry.registration(parse(subject), 1)
        assert found.schema.guid == str(UUID(bytes=hashlib.md5(part).digest()))


# ── looking up ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_versions_are_found_and_what_is_not_there_is_said(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    await put(registry, "a", "x", "y?")
    assert (await registry.registration(parse("a"), LATEST)).version.number == 2
    assert (await registry.lookup(wanted("a", "x"))).version.number == 1
    with pytest.raises(NoSuchVersion, match=r"subject 'a' has 1, 2"):
        await registry.registration(parse("a"), 3)
    with pytest.raises(NoSuchSubject):
        await registry.registration(parse("b"), LATEST)
    with pytest.raises(NoSuchSubject):
        await registry.lookup(wanted("b", "x"))
    with pytest.raises(NoSuchSchema):
        await registry.lookup(wanted("a", "z"))


async def test_a_shelf_needs_only_the_store(registry: SchemaRegistry, store: MetadataStore) -> None:
    shelf = SchemaShelf(store)
    await put(registry, "base", "b")
    pointer = Pointer("the base", "base", LATEST)
    await put(registry, "a", "x", references=(pointer,))
    expected = Source(Format.JSON, '["x"]', (Reference("the base", '["b"]'),))
    assert await shelf.source_of(".", 2) == expected
    assert await shelf.latest("a") == (2, expected)
    assert await shelf.version("base", 1) == (1, Source(Format.JSON, '["b"]'))
    await put(registry, "base", "b", "c?")
    assert (await shelf.latest("base")).id == 3
    assert await shelf.source_of(".", 2) == expected, "a reference to the latest is to that of then"
    with pytest.raises(NoSuchSchema):
        await shelf.source_of(".", 9)
    with pytest.raises(NoSuchSchema):
        await shelf.source_of(".ctx", 1)
    with pytest.raises(NoSuchSubject):
        await shelf.latest("nobody")


async def test_a_long_log_is_read_to_its_end(registry: SchemaRegistry, store: MetadataStore) -> None:
    log = SchemaLog(store)
    for number in range(2 * AT_ONCE):
        assert await log.append(number, Configured(f"s{number}", {"normalize": True}), f"by {number}")
    await put(registry, "a", "x")
    shelf = SchemaShelf(store)
    assert (await shelf.latest("a")).id == 1
    assert shelf.state.end == 2 * AT_ONCE + 1
    assert len(await log.read(0)) == 2 * AT_ONCE + 1


async def test_a_hole_in_the_log_is_said(store: MetadataStore) -> None:
    log = SchemaLog(store)
    for number in (0, 1, 3):
        await log.append(number, Configured("s", {}), f"by {number}")
    with pytest.raises(Corrupt, match="change 2 of the schema registry is missing"):
        await SchemaShelf(store).latest("s")


# ── compatibility ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_levels_ask_in_their_directions(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    with pytest.raises(Incompatible, match="cannot read version 1: field 'y' is missing"):
        await put(registry, "a", "x", "y")
    assert await registry.troubles(wanted("a", "x", "y"), None)
    await configure(registry, "a", compatibilityLevel="FORWARD")
    assert await registry.troubles(wanted("a", "x", "y"), None) == []
    with pytest.raises(Incompatible, match="version 1 cannot read the new schema: field 'x' is missing"):
        await put(registry, "a", "y")
    await configure(registry, "a", compatibilityLevel="FULL")
    assert await registry.troubles(wanted("a", "x", "y"), None)
    assert await registry.troubles(wanted("a", "y?"), None)
    assert await registry.troubles(wanted("a", "x", "y?"), None) == []
    await configure(registry, "a", compatibilityLevel="NONE")
    assert (await put(registry, "a", "z"))[1] == 2


@pytest.mark.parametrize(("level", "fits"), [("BACKWARD", True), ("BACKWARD_TRANSITIVE", False)])
async def test_transitive_ones_ask_all_versions(registry: SchemaRegistry, level: str, fits: bool) -> None:
    await configure(registry, "a", compatibilityLevel="NONE")
    await put(registry, "a", "x")
    await put(registry, "a", "x", "y")
    await configure(registry, "a", compatibilityLevel=level)
    assert (await registry.troubles(wanted("a", "x", "y", "z?"), None) == []) is fits
    assert await registry.troubles(wanted("a", "x", "y", "z?"), 1)
    assert await registry.troubles(wanted("a", "x", "y", "z?"), 2) == []
    with pytest.raises(NoSuchVersion):
        await registry.troubles(wanted("a", "x"), 7)


@pytest.mark.parametrize(("level", "new"), [("FORWARD", ("x",)), ("FULL", ("x", "z?"))])
async def test_transitive_ones_of_the_other_directions(
    registry: SchemaRegistry, level: str, new: tuple[str, ...]
) -> None:
    """What the first version cannot read, and the second can."""
    await configure(registry, "a", compatibilityLevel="NONE")
    await put(registry, "a", "x", "y")
    await put(registry, "a", "x", "y?")
    await configure(registry, "a", compatibilityLevel=level)
    assert await registry.troubles(wanted("a", *new), None) == []
    await configure(registry, "a", compatibilityLevel=f"{level}_TRANSITIVE")
    assert await registry.troubles(wanted("a", *new), None)


async def test_a_subject_without_versions_goes_with_everything(registry: SchemaRegistry) -> None:
    assert await registry.troubles(wanted("new", "x"), None) == []
    assert await registry.troubles(wanted("new", "x"), LATEST) == []


async def test_groups_are_compared_among_themselves(registry: SchemaRegistry) -> None:
    await configure(registry, "a", compatibilityGroup="major")
    await put(registry, "a", "x", metadata={"properties": {"major": "1"}})
    assert (await put(registry, "a", "y", metadata={"properties": {"major": "2"}}))[1] == 2
    with pytest.raises(Incompatible):
        await put(registry, "a", "z", metadata={"properties": {"major": "2"}})


async def test_settings_come_from_the_nearest(registry: SchemaRegistry) -> None:
    def level_of(subject: str) -> str:
        return str(config_in_scope(registry.state, parse(subject))["compatibilityLevel"])

    assert level_of("a") == level_of(":.ctx:a") == Level.BACKWARD.value
    await configure(registry, ":.__GLOBAL:", compatibilityLevel="NONE")
    assert level_of("a") == level_of(":.ctx:a") == "NONE"
    await configure(registry, "", compatibilityLevel="FULL")
    await configure(registry, ":.ctx:", compatibilityLevel="FORWARD")
    assert (level_of("a"), level_of(":.ctx:a")) == ("FULL", "FORWARD")
    await configure(registry, ":.ctx:a", compatibilityLevel="BACKWARD_TRANSITIVE")
    assert level_of(":.ctx:a") == "BACKWARD_TRANSITIVE"


# ── references ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_what_is_needed_stays(registry: SchemaRegistry) -> None:
    await put(registry, "base", "b")
    await put(registry, "a", "x", references=(Pointer("base", "base", 1),))
    assert registry.state.needed_by(Use("base", 1)) == [SchemaId(".", 2)]
    for number in (None, 1):
        with pytest.raises(Referenced, match="needed by schema 2"):
            await delete(registry, "base", number)
    await delete(registry, "a")
    await delete(registry, "base")
    with pytest.raises(Referenced):
        await delete(registry, "base", permanent=True)
    await delete(registry, "a", permanent=True)
    await delete(registry, "base", permanent=True)
    assert registry.state.subjects == {}


async def test_references_have_to_be_there(registry: SchemaRegistry) -> None:
    with pytest.raises(InvalidSchema, match="reference 'base' to version 1 of base: there is none"):
        await put(registry, "a", "x", references=(Pointer("base", "base", 1),))
    await put(registry, ":.ctx:base", "b")
    assert await put(registry, ":.ctx:a", "x", references=(Pointer("base", "base", 1),)) == (2, 1)
    assert await put(registry, "a", "x", references=(Pointer("base", ":.ctx:base", 1),)) == (1, 1)


async def test_references_are_bounded_however_they_are_laid(registry: SchemaRegistry) -> None:
    await put(registry, "s0", "x")
    for number in range(1, 9):
        before = tuple(Pointer(name, f"s{number - 1}", 1) for name in ("left", "right"))
        await put(registry, f"s{number}", "x", references=before)
    with pytest.raises(InvalidSchema, match="refer to 1000 others at most"):
        await put(registry, "s9", "x", references=(Pointer("left", "s8", 1), Pointer("right", "s8", 1)))


async def test_references_that_lead_in_a_circle_are_found(registry: SchemaRegistry, store: MetadataStore) -> None:
    """No way leads there by the API: somebody has written into the store."""
    log = SchemaLog(store)
    for number, (subject, other) in enumerate([("a", "b"), ("b", "a")]):
        schema = NewSchema("JSON", subject, subject, subject, (Pointer("it", other, 1),))
        await log.put_text(subject, StoredText('["x"]'))
        await log.append(number, Registered(subject, 1, number + 1, schema), subject)
    with pytest.raises(InvalidSchema, match="'it' leads back to itself: b version 1 → a version 1 → b version 1"):
        await SchemaShelf(store).source_of(".", 1)


async def test_references_are_not_too_deep(registry: SchemaRegistry) -> None:
    await put(registry, "s0", "x")
    for number in range(1, 33):
        await put(registry, f"s{number}", "x", references=(Pointer("before", f"s{number - 1}", 1),))
    with pytest.raises(InvalidSchema, match="32 deep at most"):
        await put(registry, "s33", "x", references=(Pointer("before", "s32", 1),))


# ── deleting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_deleted_version_is_still_there_by_id(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    await put(registry, "a", "x", "y?")
    with pytest.raises(VersionNotDeleted):
        await delete(registry, "a", 1, permanent=True)
    await delete(registry, "a", 1)
    with pytest.raises(VersionDeleted):
        await delete(registry, "a", 1)
    assert [version.number for version in registry.state.versions(parse("a"))] == [2]
    assert await registry.shelf.source_of(".", 1)
    assert (await registry.registration(parse("a"), 1, deleted=True)).version.deleted
    with pytest.raises(NoSuchSchema):
        await registry.lookup(wanted("a", "x"))
    assert (await registry.lookup(wanted("a", "x"), deleted=True)).version.number == 1


async def test_registered_again_a_deleted_schema_keeps_its_id(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    await delete(registry, "a")
    with pytest.raises(SubjectDeleted):
        await delete(registry, "a")
    assert await put(registry, "a", "x") == (1, 2)
    assert [version.number for version in registry.state.versions(parse("a"), deleted=True)] == [2]


async def test_removed_for_good_it_gets_another_id(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    with pytest.raises(SubjectNotDeleted):
        await delete(registry, "a", permanent=True)
    await configure(registry, "a", compatibilityLevel="NONE")
    text_id = registry.state.schema(".", 1).text_id
    await delete(registry, "a")
    await delete(registry, "a", permanent=True)
    assert registry.state.configs == {}
    assert await registry.shelf.log.text(text_id) is None
    with pytest.raises(NoSuchSchema):
        await registry.shelf.source_of(".", 1)
    assert await put(registry, "a", "x") == (2, 1)


async def test_the_text_stays_while_another_subject_has_the_schema(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    await put(registry, "b", "x")
    await delete(registry, "a")
    await delete(registry, "a", permanent=True)
    assert await registry.shelf.source_of(".", 1)


# ── modes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_read_only_is_read_only_except_for_what_is_there(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    await mode(registry, "a", Mode.READONLY)
    assert await put(registry, "a", "x") == (1, 1)
    with pytest.raises(NotPermitted, match="read-only"):
        await put(registry, "a", "x", "y?")
    with pytest.raises(NotPermitted, match="read-only"):
        await delete(registry, "a")
    assert await put(registry, "b", "y") == (2, 1)


async def test_an_override_counts_more_than_what_a_subject_says(registry: SchemaRegistry) -> None:
    await mode(registry, "a", Mode.READWRITE)
    await mode(registry, "", Mode.READONLY)
    assert mode_in_scope(registry.state, parse("a")) is Mode.READWRITE
    await mode(registry, "", Mode.READONLY_OVERRIDE)
    assert mode_in_scope(registry.state, parse("a")) is Mode.READONLY_OVERRIDE
    assert mode_in_scope(registry.state, parse(":.ctx:a")) is Mode.READWRITE
    await mode(registry, ":.ctx:", Mode.READWRITE)
    await mode(registry, ":.__GLOBAL:", Mode.READONLY_OVERRIDE)
    assert mode_in_scope(registry.state, parse(":.ctx:a")) is Mode.READONLY_OVERRIDE


async def test_imported_schemas_keep_their_ids_and_versions(registry: SchemaRegistry) -> None:
    with pytest.raises(NotPermitted, match="not in import mode"):
        await put(registry, "a", "x", schema_id=100)
    await mode(registry, "", Mode.IMPORT)
    with pytest.raises(NotPermitted, match="not in read-write mode"):
        await put(registry, "a", "x")
    assert await put(registry, "a", "x", schema_id=100, version=7) == (100, 7)
    assert await put(registry, "a", "x", schema_id=100, version=7) == (100, 7)
    assert await put(registry, "a", "z", schema_id=50, version=3) == (50, 3), "no compatibility is asked for"
    with pytest.raises(NotPermitted, match="Overwrite new schema with id 100"):
        await put(registry, "b", "other", schema_id=100)
    with pytest.raises(NotPermitted, match="Version 7 of subject a is schema 100"):
        await put(registry, "a", "new", schema_id=101, version=7)
    await mode(registry, "", Mode.READWRITE)
    await configure(registry, "", compatibilityLevel="NONE")
    assert await put(registry, "a", "new") == (101, 8)


async def test_importing_wants_an_empty_place(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    with pytest.raises(NotPermitted, match="found existing subjects, for example 'a'"):
        await mode(registry, "", Mode.IMPORT)
    await mode(registry, "b", Mode.IMPORT)
    await delete(registry, "a")
    await mode(registry, "", Mode.IMPORT)
    assert registry.state.subjects == {}, "what was deleted only is gone for good"
    await mode(registry, "", None)
    await put(registry, "a", "x")
    await mode(registry, "", Mode.IMPORT, force=True)
    assert await put(registry, "a", "y", schema_id=70) == (70, 2)


async def test_a_version_can_be_named_if_it_is_the_next(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", "x", version=1) == (1, 1)
    with pytest.raises(InvalidSchema, match="not one more than previous version: give 2"):
        await put(registry, "a", "x", "y?", version=5)


# ── contexts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_contexts_number_their_schemas_themselves(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", "x") == (1, 1)
    assert await put(registry, "a", "x", "y?") == (2, 2)
    assert await put(registry, ":.ctx:a", "q") == (1, 1)
    assert (await registry.shelf.source_of(".ctx", 1)).text == '["q"]'
    with pytest.raises(ContextNotEmpty):
        await registry.change(lambda state: remove_context(state, ".ctx"))
    await delete(registry, ":.ctx:a")
    await delete(registry, ":.ctx:a", permanent=True)
    await registry.change(lambda state: remove_context(state, ".ctx"))
    assert [name for name, one in registry.state.contexts.items() if one.shown] == ["."]
    assert await put(registry, ":.ctx:a", "q") == (2, 1), "an id is not given twice"


def test_names() -> None:
    assert parse("a") == Subject(".", "a")
    assert parse("a", ".ctx") == Subject(".ctx", "a")
    assert parse(":.ctx:a:b") == Subject(".ctx", "a:b")
    assert parse(":.:a") == Subject(".", "a")
    assert parse(":.ctx:") == parse(":.ctx") == Subject(".ctx", "")
    assert str(parse(":.ctx:a")) == ":.ctx:a"
    assert str(parse(":.:a")) == "a"
    assert parse("") == EVERYTHING
