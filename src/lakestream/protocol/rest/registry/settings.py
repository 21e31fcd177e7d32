"""Settings over REST: compatibility and what goes with it, modes, contexts."""

from typing import Any, Final

from starlette.responses import Response

from lakestream.coordination.schemas.deleting import remove_context, set_mode
from lakestream.coordination.schemas.names import EVERYTHING, Subject, check_text, parse_context
from lakestream.coordination.schemas.refusals import NoMode, NoSuchSubject, NotConfigured, NotPermitted
from lakestream.coordination.schemas.registry import SchemaRegistry
from lakestream.coordination.schemas.scopes import (
    LEVEL,
    config_in_scope,
    level,
    mode,
    mode_in_scope,
    own_config,
    own_mode,
)
from lakestream.coordination.schemas.state import State
from lakestream.metadata.schemas import Configured, ModeSet
from lakestream.protocol.rest.registry.answers import json_answer
from lakestream.protocol.rest.registry.bodies import ModeBody, read_body
from lakestream.protocol.rest.registry.calls import Call
from lakestream.protocol.rest.registry.errors import Unprocessable

SENT_LEVEL: Final = "compatibility"
"""As requests call it, and the answers to them."""
SERVED: Final[dict[str, type]] = {"normalize": bool, "alias": str, "compatibilityGroup": str}
NOT_SERVED: Final = frozenset(
    {
        *("aliasForDeks", "validateFields", "validateNewSchemas", "validateRules", "compatibilityPolicy"),
        *("defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet"),
    }
)


class SettingCalls:
    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry

    async def config(self, call: Call) -> Response:
        """GET config[/{subject}]?defaultToGlobal=…"""
        where = config_in_scope if call.flag("defaultToGlobal") else own_config
        return json_answer(call.request, await self._registry.look(lambda state: where(state, call.subject)))

    async def configure(self, call: Call) -> Response:
        """PUT config[/{subject}]"""
        check_text(call.subject)
        sent = _checked(await read_body(call.request, dict[str, Any]))

        def decide(state: State) -> Configured | None:
            _permit(state, call.subject)
            before = state.configs.get(str(call.subject))
            after = {name: value for name, value in {**(before or {}), **sent}.items() if value is not None}
            return None if after == before else Configured(str(call.subject), after)

        await self._registry.change(decide)
        shown = await self._registry.look(lambda state: own_config(state, call.subject))
        return json_answer(
            call.request, {SENT_LEVEL if name == LEVEL else name: value for name, value in shown.items()}
        )

    async def forget_config(self, call: Call) -> Response:
        """DELETE config[/{subject}]: answers with what was."""
        was: dict[str, Any] = {}

        def decide(state: State) -> Configured | None:
            nonlocal was
            try:
                was = own_config(state, call.subject)
            except NotConfigured as error:
                raise NoSuchSubject(f"Subject '{call.subject}' not found: it has no settings") from error
            _permit(state, call.subject)
            return Configured(str(call.subject), None) if str(call.subject) in state.configs else None

        await self._registry.change(decide)
        return json_answer(call.request, was)

    async def mode(self, call: Call) -> Response:
        """GET mode[/{subject}]?defaultToGlobal=…"""
        where = mode_in_scope if call.flag("defaultToGlobal") else own_mode
        found = await self._registry.look(lambda state: where(state, call.subject))
        return json_answer(call.request, {"mode": found.value})

    async def set_mode(self, call: Call) -> Response:
        """PUT mode[/{subject}]?force=…"""
        check_text(call.subject)
        body = await read_body(call.request, ModeBody)
        wanted = None if body.mode is None else mode(body.mode)

        def decide(state: State) -> ModeSet | None:
            change = set_mode(state, call.subject, wanted, force=call.flag("force"))
            same = state.modes.get(str(call.subject)) == change.mode and not change.removed
            return None if same else change

        await self._registry.change(decide)
        return json_answer(call.request, {"mode": None if wanted is None else wanted.value})

    async def forget_mode(self, call: Call) -> Response:
        """DELETE mode[/{subject}]?recursive=…: answers with what was. Recursive: also those of a context's subjects."""
        was: str | None = None
        recursive = call.flag("recursive") and call.subject.is_context

        def decide(state: State) -> ModeSet | None:
            nonlocal was
            names = [
                name for name in state.modes if name == str(call.subject) or (recursive and _is_in(name, call.subject))
            ]
            try:
                was = own_mode(state, call.subject).value
            except NoMode as error:
                if not recursive:
                    raise NoSuchSubject(f"Subject '{call.subject}' not found: it has no mode") from error
            return ModeSet(tuple(names), None) if names else None

        await self._registry.change(decide)
        return json_answer(call.request, {"mode": was})

    async def contexts(self, call: Call) -> Response:
        """GET contexts?contextPrefix=…&offset=…&limit=…"""
        prefix = call.query("contextPrefix")
        found = await self._registry.look(
            lambda state: sorted(name for name, one in state.contexts.items() if one.shown and name.startswith(prefix))
        )
        return json_answer(call.request, call.page(found))

    async def remove_context(self, call: Call) -> Response:
        """DELETE contexts/{context}"""
        context = parse_context(call.args[0])
        if context == EVERYTHING.context:
            raise NotPermitted("the default context cannot be removed")
        await self._registry.change(lambda state: remove_context(state, context))
        return Response(status_code=204)


def _checked(sent: dict[str, Any]) -> dict[str, Any]:
    """Null: that setting is to be as if it had never been given."""
    found: dict[str, Any] = {}
    for name, value in sent.items():
        if name in (SENT_LEVEL, LEVEL):
            found[LEVEL] = None if value is None else level(value).value
        elif name in SERVED:
            if value is not None and not isinstance(value, SERVED[name]):
                raise Unprocessable(f"{name} is {value!r}: give a {SERVED[name].__name__}")
            found[name] = value
        elif name not in NOT_SERVED:
            raise Unprocessable(f"there is no setting {name[:60]!r}")
        elif value:
            raise Unprocessable(f"the setting {name} is not served: docs/coverage.md says what is")
    return found


def _permit(state: State, subject: Subject) -> None:
    if mode_in_scope(state, subject).is_read_only:
        raise NotPermitted(f"Subject {subject} in context {subject.context} is in read-only mode")


def _is_in(name: str, context: Subject) -> bool:
    return name.startswith(str(context)) if str(context) else not name.startswith(":")
