"""What the registry says no to. `protocol/rest/registry/errors.py` gives each its number.

A refusal is a claim about the newest state: it is made only after a look at the store (registry.py).
"""

from lakestream.errors import Missing, Rejected


class NoSuchSubject(Missing): ...


class NoSuchVersion(Missing): ...


class NoSuchSchema(Missing): ...


class SubjectDeleted(Missing):
    """It was deleted already: only `permanent=true` does more."""


class SubjectNotDeleted(Missing):
    """It must be deleted before it can be removed for good."""


class VersionDeleted(Missing): ...


class VersionNotDeleted(Missing): ...


class NotConfigured(Missing):
    """The subject has no settings of its own."""


class NoMode(Missing): ...


class Incompatible(Rejected):
    def __init__(self, said: str, troubles: list[str]) -> None:
        super().__init__(said)
        self.troubles = troubles


class InvalidSchema(Rejected): ...


class InvalidVersion(Rejected): ...


class InvalidLevel(Rejected): ...


class InvalidMode(Rejected): ...


class NotPermitted(Rejected):
    """Not in this mode."""


class Referenced(Rejected):
    """Another schema needs it."""


class InvalidSubject(Rejected): ...


class TooLarge(Rejected): ...


class ContextNotEmpty(Rejected): ...
