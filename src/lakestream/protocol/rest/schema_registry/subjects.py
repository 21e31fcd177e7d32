"""Endpoints of subjects and their versions: list, register, look up, load, delete; and compatibility."""

from starlette.responses import Response

from lakestream.coordination.schema_registry.delete import delete_subject, delete_version
from lakestream.coordination.schema_registry.errors import InvalidSchema
from lakestream.coordination.schema_registry.registry import RegisteredVersion, SchemaRegistry
from lakestream.coordination.schema_registry.state import State, SubjectVersion, Version
from lakestream.coordination.schema_registry.subjects import Subject, parse
from lakestream.metadata.schemas import Deleted, Removed
from lakestream.protocol.rest.schema_registry.request_models import read_schema
from lakestream.protocol.rest.schema_registry.requests import RegistryCall
from lakestream.protocol.rest.schema_registry.responses import json_response, text_response, version_body


class SubjectCalls:
    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    async def list(self, call: RegistryCall) -> Response:
        """GET subjects?subjectPrefix=…&deleted=…&deletedOnly=…&offset=…&limit=…"""
        only, deleted = _deleted(call)
        names = await self._registry.read(lambda state: _listed(state, call.prefix, only=only, deleted=deleted))
        return json_response(call.request, call.page(names))

    async def lookup(self, call: RegistryCall) -> Response:
        """POST subjects/{subject}?normalize=…&deleted=…&format=…"""
        schema = await read_schema(call, call.subject)
        return await self._version(call, await self._registry.lookup(schema, deleted=call.flag("deleted")))

    async def delete(self, call: RegistryCall) -> Response:
        """DELETE subjects/{subject}?permanent=…"""
        permanent = call.flag("permanent")
        change = await self._registry.change(lambda state: delete_subject(state, call.subject, permanent=permanent))
        assert isinstance(change, Deleted | Removed)
        return json_response(call.request, change.versions)

    async def versions(self, call: RegistryCall) -> Response:
        """GET subjects/{subject}/versions?deleted=…&deletedOnly=…&deletedAsNegative=…&offset=…&limit=…"""
        only, deleted = _deleted(call)
        negative = call.flag("deletedAsNegative")
        versions = await self._registry.read(
            lambda state: state.existing_versions(call.subject, deleted=deleted or only or negative)
        )
        numbers = [
            -version.number if negative and version.deleted else version.number
            for version in versions
            if version.deleted or not only
        ]
        return json_response(call.request, call.page(numbers))

    async def register(self, call: RegistryCall) -> Response:
        """POST subjects/{subject}/versions?normalize=…&format=…"""
        schema = await read_schema(call, call.subject)
        registered = await self._registry.register(schema)
        body = version_body(registered, await self._registry.formatted(registered, call.query("format")))
        if (registered.text.metadata, registered.text.rule_set) == (schema.metadata, schema.rule_set):
            # The client keeps the schema as it sent it, in the form that its serializer uses.
            return json_response(call.request, {name: body[name] for name in ("id", "version", "guid")})
        return json_response(call.request, body)

    async def load(self, call: RegistryCall) -> Response:
        """GET subjects/{subject}/versions/{version}?deleted=…&format=…"""
        return await self._version(call, await self._registration(call))

    async def load_text(self, call: RegistryCall) -> Response:
        """GET subjects/{subject}/versions/{version}/schema"""
        registration = await self._registration(call)
        text = await self._registry.formatted(registration, call.query("format"))
        return text_response(call.request, registration.text.text if text is None else text)

    async def referenced_by(self, call: RegistryCall) -> Response:
        """GET subjects/{subject}/versions/{version}/referencedby"""
        deleted = call.flag("deleted")

        def needs(state: State) -> list[int]:
            version = state.version(call.subject, call.version, deleted=True)
            needed_by = state.referrers(SubjectVersion(str(call.subject), version.number), deleted=deleted)
            return [one.id for one in needed_by]

        return json_response(call.request, call.page(await self._registry.read(needs)))

    async def delete_version(self, call: RegistryCall) -> Response:
        """DELETE subjects/{subject}/versions/{version}?permanent=…"""
        number, permanent = call.version, call.flag("permanent")
        change = await self._registry.change(
            lambda state: delete_version(state, call.subject, number, permanent=permanent)
        )
        assert isinstance(change, Deleted | Removed)
        return json_response(call.request, change.versions[0])

    async def with_metadata(self, call: RegistryCall) -> Response:
        """GET subjects/{subject}/metadata?key=…&value=…&deleted=…"""
        keys, values = (call.request.query_params.getlist(name) for name in ("key", "value"))
        metadata = dict(zip(keys, values, strict=False))
        registration = await self._registry.with_metadata(call.subject, metadata, deleted=call.flag("deleted"))
        return await self._version(call, registration)

    async def compatible(self, call: RegistryCall) -> Response:
        """POST compatibility/subjects/{subject}/versions?verbose=…&normalize=…"""
        return await self._compatible(call, None)

    async def compatible_with(self, call: RegistryCall) -> Response:
        """POST compatibility/subjects/{subject}/versions/{version}?verbose=…&normalize=…"""
        return await self._compatible(call, call.version)

    async def _compatible(self, call: RegistryCall, number: int | None) -> Response:
        verbose = call.flag("verbose")
        try:
            problems = await self._registry.incompatibilities(await read_schema(call, call.subject), number)
        except InvalidSchema as error:
            if not verbose:
                raise
            problems = [str(error)]
        body: dict[str, object] = {"is_compatible": not problems}
        return json_response(call.request, body | ({"messages": problems} if verbose else {}))

    async def _registration(self, call: RegistryCall) -> RegisteredVersion:
        return await self._registry.registration(call.subject, call.version, deleted=call.flag("deleted"))

    async def _version(self, call: RegistryCall, registration: RegisteredVersion) -> Response:
        text = await self._registry.formatted(registration, call.query("format"))
        return json_response(call.request, version_body(registration, text))


def _deleted(call: RegistryCall) -> tuple[bool, bool]:
    """Returns the flags deletedOnly and deleted. Python's client sends `deleted_only`."""
    return call.flag("deletedOnly", "deleted_only"), call.flag("deleted")


def _listed(state: State, prefix: Subject | None, *, only: bool, deleted: bool) -> list[str]:
    return [
        name
        for name in sorted(state.subjects)
        if matches(name, prefix) and _is_listed(list(state.subjects[name].values()), only=only, deleted=deleted)
    ]


def matches(name: str, prefix: Subject | None) -> bool:
    if prefix is None:
        return True
    subject = parse(name)
    return subject.context == prefix.context and subject.name.startswith(prefix.name)


def _is_listed(versions: list[Version], *, only: bool, deleted: bool) -> bool:
    """Returns whether a subject is listed. It is deleted if all of its versions are."""
    is_deleted = all(version.deleted for version in versions)
    return is_deleted if only else deleted or not is_deleted
