"""Endpoints of configuration: compatibility levels and other settings, modes, contexts."""

from typing import Any, Final

from starlette.responses import Response

from lakestream.coordination.schema_registry.delete import remove_context, set_mode
from lakestream.coordination.schema_registry.effective_config import (
    LEVEL,
    config_in_scope,
    level,
    mode,
    mode_in_scope,
    own_config,
    own_mode,
)
from lakestream.coordination.schema_registry.errors import NoMode, NoSuchSubject, NotConfigured, NotPermitted
from lakestream.coordination.schema_registry.registry import SchemaRegistry
from lakestream.coordination.schema_registry.state import State
from lakestream.coordination.schema_registry.subjects import EVERYTHING, Subject, check_text, parse_context
from lakestream.metadata.schemas import Configured, ModeSet
from lakestream.protocol.rest.router import Unprocessable
from lakestream.protocol.rest.schema_registry.request_models import SCHEMA_BYTES_MAX, ModeBody, read_body
from lakestream.protocol.rest.schema_registry.requests import RegistryCall
from lakestream.protocol.rest.schema_registry.responses import json_response

SENT_LEVEL: Final = "compatibility"
"""The name of the level in PUT requests and in the responses to them."""
SERVED: Final[dict[str, type]] = {"normalize": bool, "alias": str, "compatibilityGroup": str}
TEXT_MAX: Final = 1_000
NOT_SERVED: Final = frozenset(
    {
        *("aliasForDeks", "validateFields", "validateNewSchemas", "validateRules", "compatibilityPolicy"),
        *("defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet"),
    }
)


class ConfigCalls:
    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    async def config(self, call: RegistryCall) -> Response:
        """GET config[/{subject}]?defaultToGlobal=…"""
        settings_of = config_in_scope if call.flag("defaultToGlobal") else own_config
        return json_response(call.request, await self._registry.read(lambda state: settings_of(state, call.subject)))

    async def configure(self, call: RegistryCall) -> Response:
        """PUT config[/{subject}]"""
        check_text(call.subject)
        sent = _checked(await read_body(call.request, dict[str, Any], SCHEMA_BYTES_MAX))

        def decide(state: State) -> Configured | None:
            _permit(state, call.subject)
            before = state.configs.get(str(call.subject))
            after = {name: value for name, value in {**(before or {}), **sent}.items() if value is not None}
            return None if after == before else Configured(str(call.subject), after)

        await self._registry.change(decide)
        shown = await self._registry.read(lambda state: own_config(state, call.subject))
        return json_response(
            call.request, {SENT_LEVEL if name == LEVEL else name: value for name, value in shown.items()}
        )

    async def delete_config(self, call: RegistryCall) -> Response:
        """DELETE config[/{subject}]: returns the previous settings."""
        previous: dict[str, Any] = {}

        def decide(state: State) -> Configured | None:
            nonlocal previous
            try:
                previous = own_config(state, call.subject)
            except NotConfigured as error:
                raise NoSuchSubject(f"Subject '{call.subject}' not found: it has no settings") from error
            _permit(state, call.subject)
            return Configured(str(call.subject), None) if str(call.subject) in state.configs else None

        await self._registry.change(decide)
        return json_response(call.request, previous)

    async def mode(self, call: RegistryCall) -> Response:
        """GET mode[/{subject}]?defaultToGlobal=…"""
        mode_of = mode_in_scope if call.flag("defaultToGlobal") else own_mode
        current = await self._registry.read(lambda state: mode_of(state, call.subject))
        return json_response(call.request, {"mode": current.value})

    async def set_mode(self, call: RegistryCall) -> Response:
        """PUT mode[/{subject}]?force=…"""
        check_text(call.subject)
        body = await read_body(call.request, ModeBody)
        new_mode = None if body.mode is None else mode(body.mode)

        def decide(state: State) -> ModeSet | None:
            change = set_mode(state, call.subject, new_mode, force=call.flag("force"))
            same = state.modes.get(str(call.subject)) == change.mode and not change.removed
            return None if same else change

        await self._registry.change(decide)
        return json_response(call.request, {"mode": None if new_mode is None else new_mode.value})

    async def delete_mode(self, call: RegistryCall) -> Response:
        """DELETE mode[/{subject}]?recursive=…: returns the previous mode. Recursive: also those of its subjects."""
        previous: str | None = None
        recursive = call.flag("recursive") and call.subject.is_context

        def decide(state: State) -> ModeSet | None:
            nonlocal previous
            names = [
                name for name in state.modes if name == str(call.subject) or (recursive and _is_in(name, call.subject))
            ]
            try:
                previous = own_mode(state, call.subject).value
            except NoMode as error:
                if not recursive:
                    raise NoSuchSubject(f"Subject '{call.subject}' not found: it has no mode") from error
            return ModeSet(tuple(names), None) if names else None

        await self._registry.change(decide)
        return json_response(call.request, {"mode": previous})

    async def contexts(self, call: RegistryCall) -> Response:
        """GET contexts?contextPrefix=…&offset=…&limit=…"""
        prefix = call.query("contextPrefix")
        names = await self._registry.read(
            lambda state: sorted(name for name, one in state.contexts.items() if one.shown and name.startswith(prefix))
        )
        return json_response(call.request, call.page(names))

    async def remove_context(self, call: RegistryCall) -> Response:
        """DELETE contexts/{context}"""
        context = parse_context(call.args[0])
        if context == EVERYTHING.context:
            raise NotPermitted("the default context cannot be removed")
        await self._registry.change(lambda state: remove_context(state, context))
        return Response(status_code=204)


def _checked(sent: dict[str, Any]) -> dict[str, Any]:
    """Returns the valid settings of a request. A null resets its setting."""
    valid: dict[str, Any] = {}
    for name, value in sent.items():
        if name in (SENT_LEVEL, LEVEL):
            valid[LEVEL] = None if value is None else level(value).value
        elif name in SERVED:
            if value is not None and not isinstance(value, SERVED[name]):
                raise Unprocessable(f"{name} is {str(value)[:60]!r}: give a {SERVED[name].__name__}")
            if isinstance(value, str) and len(value) > TEXT_MAX:
                raise Unprocessable(f"{name} has {len(value)} characters: {TEXT_MAX} is the maximum")
            valid[name] = value
        elif name not in NOT_SERVED:
            raise Unprocessable(f"unknown setting {name[:60]!r}")
        elif value:
            raise Unprocessable(f"the setting {name} is not supported: see docs/coverage.md")
    return valid


def _permit(state: State, subject: Subject) -> None:
    if mode_in_scope(state, subject).is_read_only:
        raise NotPermitted(f"Subject {subject} in context {subject.context} is in read-only mode")


def _is_in(name: str, context: Subject) -> bool:
    return name.startswith(str(context)) if str(context) else not name.startswith(":")
