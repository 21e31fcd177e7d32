"""What a mutant is, and what many of them are made of."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Mutant(NamedTuple):
    name: str
    broken: str
    """What the code does instead."""
    patches: Sequence[tuple[Any, str, Any]]
    moods: tuple[str, ...] = ()


def only_in(functions: tuple[str, ...], mutated: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
    """A rule that is used in several places, switched off in some."""

    def rule(*args: Any, **options: Any) -> Any:
        caller = sys._getframe(1).f_code.co_name
        return (mutated if caller in functions else real)(*args, **options)

    return rule


def always(*_: Any, **__: Any) -> bool:
    return True


def never(*_: Any, **__: Any) -> bool:
    return False
