"""One run: programs during a scenario of faults, then a time without faults, and a read of all logs."""

import asyncio
import faulthandler
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.integration.jepsen_style import aiokafka_client as aio
from tests.integration.jepsen_style import confluent_client as confluent
from tests.integration.jepsen_style import kafka_python_client as kafka_python
from tests.integration.jepsen_style.client_api import (
    CALL_S_MAX,
    METADATA_MS,
    PARTITIONS,
    TRANSACTION_MS,
    Library,
    hung_call_listeners,
)
from tests.integration.jepsen_style.cluster import Cluster
from tests.integration.jepsen_style.faults import inject_faults
from tests.integration.jepsen_style.history import (
    History,
    Log,
    Place,
    Poll,
    Record,
    Send,
    Transaction,
    count_done,
    save,
)
from tests.integration.jepsen_style.known_client_bugs import HungCall
from tests.integration.jepsen_style.pauses import clients_since
from tests.integration.jepsen_style.programs import (
    RETRY_S,
    CopyProgram,
    OffsetReader,
    Program,
    ReadProgram,
    SendProgram,
    TransactionProgram,
)
from tests.integration.jepsen_style.svg_report import draw

CALM_S: Final = 6.0
"""Time without faults, before and after the faults."""
END_S_MAX: Final = 45.0
SETTLE_S: Final = 1.5 * METADATA_MS / 1000
"""Clients have refreshed their metadata after it, and so use all brokers."""
PROGRESS_S_MAX: Final = 90.0
T = TypeVar("T")
LIBRARIES: Final = {
    "confluent": cast(Library, confluent),
    "kafka-python": cast(Library, kafka_python),
    "aiokafka": cast(Library, aio),
}
PLAIN, LEDGERS, COPIES, AIOKAFKA_COPIES = "plain", ("debits", "credits"), "copies", "aiokafka-copies"
NEW_READERS: Final = 2


