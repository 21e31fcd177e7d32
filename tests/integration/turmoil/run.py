"""One run from its start to what all readers find in the end: clients and trouble beside one another, then calm."""

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
from tests.integration.turmoil import aio, confluent, kafka_python
from tests.integration.turmoil.cluster import Cluster
from tests.integration.turmoil.faces import CALL_S_MAX, PARTITIONS, TRANSACTION_MS, Library, on_no_return
from tests.integration.turmoil.faults import turmoil
from tests.integration.turmoil.history import History, Log, Place, Record
from tests.integration.turmoil.known import Stuck
from tests.integration.turmoil.programs import AGAIN_S, Looking, Moving, Program, Reading, Sending, Transacting

CALM_S: Final = 6.0
"""Before and behind the faults."""
END_S_MAX: Final = 45.0
LIBRARIES: Final = {
    "confluent": cast(Library, confluent),
    "kafka-python": cast(Library, kafka_python),
    "aiokafka": cast(Library, aio),
}
PLAIN, LEDGERS, MADE, MADE_ALONE = "plain", ("debits", "credits"), "made", "made-alone"
TOPICS: Final = (PLAIN, *LEDGERS, MADE, MADE_ALONE)
GROUPS: Final = (
    ("readers", PLAIN),
    ("new-readers", PLAIN),
    ("auditors", LEDGERS[0]),
    ("movers", PLAIN),
    ("mover-alone", PLAIN),
)
NEW_READERS: Final = 2


class Run:
    def __init__(self, cluster: Cluster, seed: str) -> None:
        self.history = History()
        self._cluster = cluster
        self._luck = random.Random(seed)
        self.no_returns: Counter[str] = Counter()
        """Calls of clients that did not come back, by the cause."""
        self._writers, self._readers = self._programs()
        self._looking = Looking("looks", LIBRARIES["confluent"], cluster.bootstrap, self.history, GROUPS)

    def _programs(self) -> tuple[list[Program], list[Program]]:
        bootstrap, history = self._cluster.bootstrap, self.history
        writers: list[Program] = []
        readers: list[Program] = []
        for name, library in LIBRARIES.items():
            writers += [
                Sending(f"{name}-sends", library, bootstrap, history, PLAIN),
                Transacting(f"{name}-pays", library, bootstrap, history, LEDGERS),
            ]
            target, group = (MADE_ALONE, "mover-alone") if name == "aiokafka" else (MADE, "movers")
            readers += [
                Reading(f"{name}-reads", library, bootstrap, history, [PLAIN], "readers", committed=False),
                Reading(f"{name}-audits", library, bootstrap, history, LEDGERS[:1], "auditors", committed=True),
                Moving(f"{name}-moves", library, bootstrap, history, PLAIN, target, group),
            ]
        new = cast(Library, confluent.New)
        readers += [
            Reading(f"confluent-new-reads-{number}", new, bootstrap, history, [PLAIN], "new-readers", committed=False)
            for number in range(NEW_READERS)
        ]
        return writers, readers

    def look_inside(self, folder: Path) -> None:
        """If a call of a client does not come back: what the client says, where the threads of this process are, and
        what each broker is at, into the logs in that folder."""

        def tell(stuck: Stuck) -> None:
            self.no_returns[stuck.cause] += 1
            with (folder / f"no-return-{self.no_returns.total()}.log").open("w") as out:
                out.write(f"at {self.history.now_s():.1f} s: {stuck.cause}\n{stuck.said}\n")
                out.flush()
                faulthandler.dump_traceback(out)
            for node in self._cluster.nodes:
                node.process.signal(signal.SIGUSR1)

        on_no_return[:] = [tell]

    async def go(self, seconds: float) -> int:
        """How many faults there were."""
        await asyncio.to_thread(self._make_topics)
        programs = [*self._writers, *self._readers, self._looking]
        for program in programs:
            program.start()
        try:
            await asyncio.sleep(CALM_S)
            faults = await turmoil(self._cluster, self.history, self._luck, seconds - CALM_S)
            await asyncio.sleep(CALM_S)
            await self._end(self._writers)
            logs = await asyncio.to_thread(self._read_logs)
            await asyncio.to_thread(self._wait_for_groups, logs)
            await self._end([*self._readers, self._looking])
            for log in await asyncio.to_thread(self._read_logs):
                self.history.add(log)
        finally:
            await asyncio.shield(self._stop(programs))
            on_no_return.clear()
        return faults

    async def _stop(self, programs: Sequence[Program]) -> None:
        """Also after a failure: the process must not end while the clients' own threads run."""
        for program in programs:
            program.ended.set()
        for program in programs:
            await asyncio.to_thread(program.wait, END_S_MAX)

    async def _end(self, programs: Sequence[Program]) -> None:
        for program in programs:
            program.ended.set()
        for program in programs:
            await asyncio.to_thread(program.join, END_S_MAX)

    def _make_topics(self) -> None:
        admin = AdminClient({"bootstrap.servers": self._cluster.bootstrap})
        made = admin.create_topics([NewTopic(topic, num_partitions=PARTITIONS) for topic in TOPICS])
        for answer in made.values():
            answer.result(CALL_S_MAX)

    def _wait_for_groups(self, logs: Sequence[Log]) -> None:
        """Nobody writes to what they read any more, and nobody is in trouble: they come to the end."""
        ends = {log.place: log.records[-1].offset + 1 for log in logs if log.committed and log.records}
        until_s = time.monotonic() + END_S_MAX
        for group, topic in GROUPS:
            wanted = {place: end for place, end in ends.items() if place.topic == topic}
            while behind := _behind(dict(self._looking.look(group, topic)), wanted):
                assert time.monotonic() < until_s, f"group {group} is stuck at {behind} of {wanted}"
                time.sleep(AGAIN_S)

    def _read_logs(self) -> list[Log]:
        """Everything, as readers of committed records see it and as the others do."""
        with self._consumer(committed=False) as everything, self._consumer(committed=True) as settled:
            ends = _ends(everything)  # whoever reads committed records is told a smaller one while something is open
            return [*self._read(everything, ends, committed=False), *self._read(settled, ends, committed=True)]

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
        found = _read_all(consumer, ends)
        end_s = self.history.now_s()
        return [
            Log(
                client="the end", start_s=start_s, end_s=end_s, place=place, committed=committed, records=tuple(records)
            )
            for place, records in found.items()
        ]


