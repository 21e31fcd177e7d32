"""Subjects and their versions over REST: list, register, look up, load, delete; and compatibility."""

from starlette.responses import Response

from lakestream.coordination.schemas.deleting import delete_subject, delete_version
from lakestream.coordination.schemas.names import Subject, parse
from lakestream.coordination.schemas.refusals import InvalidSchema
from lakestream.coordination.schemas.registry import Registration, SchemaRegistry
from lakestream.coordination.schemas.state import State, Use, Version
from lakestream.metadata.schemas import Deleted, Removed
from lakestream.protocol.rest.registry.answers import json_answer, text_answer, version_body
from lakestream.protocol.rest.registry.bodies import read_schema
from lakestream.protocol.rest.registry.calls import Call


class SubjectCalls:
    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    async def list(self, call: Call) -> Response:
        """GET subjects?subjectPrefix=…&deleted=…&deletedOnly=…&offset=…&limit=…"""
        only, deleted = _deleted(call)
        found = await self._registry.look(lambda state: _listed(state, call.prefix, only=only, deleted=deleted))
        return json_answer(call.request, call.page(found))

    async def lookup(self, call: Call) -> Response:
        """POST subjects/{subject}?normalize=…&deleted=…&format=…"""
        wanted = await read_schema(call, call.subject)
        found = await self._registry.lookup(wanted, deleted=call.flag("deleted"))
        return await self._version(call, found)

    async def delete(self, call: Call) -> Response:
        """DELETE subjects/{subject}?permanent=…"""
        permanent = call.flag("permanent")
        change = await self._registry.change(lambda state: delete_subject(state, call.subject, permanent=permanent))
        assert isinstance(change, Deleted | Removed)
        return json_answer(call.request, change.versions)

    async def versions(self, call: Call) -> Response:
        """GET subjects/{subject}/versions?deleted=…&deletedOnly=…&deletedAsNegative=…&offset=…&limit=…"""
        only, deleted = _deleted(call)
        negative = call.flag("deletedAsNegative")
        versions = await self._registry.look(
            lambda state: state.found(call.subject, deleted=deleted or only or negative)
        )
        numbers = [
            -version.number if negative and version.deleted else version.number
            for version in versions
            if version.deleted or not only
        ]
        return json_answer(call.request, call.page(numbers))

    async def register(self, call: Call) -> Response:
        """POST subjects/{subject}/versions?normalize=…&format=…"""
        wanted = await read_schema(call, call.subject)
        found = await self._registry.register(wanted)
        body = version_body(found, await self._registry.formatted(found, call.query("format")))
        if (found.text.metadata, found.text.rule_set) == (wanted.metadata, wanted.rule_set):
            # What the client sent is what it has: it keeps that, in the spelling that its serializer works with.
            return json_answer(call.request, {name: body[name] for name in ("id", "version", "guid")})
        return json_answer(call.request, body)

    async def load(self, call: Call) -> Response:
        """GET subjects/{subject}/versions/{version}?deleted=…&format=…"""
        return await self._version(call, await self._found(call))

    async def load_text(self, call: Call) -> Response:
        """GET subjects/{subject}/versions/{version}/schema"""
        found = await self._found(call)
        text = await self._registry.formatted(found, call.query("format"))
        return text_answer(call.request, found.text.text if text is None else text)

    async def referenced_by(self, call: Call) -> Response:
        """GET subjects/{subject}/versions/{version}/referencedby"""
        deleted = call.flag("deleted")

        def needs(state: State) -> list[int]:
            version = state.version(call.subject, call.version, deleted=True)
            needed_by = state.needed_by(Use(str(call.subject), version.number), deleted=deleted)
            return [one.id for one in needed_by]

        return json_answer(call.request, call.page(await self._registry.look(needs)))

    async def delete_version(self, call: Call) -> Response:
        """DELETE subjects/{subject}/versions/{version}?permanent=…"""
        number, permanent = call.version, call.flag("permanent")
        change = await self._registry.change(
            lambda state: delete_version(state, call.subject, number, permanent=permanent)
        )
        assert isinstance(change, Deleted | Removed)
        return json_answer(call.request, change.versions[0])

    async def with_metadata(self, call: Call) -> Response:
        """GET subjects/{subject}/metadata?key=…&value=…&deleted=…"""
        keys, values = (call.request.query_params.getlist(name) for name in ("key", "value"))
        wanted = dict(zip(keys, values, strict=False))
        found = await self._registry.with_metadata(call.subject, wanted, deleted=call.flag("deleted"))
        return await self._version(call, found)

    async def compatible(self, call: Call) -> Response:
        """POST compatibility/subjects/{subject}/versions?verbose=…&normalize=…"""
        return await self._compatible(call, None)

    async def compatible_with(self, call: Call) -> Response:
        """POST compatibility/subjects/{subject}/versions/{version}?verbose=…&normalize=…"""
        return await self._compatible(call, call.version)

    async def _compatible(self, call: Call, number: int | None) -> Response:
        verbose = call.flag("verbose")
        try:
            troubles = await self._registry.troubles(await read_schema(call, call.subject), number)
        except InvalidSchema as error:
            if not verbose:
                raise
            troubles = [str(error)]
        body: dict[str, object] = {"is_compatible": not troubles}
        return json_answer(call.request, body | ({"messages": troubles} if verbose else {}))

    async def _found(self, call: Call) -> Registration:
        return await self._registry.registration(call.subject, call.version, deleted=call.flag("deleted"))

    async def _version(self, call: Call, found: Registration) -> Response:
        return json_answer(
            call.request, version_body(found, await self._registry.formatted(found, call.query("format")))
        )


def _deleted(call: Call) -> tuple[bool, bool]:
    """Only deleted ones, or those too. Python's client spells it its own way."""
    return call.flag("deletedOnly", "deleted_only"), call.flag("deleted")


def _listed(state: State, prefix: Subject | None, *, only: bool, deleted: bool) -> list[str]:
    return [
        name
        for name in sorted(state.subjects)
        if matches(name, prefix) and _shown(list(state.subjects[name].values()), only=only, deleted=deleted)
    ]


def matches(name: str, prefix: Subject | None) -> bool:
    if prefix is None:
        return True
    subject = parse(name)
    return subject.context == prefix.context and subject.name.startswith(prefix.name)


def _shown(versions: list[Version], *, only: bool, deleted: bool) -> bool:
    """A subject is deleted when all of its versions are."""
    gone = all(version.deleted for version in versions)
    return gone if only else deleted or not gone
