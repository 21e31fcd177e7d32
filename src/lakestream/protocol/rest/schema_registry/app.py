"""The schema registry over HTTP, compatible with Confluent's serializers: one table of endpoints.

It shares a port with the Iceberg catalog, which has /v1 except for /v1/metadata. Every path may begin with
/contexts/{context}, which is then the context of all names without one.
"""

from importlib.metadata import version
from typing import Final
from urllib.parse import unquote

from starlette.requests import Request
from starlette.responses import Response

from lakestream.coordination.schema_registry.effective_config import aliased
from lakestream.coordination.schema_registry.registry import SchemaRegistry
from lakestream.coordination.schema_registry.subjects import Subject, parse
from lakestream.protocol.rest.router import Endpoint, RestApi, path_segments, split_path
from lakestream.protocol.rest.schema_registry.config import ConfigCalls
from lakestream.protocol.rest.schema_registry.errors import ERRORS
from lakestream.protocol.rest.schema_registry.requests import RegistryCall, split_context
from lakestream.protocol.rest.schema_registry.responses import json_response
from lakestream.protocol.rest.schema_registry.schemas import SchemaCalls
from lakestream.protocol.rest.schema_registry.subjects import SubjectCalls

PATHS: Final = ("subjects", "schemas", "compatibility", "config", "mode", "contexts", "v1/metadata")
ROUTES: Final = ("/", *(f"/{path}" for path in PATHS), *(f"/{path}/{{rest:path}}" for path in PATHS))
"""The routes of the registry: `/`, and each path with all paths below it."""
ALIASES: Final = ("subjects", "compatibility")
"""The paths below which an alias may stand for a subject."""


class RegistryRest(RestApi[RegistryCall]):
    def __init__(self, registry: SchemaRegistry, cluster_id: str) -> None:
        self._registry = registry
        self._cluster_id = cluster_id
        super().__init__("registry", self._endpoints(), ERRORS)

    async def dispatch(self, request: Request) -> Response:
        context, path = split_context(path_segments(request, unquote))
        endpoint, args = self.find(request, "GET" if request.method == "HEAD" else request.method, path)
        return await endpoint.handler(await self._call(request, endpoint.path, args, context))

    async def _call(self, request: Request, path: str, args: tuple[str, ...], context: str) -> RegistryCall:
        subject = Subject(context, "")
        if "{subject}" in path:
            subject = parse(args[0], context)
            if split_path(path)[0] in ALIASES:
                named = subject
                subject = await self._registry.read(lambda state: aliased(state, named))
        return RegistryCall(request, args, subject, context)

    async def _root(self, call: RegistryCall) -> Response:
        """GET /: an empty object, by which clients test the connection."""
        return json_response(call.request, {})

    async def _cluster(self, call: RegistryCall) -> Response:
        """GET v1/metadata/id"""
        clusters = {"kafka-cluster": self._cluster_id, "schema-registry-cluster": "schema-registry"}
        return json_response(call.request, {"id": "", "scope": {"path": [], "clusters": clusters}})

    async def _version(self, call: RegistryCall) -> Response:
        """GET v1/metadata/version"""
        return json_response(call.request, {"version": f"lakestream-{version('lakestream')}", "commitId": ""})

    def _endpoints(self) -> list[Endpoint[RegistryCall]]:
        subjects = SubjectCalls(self._registry)
        schemas = SchemaCalls(self._registry)
        configs = ConfigCalls(self._registry)
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
            Endpoint("GET", "/config", configs.config),
            Endpoint("PUT", "/config", configs.configure),
            Endpoint("DELETE", "/config", configs.delete_config),
            Endpoint("GET", "/config/{subject}", configs.config),
            Endpoint("PUT", "/config/{subject}", configs.configure),
            Endpoint("DELETE", "/config/{subject}", configs.delete_config),
            Endpoint("GET", "/mode", configs.mode),
            Endpoint("PUT", "/mode", configs.set_mode),
            Endpoint("DELETE", "/mode", configs.delete_mode),
            Endpoint("GET", "/mode/{subject}", configs.mode),
            Endpoint("PUT", "/mode/{subject}", configs.set_mode),
            Endpoint("DELETE", "/mode/{subject}", configs.delete_mode),
            Endpoint("GET", "/contexts", configs.contexts),
            Endpoint("DELETE", "/contexts/{context}", configs.remove_context),
            Endpoint("GET", "/v1/metadata/id", self._cluster),
            Endpoint("GET", "/v1/metadata/version", self._version),
        ]
