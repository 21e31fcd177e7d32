"""Endpoints of schemas: by id, by guid, and all of them."""

from collections.abc import Sequence
from typing import Any, Final

from starlette.responses import Response

from lakestream.coordination.schema_registry.effective_config import aliased
from lakestream.coordination.schema_registry.errors import NoSuchSchema, TooLarge
from lakestream.coordination.schema_registry.registry import SchemaRegistry
from lakestream.coordination.schema_registry.state import SchemaId, State, SubjectVersion, Version
from lakestream.coordination.schema_registry.subjects import DEFAULT, Subject, parse
from lakestream.model import MiB
from lakestream.protocol.rest.schema_registry.requests import RegistryCall
from lakestream.protocol.rest.schema_registry.responses import json_response, schema_body, text_response, version_body
from lakestream.protocol.rest.schema_registry.subjects import matches
from lakestream.schemas.model import Format

LISTED_MAX: Final = 1_000
"""Schemas with their texts in one response; the client requests the next ones with `offset`."""
LISTED_SIZE_MAX: Final = 64 * MiB


class SchemaCalls:
    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    async def types(self, call: RegistryCall) -> Response:
        """GET schemas/types"""
        return json_response(call.request, [one.value for one in (Format.JSON, Format.PROTOBUF, Format.AVRO)])

    async def all(self, call: RegistryCall) -> Response:
        """GET schemas?subjectPrefix=…&deleted=…&latestOnly=…&offset=…&limit=…"""
        deleted, latest = call.flag("deleted"), call.flag("latestOnly")
        prefix = call.prefix_or("")
        listed = await self._registry.read(lambda state: _listed(state, prefix, deleted=deleted, latest=latest))
        page = call.page(listed, LISTED_MAX)
        self._check_size(page)
        versions = [await self._registry.with_text(*one) for one in page]
        return json_response(call.request, [version_body(version) for version in versions])

    def _check_size(self, page: Sequence[tuple[Subject, Version]]) -> None:
        state = self._registry.state
        size = sum(state.schema(subject.context, version.id).size for subject, version in page)
        if size > LISTED_SIZE_MAX:
            raise TooLarge(
                f"the {len(page)} schemas have {size} bytes, and a response has at most {LISTED_SIZE_MAX}: "
                "list fewer at a time, with limit and offset"
            )

    async def by_id(self, call: RegistryCall) -> Response:
        """GET schemas/ids/{id}?subject=…&format=…&fetchMaxId=…"""
        one = await self._id(call)
        body = await self._body(one, call.query("format"))
        if call.query("subject"):
            body = _named_use(self._registry.state, one, call.query_subject) | body
        if call.flag("fetchMaxId"):
            body["maxId"] = self._registry.state.context(one.context).last_id
        return json_response(call.request, body)

    async def text(self, call: RegistryCall) -> Response:
        """GET schemas/ids/{id}/schema"""
        body = await self._body(await self._id(call), call.query("format"))
        return text_response(call.request, body["schema"])

    async def subjects(self, call: RegistryCall) -> Response:
        """GET schemas/ids/{id}/subjects?subject=…&deleted=…"""
        return json_response(
            call.request, call.page(list(dict.fromkeys(use.subject for use in await self._uses(call))))
        )

    async def versions(self, call: RegistryCall) -> Response:
        """GET schemas/ids/{id}/versions?subject=…&deleted=…"""
        uses = call.page(await self._uses(call))
        return json_response(call.request, [{"subject": use.subject, "version": use.version} for use in uses])

    async def by_guid(self, call: RegistryCall) -> Response:
        """GET schemas/guids/{guid}?format=…"""
        guid = call.args[0].lower()

        def find(state: State) -> SchemaId:
            if not (ids := _with_guid(state, guid)):
                raise NoSuchSchema(f"Schema {guid[:40]} not found")
            return ids[0]

        one = await self._registry.read_cached(find)
        return json_response(call.request, await self._body(one, call.query("format")))

    async def ids(self, call: RegistryCall) -> Response:
        """GET schemas/guids/{guid}/ids"""
        ids = await self._registry.read(lambda state: _with_guid(state, call.args[0].lower()))
        return json_response(call.request, [one._asdict() for one in ids])

    async def _id(self, call: RegistryCall) -> SchemaId:
        """Finds the id in the cached state, and refreshes the state only if the id is missing: ids never change."""
        return await self._registry.read_cached(
            lambda state: _find_id(state, call.id, aliased(state, call.query_subject))
        )

    async def _uses(self, call: RegistryCall) -> list[SubjectVersion]:
        deleted = call.flag("deleted")

        def uses(state: State) -> list[SubjectVersion]:
            return state.uses(_find_id(state, call.id, aliased(state, call.query_subject)), deleted=deleted)

        return await self._registry.read(uses)

    async def _body(self, one: SchemaId, word: str) -> dict[str, Any]:
        shelf = self._registry.reader
        schema = self._registry.state.schema(*one)
        text = None
        if word.strip():
            text = await self._registry.parser.formatted(await shelf.source_of(*one), word)
        return schema_body(schema, await shelf.text_of(*one, schema), text)


def _find_id(state: State, schema_id: int, subject: Subject) -> SchemaId:
    """Finds an id in the context of the subject, or raises NoSuchSchema.

    If the subject has no context, and the default one does not have the id, any context is used in which a subject of
    this name has the id.
    """
    if schema_id not in state.context(subject.context).schemas and subject.context == DEFAULT and subject.name:
        for name in state.contexts:
            uses = state.uses(SchemaId(name, schema_id), deleted=True)
            if any(parse(use.subject).name == subject.name for use in uses):
                return SchemaId(name, schema_id)
    state.schema(subject.context, schema_id)
    return SchemaId(subject.context, schema_id)


def _named_use(state: State, one: SchemaId, subject: Subject) -> dict[str, Any]:
    """Returns the version of the subject of this name that has the schema, or else the first one of any subject."""
    uses = state.uses(one, deleted=True)
    use = next((use for use in uses if parse(use.subject).name == subject.name), uses[0])
    return {"subject": use.subject, "version": use.version}


def _with_guid(state: State, guid: str) -> list[SchemaId]:
    ids = [(name, context.guids.get(guid)) for name, context in state.contexts.items()]
    return [SchemaId(name, schema_id) for name, schema_id in sorted(ids) if schema_id is not None]


def _listed(state: State, prefix: Subject | None, *, deleted: bool, latest: bool) -> list[tuple[Subject, Version]]:
    listed = []
    for name in sorted(state.subjects):
        if matches(name, prefix):
            versions = state.versions(parse(name), deleted=deleted)
            listed += [(parse(name), version) for version in (versions[-1:] if latest else versions)]
    return listed
