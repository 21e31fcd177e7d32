"""Errors of the schema registry. `protocol/rest/schema_registry/errors.py` maps them to Confluent's error codes.

An error is a statement about the newest state, so it is raised only after a confirmed read of the store (registry.py).
"""

from lakestream.errors import Missing, Rejected


class NoSuchSubject(Missing): ...


class NoSuchVersion(Missing): ...


class NoSuchSchema(Missing): ...


class SubjectDeleted(Missing):
    """The subject is already soft-deleted. `permanent=true` deletes it permanently."""


class SubjectNotDeleted(Missing):
    """The subject must be soft-deleted before it can be deleted permanently."""


class VersionDeleted(Missing): ...


class VersionNotDeleted(Missing): ...


class NotConfigured(Missing):
    """The subject has no config of its own."""


class NoMode(Missing): ...


class Incompatible(Rejected): ...


class InvalidSchema(Rejected): ...


class InvalidVersion(Rejected): ...


class InvalidLevel(Rejected): ...


class InvalidMode(Rejected): ...


class NotPermitted(Rejected):
    """The operation is not permitted in the mode of the subject, or exceeds a limit of the registry."""


class Referenced(Rejected):
    """Another schema refers to the version."""


class InvalidSubject(Rejected): ...


class TooLarge(Rejected): ...


class ContextNotEmpty(Rejected): ...
