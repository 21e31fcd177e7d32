"""What can go wrong in the catalog, as kinds of our own errors: callers above treat them by kind, the REST protocol by
class, since Iceberg has a name for each.
"""

from lakestream.errors import Conflict, Corrupt, Missing, Rejected, Uncertain


class NoSuchNamespace(Missing): ...


class NoSuchTable(Missing): ...


class NamespaceExists(Conflict): ...


class NamespaceNotEmpty(Conflict): ...


class TableExists(Conflict): ...


class CommitRefused(Conflict):
    """The table is not what the commit was made for: load it again. Nothing of the commit was kept."""


class CommitUnknown(Uncertain):
    """It may have taken effect: its files must stay until somebody has looked."""


class Unsupported(Rejected):
    """A part of the specification that is not served here."""


class TableAltered(Corrupt):
    """Somebody changed a topic's table in a way that the stream cannot follow. Its text says what a person can choose;
    until then nothing of the topic is moved, trimmed or swept."""
