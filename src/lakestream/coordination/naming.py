"""Log lines for people: where a line names a topic's id, it says the topic's name.

Below, a log is known by its topic's id alone, as it should be: a name may be given to another topic tomorrow. Whoever
reads the line knows only the name.
"""

import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_ID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])")


class TopicNames(logging.Filter):
    def __init__(self, name_of: Callable[[str], str | None]) -> None:
        super().__init__()
        self._name_of = name_of

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        named = _ID.sub(lambda found: self._name_of(found[0]) or found[0], said)
        if named != said:
            record.msg, record.args = named, None
        return True


@contextmanager
def topics_named_in_logs(name_of: Callable[[str], str | None]) -> Iterator[None]:
    """In all lines of this process, whoever writes them."""
    names = TopicNames(name_of)
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(names)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(names)
