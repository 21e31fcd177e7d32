"""Schemas by id and guid over REST, and all of them."""

from typing import Any, Final

from starlette.responses import Response

from lakestream.coordination.schemas.names import DEFAULT, Subject, parse
from lakestream.coordination.schemas.refusals import NoSuchSchema
from lakestream.coordination.schemas.registry import SchemaRegistry
from lakestream.coordination.schemas.scopes import aliased
from lakestream.coordination.schemas.state import SchemaId, State, Use, Version
from lakestream.protocol.rest.registry.answers import json_answer, schema_body, text_answer, version_body
from lakestream.protocol.rest.registry.calls import Call
from lakestream.protocol.rest.registry.subjects import matches
from lakestream.schemas.model import Format

LISTED_MAX: Final = 1_000
"""Schemas with their texts in one answer; `offset` gives the next."""


class SchemaCalls:
    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    async def types(self, call: Call) -> Response:
        """GET schemas/types"""
        return json_answer(call.request, [one.value for one in (Format.JSON, Format.PROTOBUF, Format.AVRO)])

    async def all(self, call: Call) -> Response:
        """GET schemas?subjectPrefix=…&deleted=…&latestOnly=…&offset=…&limit=…"""
        deleted, latest = call.flag("deleted"), call.flag("latestOnly")
        prefix = call.prefix_or("")
        listed = await self._registry.look(lambda state: _listed(state, prefix, deleted=deleted, latest=latest))
        found = [await self._registry.whole(*one) for one in call.page(listed, LISTED_MAX)]
        return json_answer(call.request, [version_body(one) for one in found])

    async def by_id(self, call: Call) -> Response:
        """GET schemas/ids/{id}?subject=…&format=…&fetchMaxId=…"""
        one = await self._id(call)
        body = await self._body(one, call.query("format"))
        if call.query("subject"):
            body = _place(self._registry.state, one, call.asked_subject) | body
        if call.flag("fetchMaxId"):
            body["maxId"] = self._registry.state.context(one.context).last_id
        return json_answer(call.request, body)

    async def text(self, call: Call) -> Response:
        """GET schemas/ids/{id}/schema"""
        body = await self._body(await self._id(call), call.query("format"))
        return text_answer(call.request, body["schema"])

    async def subjects(self, call: Call) -> Response:
        """GET schemas/ids/{id}/subjects?subject=…&deleted=…"""
        return json_answer(call.request, call.page(list(dict.fromkeys(use.subject for use in await self._used(call)))))

    async def versions(self, call: Call) -> Response:
        """GET schemas/ids/{id}/versions?subject=…&deleted=…"""
        uses = call.page(await self._used(call))
        return json_answer(call.request, [{"subject": use.subject, "version": use.version} for use in uses])

    async def by_guid(self, call: Call) -> Response:
        """GET schemas/guids/{guid}?format=…"""
        guid = call.args[0].lower()

        def find(state: State) -> SchemaId:
            if not (found := _with_guid(state, guid)):
                raise NoSuchSchema(f"Schema {guid[:40]} not found")
            return found[0]

        one = await self._registry.glance(find)
        return json_answer(call.request, await self._body(one, call.query("format")))

    async def ids(self, call: Call) -> Response:
        """GET schemas/guids/{guid}/ids"""
        found = await self._registry.look(lambda state: _with_guid(state, call.args[0].lower()))
        return json_answer(call.request, [one._asdict() for one in found])

    async def _id(self, call: Call) -> SchemaId:
        """What belongs to an id never changes: it is asked of the store only if it is not known here."""
        return await self._registry.glance(lambda state: _where(state, call.id, aliased(state, call.asked_subject)))

    async def _used(self, call: Call) -> list[Use]:
        deleted = call.flag("deleted")

        def uses(state: State) -> list[Use]:
            return state.uses(_where(state, call.id, aliased(state, call.asked_subject)), deleted=deleted)

        return await self._registry.look(uses)

    async def _body(self, one: SchemaId, word: str) -> dict[str, Any]:
        shelf = self._registry.shelf
        schema = self._registry.state.schema(*one)
        text = None
        if word.strip():
            text = await self._registry.reading.formatted(await shelf.source_of(*one), word)
        return schema_body(schema, await shelf.text_of(*one, schema), text)


def _where(state: State, schema_id: int, subject: Subject) -> SchemaId:
    """In the context of the subject; if it says none, and that has no such id, where a subject of the name has it."""
    if schema_id not in state.context(subject.context).schemas and subject.context == DEFAULT and subject.name:
        for name in state.contexts:
            uses = state.uses(SchemaId(name, schema_id), deleted=True)
            if any(parse(use.subject).name == subject.name for use in uses):
                return SchemaId(name, schema_id)
    state.schema(subject.context, schema_id)
    return SchemaId(subject.context, schema_id)


def _place(state: State, one: SchemaId, asked: Subject) -> dict[str, Any]:
    uses = state.uses(one, deleted=True)
    found = next((use for use in uses if parse(use.subject).name == asked.name), uses[0])
    return {"subject": found.subject, "version": found.version}


def _with_guid(state: State, guid: str) -> list[SchemaId]:
    found = [(name, context.guids.get(guid)) for name, context in state.contexts.items()]
    return [SchemaId(name, schema_id) for name, schema_id in sorted(found) if schema_id is not None]


def _listed(state: State, prefix: Subject | None, *, deleted: bool, latest: bool) -> list[tuple[Subject, Version]]:
    found = []
    for name in sorted(state.subjects):
        if matches(name, prefix):
            versions = state.versions(parse(name), deleted=deleted)
            found += [(parse(name), version) for version in (versions[-1:] if latest else versions)]
    return found
