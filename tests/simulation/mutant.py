"""`Mutant`, a rule switched off, and helpers that several mutants share."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    name: str
    broken: str
    """Behaviour of the code without the rule."""
    patches: Sequence[tuple[Any, str, Any]]
    scenarios: tuple[str, ...] = ()


def only_in(functions: tuple[str, ...], mutated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `real` with `mutated` in its place for callers of the given function names."""

    def rule(*args: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_code.co_name
        return (mutated if caller in functions else real)(*args, **options)

    return rule


def always(*_: Any, **__: Any) -> bool:
    return True


def never(*_: Any, **__: Any) -> bool:
    return False
