"""Settings of each layer. `server/node.py` creates the components from them."""

from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from lakestream.model import MiB


class Profile(Enum):
    """Goal of a topic's writes. It may change at any time, because each claim names the location of its records."""

    COST = "cost"  # objects in the bucket, few large puts
    LATENCY = "latency"  # append-only segments on a disk that every broker mounts


@dataclass(frozen=True, slots=True, kw_only=True)
class WalSettings:
    flush_interval_ms: int = 250  # cost profile: the produce latency is about half of this, plus one put
    flush_bytes_max: int = 8 * MiB  # one put per 8 MiB: 128 puts per GiB
    uploads_max: int = 4  # cost profile: puts in flight
    buffer_bytes_max: int = 64 * MiB  # of appends without a response; beyond it `append` waits
    segment_bytes_max: int = 256 * MiB
    segment_age_ms_max: int = 15 * 60 * 1000
    disk_timeout_ms: int = 30_000  # for one append to a segment, or one read from it
    sweep_interval_ms: int = 10 * 60 * 1000  # between runs of the garbage collector
    read_grace_ms: int = 60 * 1000  # from the last claim on an object to its deletion, for reads in progress


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    append_timeout_ms: int = 30_000  # from stored bytes to the response; then the outcome is Uncertain
    retry_interval_ms: int = 50
    fold_every_claims: int = 1_000
    tail_claims_max: int = 32  # newest claims of a log, cached; older ones are scanned again for each read
    tails_claims_max: int = 40_000  # cached claims of all logs, about 650 bytes each: many logs cache fewer each
    cache_bytes_max: int = 128 * MiB
    history_bytes_max: int = 192 * MiB  # cached batches that were read from tables, while consumers replay them
    wal: WalSettings = field(default_factory=WalSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of users. `docs/operating.md` lists the flags, environment variables and file keys."""

    data_dir: Path = Path("lakestream-data")
    metadata: str = "sqlite"  # or oxia://host:port[,host:port]/namespace
    storage: str = ""  # file:///path, s3://bucket/prefix, gs://…, az://…; empty: a folder in data_dir
    wal_dir: Path | None = None  # on a disk that every broker mounts; on one machine: a folder in data_dir
    profile: Profile | None = None  # default for topics; empty: latency on a local disk, cost on a bucket
    kafka: str = "127.0.0.1:9092"  # address for Kafka clients; port 0: any free port
    http: str = "127.0.0.1:8080"  # Iceberg catalog, schema registry, health, metrics; empty: none
    probe: str = ""  # health and metrics of each broker, in its own process; empty: none
    http_hosts: tuple[str, ...] = ()  # host names that HTTP clients use, in addition to those of its own addresses
    advertise: str = ""  # host[:port] in metadata responses; empty: the address that it listens on
    workers: int = 1  # broker processes; each listens on the next port
    zone: str = ""
    default_partitions: int = 4
    auto_create_topics: bool = True  # if a client names a topic that does not exist, as in Kafka
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000  # of committed offsets, after the last member has left
    rebalance_delay_ms: int = 200  # how long an empty group waits for more members; Kafka's default is 3 s
    session_timeout_min_ms: int = 6_000  # in requests of members
    session_timeout_max_ms: int = 30 * 60 * 1000
    transaction_timeout_max_ms: int = 15 * 60 * 1000  # in requests of producers
    schema_versions_max: int = 50_000  # in the schema registry; about 1.5 KB of memory each in every broker
    schema_bytes_max: int = 128 * MiB  # of the texts of all schemas, in the metadata store
    pipeline: bool = True  # `serve` also runs a pipeline, which moves the logs into tables
    interval_ms: int = 5_000  # between micro-batches of the pipeline
    master: str = "local[*]"  # Spark master: this machine, or spark://host:7077, yarn, k8s://…
    log: LogSettings = field(default_factory=LogSettings)

    @property
    def is_single_machine(self) -> bool:
        return self.metadata == "sqlite"

    @property
    def storage_url(self) -> str:
        return self.storage or (self.data_dir.absolute() / "storage").as_uri()

    @property
    def store_flags(self) -> list[str]:
        """Returns the options of commands that name the same stores."""
        flags = {
            "--data-dir": str(self.data_dir),
            "--metadata": self.metadata,
            "--storage": self.storage,
            "--wal-dir": str(self.wal_dir or ""),
            "--profile": self.profile.value if self.profile is not None else "",
        }
        return [word for flag, value in flags.items() if value for word in (flag, value)]

    @property
    def segments_dir(self) -> Path | None:
        """Folder of the segments, or None. Without a shared disk, segments need all brokers on one machine."""
        if self.wal_dir is not None:
            return self.wal_dir
        return self.data_dir / "wal" if self.is_single_machine else None

    @property
    def default_profile(self) -> Profile:
        if self.profile is not None:
            return self.profile
        on_disk = self.storage_url.startswith("file:") and self.segments_dir is not None
        return Profile.LATENCY if on_disk else Profile.COST
