"""Suggests names for a word that is unknown: first names that begin with it, then names with a small edit distance."""

from collections.abc import Collection
from typing import Final

PREFIX_MIN: Final = 3
SHOWN_MAX: Final = 3
LETTERS_PER_EDIT: Final = 4
"""A word may differ from a name by one edit, and by one more for each so many letters."""


def suggest(word: str, names: Collection[str]) -> list[str]:
    """Returns the names that the word may stand for, at most SHOWN_MAX; empty if none is near."""
    if len(word.strip("-")) >= PREFIX_MIN and (longer := [name for name in names if name.startswith(word)]):
        return longer[:SHOWN_MAX]
    distances = {name: edit_distance(word, name) for name in names}
    nearest = min(distances.values(), default=0)
    if nearest > len(word.strip("-")) // LETTERS_PER_EDIT + 1 or nearest >= len(word.strip("-")) - 1:
        return []
    return [name for name, distance in distances.items() if distance == nearest][:SHOWN_MAX]


def did_you_mean(word: str, names: Collection[str]) -> str:
    """Returns a question with the names that are near; if there are none, a list of all names."""
    near = suggest(word, names)
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"use one of {', '.join(names)}"


def edit_distance(one: str, other: str) -> int:
    """Returns how many letters must be inserted, removed, replaced or swapped with the next one."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        line = [row]
        for column, wanted in enumerate(other, 1):
            least = min(last[column] + 1, line[-1] + 1, last[column - 1] + (letter != wanted))
            if row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == wanted:
                least = min(least, before[column - 2] + 1)
            line.append(least)
        before, last = last, line
    return last[-1]