class Run:
    def __init__(self, cluster: Cluster, seed: str, libraries: Mapping[str, Library] = LIBRARIES) -> None:
        """`libraries`: those of the clients, by the name of the clients."""
        self.history = History()
        self.cluster = cluster
        self.rng = random.Random(seed)
        self.crashes = threading.Event()
        """Set while transactional producers may crash."""
        self.crashes.set()
        self.hung_calls: Counter[str] = Counter()
        """Number of hung calls of clients by cause."""
        self._writers, self._readers = self._programs(libraries)
        self._groups = sorted({(reader.group, reader.topics[0]) for reader in self._readers})
        copies = {reader.target for reader in self._readers if isinstance(reader, CopyProgram)}
        self.topics = [PLAIN, *LEDGERS, *sorted(copies)]
        self._offset_reader = OffsetReader(
            "offset-reader", LIBRARIES["confluent"], cluster.bootstrap, self.history, self._groups
        )

    def _programs(self, libraries: Mapping[str, Library]) -> tuple[list[Program], list[ReadProgram]]:
        bootstrap, history = self.cluster.bootstrap, self.history
        writers: list[Program] = []
        readers: list[ReadProgram] = []
        for name, library in libraries.items():
            writers += [
                SendProgram(f"{name}-sends", library, bootstrap, history, PLAIN),
                TransactionProgram(f"{name}-pays", library, bootstrap, history, LEDGERS, self.crashes),
            ]
            target, group = (AIOKAFKA_COPIES, "aiokafka-copier") if name == "aiokafka" else (COPIES, "copiers")
            readers += [
                ReadProgram(f"{name}-reads", library, bootstrap, history, [PLAIN], "readers", committed=False),
                ReadProgram(f"{name}-audits", library, bootstrap, history, LEDGERS[:1], "auditors", committed=True),
                CopyProgram(f"{name}-copies", library, bootstrap, history, PLAIN, target, group),
            ]
        consumer_protocol = cast(Library, confluent.ConsumerProtocol)
        readers += [
            ReadProgram(
                f"confluent-consumer-protocol-reads-{number}",
                consumer_protocol,
                bootstrap,
                history,
                [PLAIN],
                "new-readers",
                committed=False,
            )
            for number in range(NEW_READERS)
        ]
        return writers, readers

    def dump_hung_calls(self, folder: Path) -> None:
        """For each hung call, writes the state of the client and the stacks of all threads to a file in the folder.

        Each broker writes its tasks to its log."""

        def dump(hung_call: HungCall) -> None:
            self.hung_calls[hung_call.cause] += 1
            with (folder / f"no-return-{self.hung_calls.total()}.log").open("w") as out:
                out.write(f"at {self.history.now_s():.1f} s: {hung_call.cause}\n{hung_call.details}\n")
                out.flush()
                faulthandler.dump_traceback(out)
            for node in self.cluster.nodes:
                node.broker.process.signal(signal.SIGUSR1)

        hung_call_listeners[:] = [dump]

    async def inject_faults(self, seconds: float) -> int:
        """Injects faults for a time; returns their number. Before and after it is a time without faults."""
        await asyncio.sleep(CALM_S)
        count = await inject_faults(self.cluster, self.history, self.rng, seconds - CALM_S)
        await asyncio.sleep(CALM_S)
        return count

    async def run(self, scenario: Callable[[], Awaitable[T]]) -> T:
        """Runs the programs during a scenario, and until the readers have read everything; returns its result."""
        await asyncio.to_thread(self._create_topics)
        programs = [*self._writers, *self._readers, self._offset_reader]
        for program in programs:
            program.start()
        try:
            result = await scenario()
            await self._end(self._writers)
            logs = await asyncio.to_thread(self._read_logs, "end reader")
            await asyncio.to_thread(self._wait_for_groups, logs)
            await self._end([*self._readers, self._offset_reader])
            await asyncio.to_thread(self.add_logs, "final reader")
        finally:
            await asyncio.shield(self._stop(programs))
            hung_call_listeners.clear()
        return result

    async def wait_for_clients(self) -> None:
        """Waits until each client has begun and completed a call with the metadata of the current brokers."""
        start_s = self.history.now_s()
        since_s = start_s + SETTLE_S
        programs = [*self._writers, *self._readers]
        while missing := {program.name for program in programs} - clients_since(self.history.events, since_s):
            for program in programs:
                program.check()
            assert self.history.now_s() < start_s + PROGRESS_S_MAX, (
                f"without success since {start_s:.1f} s: {sorted(missing)}"
            )
            await asyncio.sleep(RETRY_S)

    async def _stop(self, programs: Sequence[Program]) -> None:
        """Stops programs also after a failure: the process must not end while threads of the clients run."""
        for program in programs:
            program.ended.set()
        for program in programs:
            await asyncio.to_thread(program.wait, END_S_MAX)

    async def _end(self, programs: Sequence[Program]) -> None:
        for program in programs:
            program.ended.set()
        for program in programs:
            await asyncio.to_thread(program.join, END_S_MAX)

    def _create_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.cluster.bootstrap})
        futures = admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS) for topic in self.topics])
        for future in futures.values():
            future.result(CALL_S_MAX)

    def _wait_for_groups(self, logs: Sequence[Log]) -> None:
        """Waits until all groups have committed the end of their topics: without writes and faults they must reach
        it."""
        ends = {log.place: log.records[-1].offset + 1 for log in logs if log.committed and log.records}
        deadline_s = time.monotonic() + END_S_MAX
        for group, topic in self._groups:
            expected = {place: end for place, end in ends.items() if place.topic == topic}
            while behind := _behind(dict(self._offset_reader.read_offsets(group, topic)), expected):
                assert time.monotonic() < deadline_s, f"group {group} stalled at {behind} of {expected}"
                time.sleep(RETRY_S)

    def add_logs(self, name: str) -> None:
        """Adds the logs to the history, when no program runs that writes to them."""
        self.history.events += self._read_logs(name)

    def _read_logs(self, name: str) -> list[Log]:
        """Reads all records, and all committed records, of every log."""
        with self._consumer(name, committed=False) as uncommitted, self._consumer(name, committed=True) as committed:
            ends = self._ends(uncommitted)  # the end for committed records is smaller while a transaction is open
            return [*self._read(uncommitted, ends, name), *self._read(committed, ends, name, committed=True)]

    def _ends(self, consumer: confluent_kafka.Consumer) -> dict[Place, int]:
        places = [Place(topic, number) for topic in self.topics for number in range(PARTITIONS)]
        return {
            place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=CALL_S_MAX)[1] for place in places
        }

    @contextmanager
    def _consumer(self, name: str, *, committed: bool) -> Iterator[confluent_kafka.Consumer]:
        settings: dict[str, Any] = {
            "bootstrap.servers": self.cluster.bootstrap,
            "client.id": name,
            "group.id": "none",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": "read_committed" if committed else "read_uncommitted",
        }
        consumer = confluent_kafka.Consumer(settings)
        try:
            yield consumer
        finally:
            consumer.close()

    def _read(
        self, consumer: confluent_kafka.Consumer, ends: dict[Place, int], name: str, *, committed: bool = False
    ) -> list[Log]:
        start_s = self.history.now_s()
        records_by_place = _read_all(consumer, ends)
        end_s = self.history.now_s()
        return [
            Log(
                client=name,
                start_s=start_s,
                end_s=end_s,
                place=place,
                committed=committed,
                records=tuple(records),
            )
            for place, records in records_by_place.items()
        ]


