"""What a load generator is told to do, and what it tells afterwards."""

import msgspec


class Values(msgspec.Struct, frozen=True):
    """So many different ones, which come again and again, and so many bytes of chance in each.

    By default many more than lz4 can look back over (64 KiB), so that none is found whole in another. Whoever looks
    back further needs more of them."""

    count: int = 4096
    chance: int = 96


class Produce(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """So many records as fast as they are taken, over all partitions in turn."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    codec: str = "none"
    values: Values = Values()
    values_from: str = ""
    """A file with the values instead, as `payload.keep` writes it; they come again and again."""


class Consume(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """So many records from the start on, as fast as they come: by one consumer after the other."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    consumers: int = 1


class Stamp(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """So many records a second, each with the time at which it was sent; tells how long acks took."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    per_s: int
    skip: int
    """Records at the start that do not count: logs are being opened."""
    linger_ms: int = 5
    producers: int = 1
    """Which take turns."""
    values: Values = Values()
    acks_to: str = ""
    """A file for what was acknowledged: partition, offset and time (ns since 1970) of each, as 64 bits each."""


class Watch(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Receives what Stamp sends; tells how long records took from end to end."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    skip: int


class Single(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Several producers, each with requests of one record and one request in flight."""

    bootstrap: str
    topic: str
    partitions: int
    records: int
    producers: int


class Touch(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """One record to each of the topics `{prefix}0`, `{prefix}1` …"""

    bootstrap: str
    prefix: str
    topics: int


class Connect(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """So many connections that have said hello and then say nothing."""

    port: int
    connections: int


class Commit(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """So many requests that commit offsets of all partitions of a topic, over groups that have one in flight each."""

    bootstrap: str
    topic: str
    partitions: int
    prefix: str
    groups: int
    commits: int


class Rebalance(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """A group whose members all join again, so many times; tells how long it took from the first to the last."""

    bootstrap: str
    topic: str
    group: str
    members: int
    rounds: int


class Transact(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """So many transactions of one record to each partition, by producers that have one open each; tells how long they
    took."""

    bootstrap: str
    topic: str
    partitions: int
    prefix: str
    producers: int
    transactions: int


Task = Produce | Consume | Stamp | Watch | Single | Touch | Connect | Commit | Rebalance | Transact


class Told(msgspec.Struct, frozen=True, kw_only=True):
    size: int = 0
    """Bytes of record values."""
    batch_bytes: float = 0.0
    """Of a batch on its way to the server, on average and before it is compressed."""
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    worst_ms: float = 0.0
