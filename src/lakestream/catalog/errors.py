"""Errors of the catalog. Callers handle them by kind; the REST API by class, because Iceberg names each of them."""

from lakestream.errors import Conflict, Corrupt, Missing, Rejected, Uncertain


class NoSuchNamespace(Missing): ...


class NoSuchTable(Missing): ...


class NamespaceExists(Conflict): ...


class NamespaceNotEmpty(Conflict): ...


class TableExists(Conflict): ...


class CommitFailed(Conflict):
    """The table has changed since it was loaded. Nothing of the commit was kept: load the table again."""


class CommitStateUnknown(Uncertain):
    """The commit may have taken effect. Its files must stay until the table's metadata decides."""


class Unsupported(Rejected):
    """A part of the Iceberg specification that this catalog does not support."""


class IncompatibleTable(Corrupt):
    """A topic's table was changed so that the pipeline cannot continue.

    The message lists what an operator can do. Until then no records of the topic are moved, trimmed or deleted.
    """
