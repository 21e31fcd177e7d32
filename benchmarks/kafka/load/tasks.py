"""Tasks of load generators, and their results."""

import msgspec


class Values(msgspec.Struct, frozen=True):
    """Number of different values, which are sent in a cycle, and of random bytes in each.

    By default they are larger than the window of lz4 (64 KiB), so that no value matches an earlier one. A codec with a
    larger window needs more values."""

    count: int = 4096
    random_bytes: int = 96


class Produce(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Produces records as fast as the server accepts them, over all partitions in turn."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    codec: str = "none"
    values: Values = Values()
    values_from: str = ""
    """A file with the values, written by `payload.write_values`; they are sent in a cycle."""


class Consume(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Consumes records from the start as fast as possible, with one consumer after the other."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    consumers: int = 1


class Stamp(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Produces records at a rate, each with its send time; returns the latencies of acks."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    per_s: int
    skip: int
    """Records at the start that are not measured, because the broker opens the logs then."""
    linger_ms: int = 5
    producers: int = 1
    """Number of producers, which send in turns."""
    values: Values = Values()
    acks_to: str = ""
    """A file for acknowledged records: partition, offset and time (ns since 1970) of each, as 64 bits each."""


class Watch(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Consumes the records of Stamp; returns their end-to-end latencies."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    skip: int


class Single(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Runs several producers, each with requests of one record and one request in flight."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    producers: int


class Touch(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Produces one record to each of the topics `{prefix}0`, `{prefix}1` …"""

    bootstrap: str
    prefix: str
    topics: int


class Connect(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Opens connections, each of which sends one ApiVersions request and is idle afterwards."""

    port: int
    connections: int


class Commit(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Commits offsets of all partitions of a topic, for several groups with one request in flight each."""

    bootstrap: str
    topic: str
    partitions: int
    prefix: str
    groups: int
    commits: int


class Rebalance(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Rebalances a group whose members all rejoin, a number of times; returns the durations."""

    bootstrap: str
    topic: str
    group: str
    members: int
    rounds: int


class Transact(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Commits transactions of one record to each partition, by several producers; returns the durations."""

    bootstrap: str
    topic: str
    partitions: int
    prefix: str
    producers: int
    transactions: int


Task = Produce | Consume | Stamp | Watch | Single | Touch | Connect | Commit | Rebalance | Transact


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a load generator."""

    size: int = 0
    """Bytes of record values."""
    batch_bytes: float = 0.0
    """Average size of a batch before compression."""
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    worst_ms: float = 0.0
