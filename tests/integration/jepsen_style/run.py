"""One run: programs and faults at the same time, then a pause without faults, and a read of all logs."""

import asyncio
import faulthandler
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, cast

import confluent_kafka
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.integration.jepsen_style import aiokafka_client as aio
from tests.integration.jepsen_style import confluent_client as confluent
from tests.integration.jepsen_style import kafka_python_client as kafka_python
from tests.integration.jepsen_style.client_api import (
    CALL_S_MAX,
    PARTITIONS,
    TRANSACTION_MS,
    Library,
    hung_call_listeners,
)
from tests.integration.jepsen_style.cluster import Cluster
from tests.integration.jepsen_style.faults import inject_faults
from tests.integration.jepsen_style.history import History, Log, Place, Record
from tests.integration.jepsen_style.known_client_bugs import HungCall
from tests.integration.jepsen_style.programs import (
    RETRY_S,
    CopyProgram,
    OffsetReader,
    Program,
    ReadProgram,
    SendProgram,
    TransactionProgram,
)

CALM_S: Final = 6.0
"""Time without faults, before and after the faults."""
END_S_MAX: Final = 45.0
LIBRARIES: Final = {
    "confluent": cast(Library, confluent),
    "kafka-python": cast(Library, kafka_python),
    "aiokafka": cast(Library, aio),
}
PLAIN, LEDGERS, COPIES, AIOKAFKA_COPIES = "plain", ("debits", "credits"), "copies", "aiokafka-copies"
TOPICS: Final = (PLAIN, *LEDGERS, COPIES, AIOKAFKA_COPIES)
GROUPS: Final = (
    ("readers", PLAIN),
    ("new-readers", PLAIN),
    ("auditors", LEDGERS[0]),
    ("copiers", PLAIN),
    ("aiokafka-copier", PLAIN),
)
NEW_READERS: Final = 2


class Run:
    def __init__(self, cluster: Cluster, seed: str) -> None:
        self.history = History()
        self._cluster = cluster
        self._rng = random.Random(seed)
        self.hung_calls: Counter[str] = Counter()
        """Number of hung calls of clients by cause."""
        self._writers, self._readers = self._programs()
        self._offset_reader = OffsetReader(
            "offset-reader", LIBRARIES["confluent"], cluster.bootstrap, self.history, GROUPS
        )

    def _programs(self) -> tuple[list[Program], list[Program]]:
        bootstrap, history = self._cluster.bootstrap, self.history
        writers: list[Program] = []
        readers: list[Program] = []
        for name, library in LIBRARIES.items():
            writers += [
                SendProgram(f"{name}-sends", library, bootstrap, history, PLAIN),
                TransactionProgram(f"{name}-pays", library, bootstrap, history, LEDGERS),
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
            for node in self._cluster.nodes:
                node.process.signal(signal.SIGUSR1)

        hung_call_listeners[:] = [dump]

    async def run(self, seconds: float) -> int:
        """Runs the programs with faults for a time; returns the number of faults."""
        await asyncio.to_thread(self._create_topics)
        programs = [*self._writers, *self._readers, self._offset_reader]
        for program in programs:
            program.start()
        try:
            await asyncio.sleep(CALM_S)
            faults = await inject_faults(self._cluster, self.history, self._rng, seconds - CALM_S)
            await asyncio.sleep(CALM_S)
            await self._end(self._writers)
            logs = await asyncio.to_thread(self._read_logs)
            await asyncio.to_thread(self._wait_for_groups, logs)
            await self._end([*self._readers, self._offset_reader])
            for log in await asyncio.to_thread(self._read_logs):
                self.history.add(log)
        finally:
            await asyncio.shield(self._stop(programs))
            hung_call_listeners.clear()
        return faults

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
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap})
        futures = admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS) for topic in TOPICS])
        for future in futures.values():
            future.result(CALL_S_MAX)

    def _wait_for_groups(self, logs: Sequence[Log]) -> None:
        """Waits until all groups have committed the end of their topics: without writes and faults they must reach
        it."""
        ends = {log.place: log.records[-1].offset + 1 for log in logs if log.committed and log.records}
        deadline_s = time.monotonic() + END_S_MAX
        for group, topic in GROUPS:
            expected = {place: end for place, end in ends.items() if place.topic == topic}
            while behind := _behind(dict(self._offset_reader.read_offsets(group, topic)), expected):
                assert time.monotonic() < deadline_s, f"group {group} stalled at {behind} of {expected}"
                time.sleep(RETRY_S)

    def _read_logs(self) -> list[Log]:
        """Reads all records, and all committed records, of every log."""
        with self._consumer(committed=False) as uncommitted, self._consumer(committed=True) as committed:
            ends = _ends(uncommitted)  # the end for committed records is smaller while a transaction is open
            return [*self._read(uncommitted, ends, committed=False), *self._read(committed, ends, committed=True)]

    @contextmanager
    def _consumer(self, *, committed: bool) -> Iterator[confluent_kafka.Consumer]:
        settings: dict[str, Any] = {
            "bootstrap.servers": self._cluster.bootstrap,
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

    def _read(self, consumer: confluent_kafka.Consumer, ends: dict[Place, int], *, committed: bool) -> list[Log]:
        start_s = self.history.now_s()
        records_by_place = _read_all(consumer, ends)
        end_s = self.history.now_s()
        return [
            Log(
                client="final reader",
                start_s=start_s,
                end_s=end_s,
                place=place,
                committed=committed,
                records=tuple(records),
            )
            for place, records in records_by_place.items()
        ]


def _behind(positions: dict[Place, int], ends: dict[Place, int]) -> dict[Place, int]:
    return {place: positions.get(place, 0) for place, end in ends.items() if positions.get(place, 0) < end}


def _ends(consumer: confluent_kafka.Consumer) -> dict[Place, int]:
    places = [Place(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
    return {place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=CALL_S_MAX)[1] for place in places}


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
                records[place].append(Record(offset or 0, (message.value() or b"").decode()))
            elif error.code() == KafkaError._PARTITION_EOF:
                positions[place] = offset or 0
    return records