def _behind(there: dict[Place, int], ends: dict[Place, int]) -> dict[Place, int]:
    return {place: there.get(place, 0) for place, end in ends.items() if there.get(place, 0) < end}


def _ends(consumer: confluent_kafka.Consumer) -> dict[Place, int]:
    places = [Place(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
    return {place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=CALL_S_MAX)[1] for place in places}


def _read_all(consumer: confluent_kafka.Consumer, ends: dict[Place, int]) -> dict[Place, list[Record]]:
    """To the ends of the logs, also for committed records: what is open there is aborted when its time is over."""
    found: dict[Place, list[Record]] = {place: [] for place in ends}
    at = dict.fromkeys(ends, 0)
    consumer.assign([TopicPartition(*place, 0) for place in ends])
    heard_s = time.monotonic()
    while behind := _behind(at, ends):
        messages = consumer.consume(500, 0.1)
        if messages:
            heard_s = time.monotonic()
        hung = time.monotonic() - heard_s > TRANSACTION_MS / 1000 + CALL_S_MAX
        assert not hung, f"a transaction hangs: committed records end at {behind} of {ends}"
        for message in messages:
            place, offset, error = (
                Place(message.topic() or "", message.partition() or 0),
                message.offset(),
                message.error(),
            )
            if error is None:
                found[place].append(Record(offset or 0, (message.value() or b"").decode()))
            elif error.code() == KafkaError._PARTITION_EOF:
                at[place] = offset or 0
    return found
