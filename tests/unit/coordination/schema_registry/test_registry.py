"""Decisions of the registry: ids, versions, compatibility, deletion, modes and contexts."""

import hashlib
from collections.abc import AsyncIterator
from uuid import UUID

import pytest
import pytest_asyncio
from tests.harness.typed.toy_schema_format import registry_over, wanted

from lakestream.clock import SystemClock
from lakestream.coordination.schema_registry import schema_reader
from lakestream.coordination.schema_registry.delete import delete_subject, delete_version, remove_context, set_mode
from lakestream.coordination.schema_registry.effective_config import (
    CompatibilityLevel,
    SubjectMode,
    config_in_scope,
    mode_in_scope,
)
from lakestream.coordination.schema_registry.errors import (
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
from lakestream.coordination.schema_registry.register import Limits
from lakestream.coordination.schema_registry.registry import SchemaRegistry
from lakestream.coordination.schema_registry.schema_reader import SchemaReader
from lakestream.coordination.schema_registry.state import LATEST, SchemaId, SubjectVersion
from lakestream.coordination.schema_registry.subjects import EVERYTHING, Subject, parse
from lakestream.errors import Corrupt
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.schemas import PAGE_SIZE, Configured, NewSchema, Pointer, Registered, SchemaLog, StoredText
from lakestream.metadata.store import MetadataStore
from lakestream.schemas.model import Format, Reference, Source


@pytest.fixture
def store() -> MetadataStore:
    return MemoryServer(SystemClock()).client()


@pytest_asyncio.fixture
async def registry(store: MetadataStore) -> AsyncIterator[SchemaRegistry]:
    registry = registry_over(store)
    yield registry
    await registry.close()


async def put(registry: SchemaRegistry, subject: str, *fields: str, **more: object) -> tuple[int, int]:
    """Registers a schema, and returns its id and version."""
    found = await registry.register(wanted(subject, *fields, **more))  # type: ignore[arg-type]
    return found.version.id, found.version.number


async def configure(registry: SchemaRegistry, subject: str, **config: object) -> None:
    await registry.change(lambda state: Configured(subject, config))


async def delete(registry: SchemaRegistry, subject: str, number: int | None = None, *, permanent: bool = False) -> None:
    if number is None:
        await registry.change(lambda state: delete_subject(state, parse(subject), permanent=permanent))
    else:
        await registry.change(lambda state: delete_version(state, parse(subject), number, permanent=permanent))


async def mode(registry: SchemaRegistry, subject: str, mode: SubjectMode | None, *, force: bool = False) -> None:
    await registry.change(lambda state: set_mode(state, parse(subject), mode, force=force))


# ── ids and versions ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_schema_has_the_same_id_in_all_subjects(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", "x") == (1, 1)
    assert await put(registry, "a", "x") == (1, 1)
    assert await put(registry, "b", "x") == (1, 1)
    assert await put(registry, "b", "x", "y?") == (2, 2)
    assert registry.state.uses(SchemaId(".", 1)) == [SubjectVersion("a", 1), SubjectVersion("b", 1)]


async def test_whitespace_is_ignored_but_order_is_not(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", text='["x", "y"]') == (1, 1)
    assert await put(registry, "a", text=' [ "x",\n"y" ] ') == (1, 1)
    assert await put(registry, "a", text='["y","x"]') == (2, 2)
    assert (await registry.registration(parse("a"), 1)).text.text == '["x","y"]'


async def test_whitespace_inside_strings_is_kept(registry: SchemaRegistry) -> None:
    await put(registry, "a", text='["x y", "say \\"a b\\" "]')
    assert (await registry.registration(parse("a"), 1)).text.text == '["x y","say \\"a b\\" "]'


async def test_equivalent_schemas_have_one_id_when_normalized(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", "y", "x", normalize=True) == (1, 1)
    assert await put(registry, "a", "x", "y", normalize=True) == (1, 1)
    await configure(registry, "", normalize=True)
    assert await put(registry, "b", "y", "x") == (1, 1)


async def test_schemas_of_two_types_have_different_ids_and_cannot_share_a_subject(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", "x") == (1, 1)
    assert await put(registry, "b", "x", kind=Format.AVRO) == (2, 1)
    with pytest.raises(Incompatible, match="of type JSON"):
        await put(registry, "a", "x", kind=Format.AVRO)


async def test_metadata_is_part_of_a_schema_and_inherited_by_the_next_version(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", "x") == (1, 1)
    assert await put(registry, "a", "x", metadata={"properties": {"owner": "me"}}) == (2, 2)
    assert await put(registry, "a", "x", "y?") == (3, 3)
    found = await registry.with_metadata(parse("a"), {"owner": "me"})
    assert found.version.number == 3
    assert await put(registry, "a", "x", "y?") == (3, 3)
    assert (await registry.lookup(wanted("a", "x", "y?"))).version.number == 3
    with pytest.raises(NoSuchSchema):
        await registry.with_metadata(parse("a"), {"owner": "you"})


async def test_invalid_schema_is_rejected(registry: SchemaRegistry) -> None:
    with pytest.raises(InvalidSchema, match="of type JSON: the schema is not a list of fields"):
        await put(registry, "a", text="{}")
    with pytest.raises(InvalidSchema, match="Empty schema"):
        await put(registry, "a", text="  ")
    with pytest.raises(TooLarge):
        await put(registry, "a", text="[" + " " * 1_000_000 + "]")
    assert registry.state.end == 0


@pytest.mark.parametrize("subject", ["", ":.ctx:", "__GLOBAL", ":.__GLOBAL:a", "a\nb", "x" * 2_000])
async def test_invalid_subject_is_rejected(registry: SchemaRegistry, subject: str) -> None:
    with pytest.raises(InvalidSubject):
        await put(registry, subject, "x")


async def test_registration_is_rejected_when_the_registry_has_too_many_versions(store: MetadataStore) -> None:
    registry = registry_over(store, Limits(versions=2))
    await put(registry, "a", "x")
    await put(registry, "b", "x")
    with pytest.raises(NotPermitted, match="has 2 versions of schemas, and schema-versions-max is 2: delete versions"):
        await put(registry, "a", "x", "y?")
    assert await put(registry, "a", "x") == (1, 1)
    await delete(registry, "b", 1)
    with pytest.raises(NotPermitted, match="schema-versions-max"):
        await put(registry, "a", "x", "y?")
    await delete(registry, "b", 1, permanent=True)
    assert await put(registry, "a", "x", "y?") == (2, 2)
    again = registry_over(store, Limits(versions=2))
    with pytest.raises(NotPermitted, match="schema-versions-max"):
        await put(again, "c", "z")


async def test_registration_is_rejected_when_the_registry_has_too_many_bytes(store: MetadataStore) -> None:
    registry = registry_over(store, Limits(bytes=2_000))
    await put(registry, "a", "x" * 900)
    await put(registry, "b", "x" * 900)
    with pytest.raises(
        NotPermitted, match=r"has 9\d\d bytes of schemas, this one has 18\d\d, and schema-bytes-max is 2000"
    ):
        await put(registry, "c", "y" * 1_800)
    await put(registry, "c", "y" * 900)
    await delete(registry, "c")
    await delete(registry, "c", permanent=True)
    await put(registry, "c", "z" * 900)
    assert 1_800 < registry.state.size < 2_000


async def test_config_is_rejected_when_too_many_subjects_have_settings(store: MetadataStore) -> None:
    registry = registry_over(store, Limits(versions=2))
    await configure(registry, "a", normalize=True)
    await mode(registry, "b", SubjectMode.READONLY)
    with pytest.raises(NotPermitted, match="Subject 'c': the registry has 2 settings of subjects"):
        await configure(registry, "c", normalize=True)
    await configure(registry, "a", normalize=False)
    await mode(registry, "b", None)
    await configure(registry, "c", normalize=True)


async def test_schema_is_rejected_when_metadata_or_text_is_too_large(registry: SchemaRegistry) -> None:
    with pytest.raises(TooLarge, match="references, metadata and rules of the schema have"):
        await put(registry, "a", "x", metadata={"properties": {"p": "x" * 1_000_000}})
    with pytest.raises(TooLarge, match="characters"):
        await registry.incompatibilities(wanted("a", text=" " * 1_000_000 + "[]"), None)


async def test_schema_is_rejected_when_its_references_are_too_large_together(
    registry: SchemaRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema_reader, "SOURCE_SIZE_MAX", 50)
    await put(registry, "a", "x" * 20)
    await put(registry, "b", "y", references=(Pointer("a", "a", 1),))
    with pytest.raises(InvalidSchema, match="references have 53 characters: at most 50 are allowed"):
        await put(registry, "c", "z", references=(Pointer("a", "a", 1), Pointer("b", "b", 1)))


async def test_guid_is_computed_as_in_confluents_registry(registry: SchemaRegistry) -> None:
    """The GUID is the MD5 of the stored text and the references."""
    await put(registry, "a", "x")
    await put(registry, "b", "x", references=(Pointer("name", "a", 1),))
    parts = [b'["x"]', b'["x"]' + b"name" + b"a" + bytes([0, 0, 0, 1])]
    for subject, part in zip("ab", parts, strict=True):
        found = await registry.registration(parse(subject), 1)
        assert found.schema.guid == str(UUID(bytes=hashlib.md5(part).digest()))


# ── looking up ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_lookup_returns_versions_and_fails_when_there_is_none(registry: SchemaRegistry) -> None:
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


async def test_reader_returns_schemas_with_only_a_store(registry: SchemaRegistry, store: MetadataStore) -> None:
    reader = SchemaReader(store)
    await put(registry, "base", "b")
    pointer = Pointer("the base", "base", LATEST)
    await put(registry, "a", "x", references=(pointer,))
    expected = Source(Format.JSON, '["x"]', (Reference("the base", '["b"]'),))
    assert await reader.source_of(".", 2) == expected
    assert await reader.latest("a") == (2, expected)
    assert await reader.version("base", 1) == (1, Source(Format.JSON, '["b"]'))
    await put(registry, "base", "b", "c?")
    assert (await reader.latest("base")).id == 3
    assert await reader.source_of(".", 2) == expected, "a reference to the latest version keeps its number"
    with pytest.raises(NoSuchSchema):
        await reader.source_of(".", 9)
    with pytest.raises(NoSuchSchema):
        await reader.source_of(".ctx", 1)
    with pytest.raises(NoSuchSubject):
        await reader.latest("missing")


async def test_reader_reads_all_pages_of_the_log(registry: SchemaRegistry, store: MetadataStore) -> None:
    log = SchemaLog(store)
    for number in range(2 * PAGE_SIZE):
        assert await log.append(number, Configured(f"s{number}", {"normalize": True}), f"by {number}")
    await put(registry, "a", "x")
    reader = SchemaReader(store)
    assert (await reader.latest("a")).id == 1
    assert reader.state.end == 2 * PAGE_SIZE + 1
    assert len(await log.read(0)) == 2 * PAGE_SIZE + 1


async def test_reader_fails_when_a_change_of_the_log_is_missing(store: MetadataStore) -> None:
    log = SchemaLog(store)
    for number in (0, 1, 3):
        await log.append(number, Configured("s", {}), f"by {number}")
    with pytest.raises(Corrupt, match="change 2 of the schema registry is missing"):
        await SchemaReader(store).latest("s")


# ── compatibility ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_compatibility_levels_check_their_directions(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    with pytest.raises(Incompatible, match="cannot read version 1: field 'y' is missing"):
        await put(registry, "a", "x", "y")
    assert await registry.incompatibilities(wanted("a", "x", "y"), None)
    await configure(registry, "a", compatibilityLevel="FORWARD")
    assert await registry.incompatibilities(wanted("a", "x", "y"), None) == []
    with pytest.raises(Incompatible, match="version 1 cannot read the new schema: field 'x' is missing"):
        await put(registry, "a", "y")
    await configure(registry, "a", compatibilityLevel="FULL")
    assert await registry.incompatibilities(wanted("a", "x", "y"), None)
    assert await registry.incompatibilities(wanted("a", "y?"), None)
    assert await registry.incompatibilities(wanted("a", "x", "y?"), None) == []
    await configure(registry, "a", compatibilityLevel="NONE")
    assert (await put(registry, "a", "z"))[1] == 2


@pytest.mark.parametrize(("level", "fits"), [("BACKWARD", True), ("BACKWARD_TRANSITIVE", False)])
async def test_transitive_level_checks_all_versions(registry: SchemaRegistry, level: str, fits: bool) -> None:
    await configure(registry, "a", compatibilityLevel="NONE")
    await put(registry, "a", "x")
    await put(registry, "a", "x", "y")
    await configure(registry, "a", compatibilityLevel=level)
    assert (await registry.incompatibilities(wanted("a", "x", "y", "z?"), None) == []) is fits
    assert await registry.incompatibilities(wanted("a", "x", "y", "z?"), 1)
    assert await registry.incompatibilities(wanted("a", "x", "y", "z?"), 2) == []
    with pytest.raises(NoSuchVersion):
        await registry.incompatibilities(wanted("a", "x"), 7)


@pytest.mark.parametrize(("level", "new"), [("FORWARD", ("x",)), ("FULL", ("x", "z?"))])
async def test_transitive_forward_and_full_levels_check_all_versions(
    registry: SchemaRegistry, level: str, new: tuple[str, ...]
) -> None:
    """The new schema is incompatible with the first version and compatible with the second."""
    await configure(registry, "a", compatibilityLevel="NONE")
    await put(registry, "a", "x", "y")
    await put(registry, "a", "x", "y?")
    await configure(registry, "a", compatibilityLevel=level)
    assert await registry.incompatibilities(wanted("a", *new), None) == []
    await configure(registry, "a", compatibilityLevel=f"{level}_TRANSITIVE")
    assert await registry.incompatibilities(wanted("a", *new), None)


async def test_any_schema_is_compatible_when_the_subject_has_no_versions(registry: SchemaRegistry) -> None:
    assert await registry.incompatibilities(wanted("new", "x"), None) == []
    assert await registry.incompatibilities(wanted("new", "x"), LATEST) == []


async def test_only_schemas_of_one_compatibility_group_are_compared(registry: SchemaRegistry) -> None:
    await configure(registry, "a", compatibilityGroup="major")
    await put(registry, "a", "x", metadata={"properties": {"major": "1"}})
    assert (await put(registry, "a", "y", metadata={"properties": {"major": "2"}}))[1] == 2
    with pytest.raises(Incompatible):
        await put(registry, "a", "z", metadata={"properties": {"major": "2"}})


async def test_config_is_inherited_from_the_nearest_scope(registry: SchemaRegistry) -> None:
    def level_of(subject: str) -> str:
        return str(config_in_scope(registry.state, parse(subject))["compatibilityLevel"])

    assert level_of("a") == level_of(":.ctx:a") == CompatibilityLevel.BACKWARD.value
    await configure(registry, ":.__GLOBAL:", compatibilityLevel="NONE")
    assert level_of("a") == level_of(":.ctx:a") == "NONE"
    await configure(registry, "", compatibilityLevel="FULL")
    await configure(registry, ":.ctx:", compatibilityLevel="FORWARD")
    assert (level_of("a"), level_of(":.ctx:a")) == ("FULL", "FORWARD")
    await configure(registry, ":.ctx:a", compatibilityLevel="BACKWARD_TRANSITIVE")
    assert level_of(":.ctx:a") == "BACKWARD_TRANSITIVE"


# ── references ───────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_delete_is_rejected_when_the_version_is_referenced(registry: SchemaRegistry) -> None:
    await put(registry, "base", "b")
    await put(registry, "a", "x", references=(Pointer("base", "base", 1),))
    assert registry.state.referrers(SubjectVersion("base", 1)) == [SchemaId(".", 2)]
    for number in (None, 1):
        with pytest.raises(Referenced, match=r"schema 2 in context \. refers to version 1"):
            await delete(registry, "base", number)
    await delete(registry, "a")
    await delete(registry, "base")
    with pytest.raises(Referenced):
        await delete(registry, "base", permanent=True)
    await delete(registry, "a", permanent=True)
    await delete(registry, "base", permanent=True)
    assert registry.state.subjects == {}


async def test_schema_is_rejected_when_a_reference_does_not_exist(registry: SchemaRegistry) -> None:
    with pytest.raises(InvalidSchema, match="reference 'base': version 1 of base does not exist"):
        await put(registry, "a", "x", references=(Pointer("base", "base", 1),))
    await put(registry, ":.ctx:base", "b")
    assert await put(registry, ":.ctx:a", "x", references=(Pointer("base", "base", 1),)) == (2, 1)
    assert await put(registry, "a", "x", references=(Pointer("base", ":.ctx:base", 1),)) == (1, 1)


async def test_schema_is_rejected_when_it_has_too_many_indirect_references(registry: SchemaRegistry) -> None:
    await put(registry, "s0", "x")
    for number in range(1, 9):
        before = tuple(Pointer(name, f"s{number - 1}", 1) for name in ("left", "right"))
        await put(registry, f"s{number}", "x", references=before)
    with pytest.raises(InvalidSchema, match="references: at most 1000 are allowed"):
        await put(registry, "s9", "x", references=(Pointer("left", "s8", 1), Pointer("right", "s8", 1)))


async def test_cyclic_references_are_rejected(registry: SchemaRegistry, store: MetadataStore) -> None:
    """The API cannot create cyclic references, so the test writes them to the store."""
    log = SchemaLog(store)
    for number, (subject, other) in enumerate([("a", "b"), ("b", "a")]):
        schema = NewSchema("JSON", subject, subject, subject, (Pointer("it", other, 1),))
        await log.put_text(subject, StoredText('["x"]'))
        await log.append(number, Registered(subject, 1, number + 1, schema), subject)
    with pytest.raises(InvalidSchema, match="'it' is cyclic: b version 1 → a version 1 → b version 1"):
        await SchemaReader(store).source_of(".", 1)


async def test_schema_is_rejected_when_references_are_nested_too_deeply(registry: SchemaRegistry) -> None:
    await put(registry, "s0", "x")
    for number in range(1, 33):
        await put(registry, f"s{number}", "x", references=(Pointer("before", f"s{number - 1}", 1),))
    with pytest.raises(InvalidSchema, match="nested deeper than 32 levels"):
        await put(registry, "s33", "x", references=(Pointer("before", "s32", 1),))


# ── deleting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_soft_deleted_version_is_readable_by_id(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    await put(registry, "a", "x", "y?")
    with pytest.raises(VersionNotDeleted):
        await delete(registry, "a", 1, permanent=True)
    await delete(registry, "a", 1)
    with pytest.raises(VersionDeleted):
        await delete(registry, "a", 1)
    assert [version.number for version in registry.state.versions(parse("a"))] == [2]
    assert await registry.reader.source_of(".", 1)
    assert (await registry.registration(parse("a"), 1, deleted=True)).version.deleted
    with pytest.raises(NoSuchSchema):
        await registry.lookup(wanted("a", "x"))
    assert (await registry.lookup(wanted("a", "x"), deleted=True)).version.number == 1


async def test_soft_deleted_schema_keeps_its_id_when_registered_again(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    await delete(registry, "a")
    with pytest.raises(SubjectDeleted):
        await delete(registry, "a")
    assert await put(registry, "a", "x") == (1, 2)
    assert [version.number for version in registry.state.versions(parse("a"), deleted=True)] == [2]


async def test_permanently_deleted_schema_gets_a_new_id_when_registered_again(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    with pytest.raises(SubjectNotDeleted):
        await delete(registry, "a", permanent=True)
    await configure(registry, "a", compatibilityLevel="NONE")
    text_id = registry.state.schema(".", 1).text_id
    await delete(registry, "a")
    await delete(registry, "a", permanent=True)
    assert registry.state.configs == {}
    assert await registry.reader.log.text(text_id) is None
    with pytest.raises(NoSuchSchema):
        await registry.reader.source_of(".", 1)
    assert await put(registry, "a", "x") == (2, 1)


async def test_text_is_kept_when_another_subject_has_the_schema(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    await put(registry, "b", "x")
    await delete(registry, "a")
    await delete(registry, "a", permanent=True)
    assert await registry.reader.source_of(".", 1)


# ── modes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_read_only_subject_accepts_only_existing_schemas(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    await mode(registry, "a", SubjectMode.READONLY)
    assert await put(registry, "a", "x") == (1, 1)
    with pytest.raises(NotPermitted, match="read-only"):
        await put(registry, "a", "x", "y?")
    with pytest.raises(NotPermitted, match="read-only"):
        await delete(registry, "a")
    assert await put(registry, "b", "y") == (2, 1)


async def test_read_only_override_has_precedence_over_the_mode_of_a_subject(registry: SchemaRegistry) -> None:
    await mode(registry, "a", SubjectMode.READWRITE)
    await mode(registry, "", SubjectMode.READONLY)
    assert mode_in_scope(registry.state, parse("a")) is SubjectMode.READWRITE
    await mode(registry, "", SubjectMode.READONLY_OVERRIDE)
    assert mode_in_scope(registry.state, parse("a")) is SubjectMode.READONLY_OVERRIDE
    assert mode_in_scope(registry.state, parse(":.ctx:a")) is SubjectMode.READWRITE
    await mode(registry, ":.ctx:", SubjectMode.READWRITE)
    await mode(registry, ":.__GLOBAL:", SubjectMode.READONLY_OVERRIDE)
    assert mode_in_scope(registry.state, parse(":.ctx:a")) is SubjectMode.READONLY_OVERRIDE


async def test_imported_schemas_keep_their_ids_and_versions(registry: SchemaRegistry) -> None:
    with pytest.raises(NotPermitted, match="not in import mode"):
        await put(registry, "a", "x", schema_id=100)
    await mode(registry, "", SubjectMode.IMPORT)
    with pytest.raises(NotPermitted, match="not in read-write mode"):
        await put(registry, "a", "x")
    assert await put(registry, "a", "x", schema_id=100, version=7) == (100, 7)
    assert await put(registry, "a", "x", schema_id=100, version=7) == (100, 7)
    assert await put(registry, "a", "z", schema_id=50, version=3) == (50, 3), "imports skip the compatibility check"
    with pytest.raises(NotPermitted, match="Overwrite new schema with id 100"):
        await put(registry, "b", "other", schema_id=100)
    with pytest.raises(NotPermitted, match="Version 7 of subject a is already schema 100"):
        await put(registry, "a", "new", schema_id=101, version=7)
    await mode(registry, "", SubjectMode.READWRITE)
    await configure(registry, "", compatibilityLevel="NONE")
    assert await put(registry, "a", "new") == (101, 8)


async def test_import_mode_is_rejected_when_subjects_exist(registry: SchemaRegistry) -> None:
    await put(registry, "a", "x")
    with pytest.raises(NotPermitted, match="found existing subjects, for example 'a'"):
        await mode(registry, "", SubjectMode.IMPORT)
    await mode(registry, "b", SubjectMode.IMPORT)
    await delete(registry, "a")
    await mode(registry, "", SubjectMode.IMPORT)
    assert registry.state.subjects == {}, "soft-deleted versions are deleted permanently"
    await mode(registry, "", None)
    await put(registry, "a", "x")
    await mode(registry, "", SubjectMode.IMPORT, force=True)
    assert await put(registry, "a", "y", schema_id=70) == (70, 2)


async def test_given_version_is_accepted_only_when_it_is_the_next_one(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", "x", version=1) == (1, 1)
    with pytest.raises(InvalidSchema, match="not one more than previous version: give 2"):
        await put(registry, "a", "x", "y?", version=5)


# ── contexts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_each_context_has_ids_of_its_own(registry: SchemaRegistry) -> None:
    assert await put(registry, "a", "x") == (1, 1)
    assert await put(registry, "a", "x", "y?") == (2, 2)
    assert await put(registry, ":.ctx:a", "q") == (1, 1)
    assert (await registry.reader.source_of(".ctx", 1)).text == '["q"]'
    with pytest.raises(ContextNotEmpty):
        await registry.change(lambda state: remove_context(state, ".ctx"))
    await delete(registry, ":.ctx:a")
    await delete(registry, ":.ctx:a", permanent=True)
    await registry.change(lambda state: remove_context(state, ".ctx"))
    assert [name for name, one in registry.state.contexts.items() if one.shown] == ["."]
    assert await put(registry, ":.ctx:a", "q") == (2, 1), "an id is not assigned twice"


def test_subjects_are_parsed_and_printed_with_their_contexts() -> None:
    assert parse("a") == Subject(".", "a")
    assert parse("a", ".ctx") == Subject(".ctx", "a")
    assert parse(":.ctx:a:b") == Subject(".ctx", "a:b")
    assert parse(":.:a") == Subject(".", "a")
    assert parse(":.ctx:") == parse(":.ctx") == Subject(".ctx", "")
    assert str(parse(":.ctx:a")) == ":.ctx:a"
    assert str(parse(":.:a")) == "a"
    assert parse("") == EVERYTHING
