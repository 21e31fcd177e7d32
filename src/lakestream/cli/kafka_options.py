"""Names of options of Apache Kafka's programs and settings, and what to write instead of them."""

from collections.abc import Collection, Mapping
from typing import Final

_NO_REPLICAS: Final = "leave it out: the storage keeps the copies of each record"

KAFKA_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "--add-config": ("--set NAME=VALUE",),
    "--advertised-listeners": ("--advertise",),
    "--bootstrap-server": ("--bootstrap",),
    "--bootstrap-servers": ("--bootstrap",),
    "--broker-list": ("--bootstrap",),
    "--brokers": ("--bootstrap",),
    "--by-duration": ("--to TIME",),
    "--compression-codec": ("--compression",),
    "--compression-type": ("--compression",),
    "--config": ("--set NAME=VALUE",),
    "--consumer-group": ("write the group without a flag",),
    "--delete-config": ("--unset NAME",),
    "--from-beginning": ("--from start",),
    "--group": ("write the group without a flag; lakestream consume joins none",),
    "--host": ("--kafka", "--bootstrap"),
    "--listener": ("--kafka",),
    "--listeners": ("--kafka",),
    "--log-dir": ("--data-dir",),
    "--log-dirs": ("--data-dir",),
    "--max-messages": ("--count",),
    "--num-partitions": ("--default-partitions", "--partitions"),
    "--offset": ("--from",),
    "--parse-key": ("--key-separator",),
    "--port": ("--kafka HOST:PORT", "--bootstrap HOST:PORT", "--http HOST:PORT"),
    "--print-key": ("--key-separator",),
    "--property": ("--key-separator",),
    "--rack": ("--zone",),
    "--replica-assignment": (_NO_REPLICAS,),
    "--replication-factor": (_NO_REPLICAS,),
    "--reset-offsets": ("write lakestream group reset-offsets",),
    "--schema-registry": ("--http",),
    "--shift-by": ("--to",),
    "--timeout-ms": ("--no-follow", "leave it out: each request has a timeout"),
    "--to-current": ("--to",),
    "--to-datetime": ("--to TIME",),
    "--to-earliest": ("--to start",),
    "--to-latest": ("--to end",),
    "--to-offset": ("--to OFFSET",),
    "--topic": ("write the topic without a flag",),
    "--zookeeper": ("leave it out: there is no ZooKeeper",),
}
"""For each option what fits, the first one that the command has. Words that are no option fit every command."""


def instead_of(option: str, flags: Collection[str]) -> str | None:
    """Returns what to write instead of an option of Kafka; None if it is none, or the command has nothing like it.

    Kafka's settings have dots where its options have dashes."""
    for text in KAFKA_OPTIONS.get(option.replace(".", "-"), ()):
        if not text.startswith("--") or text.split()[0] in flags:
            return text
    return None