def summary(run: Run) -> str:
    events = run.history.events
    polled = sum(len(event.records) for event in events if isinstance(event, Poll))
    causes = "; ".join(f"{count} times {cause}" for cause, count in run.hung_calls.most_common())
    hung = f"{run.hung_calls.total()} hung calls of clients ({causes or 'none'})"
    sends, transactions = count_done(events, Send), count_done(events, Transaction)
    return f"{sends} sends, {transactions} transactions, {polled} records polled, {hung}"


def save_artifacts(run: Run, folder: Path, seed: str) -> None:
    """Saves the history, the diagram and the logs of a failed run to a folder that is not deleted."""
    kept = Path(tempfile.mkdtemp(prefix="lakestream-turmoil-"))
    save(run.history.events, kept / "history.jsonl")
    (kept / "faults.svg").write_text(draw(run.history.events))
    for log in folder.rglob("*.log"):
        shutil.copy(log, kept / "-".join(log.relative_to(folder).parts))
    print(f"\n{seed}; {summary(run)}; history, diagram and logs: {kept}")
    print(f"check it again with: python -m tests.integration.jepsen_style.checker {kept / 'history.jsonl'}")


def _behind(positions: dict[Place, int], ends: dict[Place, int]) -> dict[Place, int]:
    return {place: positions.get(place, 0) for place, end in ends.items() if positions.get(place, 0) < end}


def _read_all(consumer: confluent_kafka.Consumer, ends: dict[Place, int]) -> dict[Place, list[Record]]:
    """Reads the logs to their ends. For committed records, open transactions are first aborted by their timeout."""
    records: dict[Place, list[Record]] = {place: [] for place in ends}
    positions = dict.fromkeys(ends, 0)
    consumer.assign([TopicPartition(*place, 0) for place in ends])
    progress_s = time.monotonic()
    while behind := _behind(positions, ends):
        messages = consumer.consume(500, 0.1)
        if messages:
            progress_s = time.monotonic()
        hangs = time.monotonic() - progress_s > TRANSACTION_MS / 1000 + CALL_S_MAX
        assert not hangs, f"an open transaction was not aborted: committed records end at {behind} of {ends}"
        for message in messages:
            place, offset, error = (
                Place(message.topic() or "", message.partition() or 0),
                message.offset(),
                message.error(),
            )
            if error is None:
                records[place].append(confluent.record_of(message))
            elif error.code() == KafkaError._PARTITION_EOF:
                positions[place] = offset or 0
    return records
