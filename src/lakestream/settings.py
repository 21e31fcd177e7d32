"""Numbers and names, by layer. Components are objects, made of these in `node.py`."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from lakestream.model import MiB


class Profile(Enum):
    """What a topic's records are written for; may change at any time, since each claim names its own location."""

    COST = "cost"  # objects in the bucket, few large puts
    LATENCY = "latency"  # an append-only segment on a disk that every broker mounts


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSettings:
    flush_interval_ms: int = 250  # cost profile: the produce latency is about half of this plus one put
    flush_bytes_max: int = 8 * MiB  # one put per 8 MiB: 128 puts per GiB
    uploads_max: int = 4  # cost profile: puts in flight
    buffer_bytes_max: int = 64 * MiB  # placed but not answered; beyond it `append` waits
    segment_bytes_max: int = 256 * MiB
    segment_age_ms_max: int = 15 * 60 * 1000
    disk_timeout_ms: int = 30_000  # for one append to a segment, or one read of it
    sweep_interval_ms: int = 10 * 60 * 1000  # between looks for bytes that nobody needs
    read_grace_ms: int = 60 * 1000  # between the last claim on an object and its removal, for readers under way


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    append_timeout_ms: int = 30_000  # from stored bytes to an answer; then the outcome is Uncertain
    retry_interval_ms: int = 50
    fold_every_claims: int = 1_000
    tail_claims_max: int = 32  # newest claims of a log kept in memory; older ones are scanned again when read
    tails_claims_max: int = 40_000  # of all logs together, some 650 bytes each: with very many logs each keeps fewer
    cache_bytes_max: int = 128 * MiB
    history_bytes_max: int = 192 * MiB  # of batches out of the table, kept while consumers replay them
    wal: WalSettings = field(default_factory=WalSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a user chooses. `docs/operating.md` lists the flags, environment variables and file keys behind it."""

    data_dir: Path = Path("lakestream-data")
    metadata: str = "sqlite"  # or oxia://host:port[,host:port]/namespace
    storage: str = ""  # file:///path, s3://bucket/prefix, gs://…, az://…; empty: a folder in data_dir
    wal_dir: Path | None = None  # on a disk that every broker mounts; on one machine: a folder in data_dir
    profile: Profile | None = None  # of topics that choose none; empty: latency on a local disk, cost on a bucket
    kafka: str = "127.0.0.1:9092"  # where Kafka clients connect; port 0: any free one
    http: str = "127.0.0.1:8080"  # Iceberg catalog, health, metrics; empty: nowhere
    advertise: str = ""  # host[:port] that clients are told; empty: where it listens
    workers: int = 1  # broker processes; each listens on the port after the last one's
    zone: str = ""
    default_partitions: int = 4
    auto_create_topics: bool = True  # when a client names one that is not there, as Kafka does
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000  # of committed offsets, after the last member left
    rebalance_delay_ms: int = 200  # how long an empty group waits for more members; Kafka's brokers wait 3 s
    session_timeout_min_ms: int = 6_000  # that members may ask for
    session_timeout_max_ms: int = 30 * 60 * 1000
    transaction_timeout_max_ms: int = 15 * 60 * 1000  # that producers may ask for
    pipeline: bool = True  # `serve` has one beside it, which moves the logs into tables
    interval_ms: int = 5_000  # between rounds of the pipeline
    master: str = "local[*]"  # the Spark that it runs on: this machine, or spark://host:7077, yarn, k8s://…
    log: LogSettings = field(default_factory=LogSettings)

    @property
    def on_one_machine(self) -> bool:
        return self.metadata == "sqlite"

    @property
    def storage_url(self) -> str:
        return self.storage or (self.data_dir.absolute() / "storage").as_uri()

    @property
    def segments_dir(self) -> Path | None:
        """Where segments lie. Without a disk that all brokers share, only one machine can have them."""
        if self.wal_dir is not None:
            return self.wal_dir
        return self.data_dir / "wal" if self.on_one_machine else None

    @property
    def default_profile(self) -> Profile:
        if self.profile is not None:
            return self.profile
        on_disk = self.storage_url.startswith("file:") and self.segments_dir is not None
        return Profile.LATENCY if on_disk else Profile.COST
