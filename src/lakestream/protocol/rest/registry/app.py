"""The schema registry over HTTP, as Confluent's serializers expect it: one table of endpoints.

It stands beside the Iceberg catalog on the same port. Of /v1, which is the catalog's, it has only /v1/metadata.
Every path may begin with /contexts/{context}: then names are meant in that context.
"""

import logging
from collections.abc import Awaitable, Callable
from importlib.metadata import version
from typing import Final, NamedTuple

from starlette.requests import Request
from starlette.responses import Response

from lakestream.coordination.schemas.names import Subject, parse
from lakestream.coordination.schemas.registry import SchemaRegistry
from lakestream.coordination.schemas.scopes import aliased
from lakestream.errors import LakestreamError
from lakestream.protocol.rest.registry.answers import json_answer
from lakestream.protocol.rest.registry.calls import Call, segments
from lakestream.protocol.rest.registry.errors import NotServed, WrongMethod, answer, error_response
from lakestream.protocol.rest.registry.schemas import SchemaCalls
from lakestream.protocol.rest.registry.settings import SettingCalls
from lakestream.protocol.rest.registry.subjects import SubjectCalls

log = logging.getLogger(__name__)

Handler = Callable[[Call], Awaitable[Response]]

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "DELETE")
PATHS: Final = ("subjects", "schemas", "compatibility", "config", "mode", "contexts", "v1/metadata")
ROUTES: Final = ("/", *(f"/{path}" for path in PATHS), *(f"/{path}/{{rest:path}}" for path in PATHS))
"""What is the registry's: each with all below it, and `/` itself."""
ALIASES: Final = ("subjects", "compatibility")
"""Where a subject may be meant by its alias."""


class Endpoint(NamedTuple):
    method: str
    path: str
    handler: Handler

    @property
    def pattern(self) -> tuple[str, ...]:
        return tuple(self.path.strip("/").split("/")) if self.path != "/" else ()


class RegistryRest:
    def __init__(self, registry: SchemaRegistry, cluster_id: str) -> None:
        self._registry = registry
        self._cluster_id = cluster_id
        self.endpoints = self._endpoints()

    async def handle(self, request: Request) -> Response:
        try:
            return await self._dispatch(request)
        except LakestreamError as error:
            return answer(error)
        except Exception:
            log.exception("registry.fault %s %s", request.method, request.url.path)
            return error_response(500, 500, "this is a fault of the server; its log says more")

    async def _dispatch(self, request: Request) -> Response:
        context, path = segments(request)
        fitting = [endpoint for endpoint in self.endpoints if _fits(endpoint.pattern, path)]
        method = "GET" if request.method == "HEAD" else request.method
        for endpoint in fitting:
            if endpoint.method == method:
                args = tuple(part for part, name in zip(path, endpoint.pattern, strict=True) if name.startswith("{"))
                return await endpoint.handler(await self._call(request, endpoint, args, context))
        if fitting:
            raise WrongMethod(f"{request.method} is not served here, but {', '.join(one.method for one in fitting)}")
        raise NotServed(f"there is nothing at {request.url.path}")

    async def _call(self, request: Request, endpoint: Endpoint, args: tuple[str, ...], context: str) -> Call:
        subject = Subject(context, "")
        if "{subject}" in endpoint.pattern:
            subject = parse(args[0], context)
            if endpoint.pattern[0] in ALIASES:
                named = subject
                subject = await self._registry.look(lambda state: aliased(state, named))
        return Call(request, args, subject, context)

    async def _root(self, call: Call) -> Response:
        """GET /: that it is here."""
        return json_answer(call.request, {})

    async def _cluster(self, call: Call) -> Response:
        """GET v1/metadata/id"""
        clusters = {"kafka-cluster": self._cluster_id, "schema-registry-cluster": "schema-registry"}
        return json_answer(call.request, {"id": "", "scope": {"path": [], "clusters": clusters}})

    async def _version(self, call: Call) -> Response:
        """GET v1/metadata/version"""
        return json_answer(call.request, {"version": f"lakestream-{version('lakestream')}", "commitId": ""})

    def _endpoints(self) -> list[Endpoint]:
        subjects = SubjectCalls(self._registry)
        schemas = SchemaCalls(self._registry)
        settings = SettingCalls(self._registry)
        versions = "/subjects/{subject}/versions"
        return [
            Endpoint("GET", "/", self._root),
            Endpoint("POST", "/", self._root),
            Endpoint("GET", "/subjects", subjects.list),
            Endpoint("POST", "/subjects/{subject}", subjects.lookup),
            Endpoint("DELETE", "/subjects/{subject}", subjects.delete),
            Endpoint("GET", versions, subjects.versions),
            Endpoint("POST", versions, subjects.register),
            Endpoint("GET", f"{versions}/{{version}}", subjects.load),
            Endpoint("DELETE", f"{versions}/{{version}}", subjects.delete_version),
            Endpoint("GET", f"{versions}/{{version}}/schema", subjects.load_text),
            Endpoint("GET", f"{versions}/{{version}}/referencedby", subjects.referenced_by),
            Endpoint("GET", "/subjects/{subject}/metadata", subjects.with_metadata),
            Endpoint("GET", "/schemas", schemas.all),
            Endpoint("GET", "/schemas/types", schemas.types),
            Endpoint("GET", "/schemas/ids/{id}", schemas.by_id),
            Endpoint("GET", "/schemas/ids/{id}/schema", schemas.text),
            Endpoint("GET", "/schemas/ids/{id}/subjects", schemas.subjects),
            Endpoint("GET", "/schemas/ids/{id}/versions", schemas.versions),
            Endpoint("GET", "/schemas/guids/{guid}", schemas.by_guid),
            Endpoint("GET", "/schemas/guids/{guid}/ids", schemas.ids),
            Endpoint("POST", f"/compatibility{versions}", subjects.compatible),
            Endpoint("POST", f"/compatibility{versions}/{{version}}", subjects.compatible_with),
            Endpoint("GET", "/config", settings.config),
            Endpoint("PUT", "/config", settings.configure),
            Endpoint("DELETE", "/config", settings.forget_config),
            Endpoint("GET", "/config/{subject}", settings.config),
            Endpoint("PUT", "/config/{subject}", settings.configure),
            Endpoint("DELETE", "/config/{subject}", settings.forget_config),
            Endpoint("GET", "/mode", settings.mode),
            Endpoint("PUT", "/mode", settings.set_mode),
            Endpoint("DELETE", "/mode", settings.forget_mode),
            Endpoint("GET", "/mode/{subject}", settings.mode),
            Endpoint("PUT", "/mode/{subject}", settings.set_mode),
            Endpoint("DELETE", "/mode/{subject}", settings.forget_mode),
            Endpoint("GET", "/contexts", settings.contexts),
            Endpoint("DELETE", "/contexts/{context}", settings.remove_context),
            Endpoint("GET", "/v1/metadata/id", self._cluster),
            Endpoint("GET", "/v1/metadata/version", self._version),
        ]


def _fits(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    return len(pattern) == len(path) and all(
        name.startswith("{") or name == part for name, part in zip(pattern, path, strict=True)
    )
