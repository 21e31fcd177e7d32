"""Members of consumer groups: stock clients behind one interface, each on its own thread.

A member subscribes, reads, commits after each record or batch of records, and leaves the group when it is stopped.
"""

import asyncio
import contextlib
import subprocess
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, ClassVar, Final, NamedTuple

import aiokafka  # type: ignore[import-untyped]
import confluent_kafka
from tests.harness.clients.programs import require_program

with warnings.catch_warnings():  # kafka-python uses functions that Python 3.11 deprecates
    warnings.simplefilter("ignore")
    import kafka  # type: ignore[import-untyped]

WAIT_S: Final = 60.0
SESSION_MS: Final = 10_000
HEARTBEAT_MS: Final = 500


class Read(NamedTuple):
    partition: int
    offset: int
    value: bytes | None


class Member:
    name: ClassVar[str]

    def __init__(self, bootstrap: str, group: str, topic: str, instance: str | None = None) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.instance = instance
        self.read: list[Read] = []
        self.assigned: frozenset[int] = frozenset()
        self.assignments: list[frozenset[int]] = []
        """Every assignment of this member, in order."""
        self.commit_errors: list[str] = []
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run_and_record_failure, daemon=True)

    def __enter__(self) -> "Member":
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"{self.name} did not stop within {WAIT_S:.0f} s"
        if self.failure is not None:
            raise self.failure

    def identity(self) -> tuple[str, int | None]:
        """Returns the member id and the generation; None if the client does not expose it."""
        raise NotImplementedError

    def _run_and_record_failure(self) -> None:
        try:
            self._run()
        except BaseException as error:
            self.failure = error

    def _run(self) -> None:
        raise NotImplementedError

    def _assigned_to(self, partitions: Sequence[int]) -> None:
        self.assigned = frozenset(partitions)
        self.assignments.append(self.assigned)


class Confluent(Member):
    name = "confluent-kafka"
    assigns_incrementally: ClassVar = False
    """Whether an assignment contains only the added partitions."""
    strategy = "range,roundrobin"

    def _settings(self) -> dict[str, Any]:
        return {
            **self._common(),
            "session.timeout.ms": SESSION_MS,
            "heartbeat.interval.ms": HEARTBEAT_MS,
            "partition.assignment.strategy": self.strategy,
        }

    def _common(self) -> dict[str, Any]:
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "topic.metadata.refresh.interval.ms": 1_000,
            "log_level": 0,
            **({} if self.instance is None else {"group.instance.id": self.instance}),
        }

    def _run(self) -> None:
        self._member_id = ""
        self._consumer: Any = confluent_kafka.Consumer(self._settings())
        self._consumer.subscribe([self.topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        while not self._stop.is_set():
            message: Any = self._consumer.poll(0.1)
            if self.assigned:
                self._member_id = str(self._consumer.memberid())  # only on this thread, because librdkafka would hang
            if message is not None and message.error() is None:
                self.read.append(Read(message.partition(), message.offset(), message.value()))
                self._commit(message)
        self._consumer.close()

    def _on_assign(self, _: object, partitions: list[Any]) -> None:
        self._assigned_to(
            [*(self.assigned if self.assigns_incrementally else ()), *(partition.partition for partition in partitions)]
        )

    def _on_revoke(self, _: object, partitions: list[Any]) -> None:
        self.assigned -= {partition.partition for partition in partitions}

    def _commit(self, message: Any) -> None:
        try:
            self._consumer.commit(message=message, asynchronous=False)
        except confluent_kafka.KafkaException as error:  # a rebalance: the next owner reads the record again
            self.commit_errors.append(str(error))

    def identity(self) -> tuple[str, int | None]:
        return self._member_id, None


class Cooperative(Confluent):
    name = "confluent-kafka, cooperative"
    strategy = "cooperative-sticky"
    assigns_incrementally = True


class NewConfluent(Confluent):
    """A member with the consumer protocol."""

    name = "confluent-kafka, new"
    assigns_incrementally = True

    def _settings(self) -> dict[str, Any]:
        return {**self._common(), "group.protocol": "consumer"}


class Java(Member):
    """A member in its own Java process."""

    name = "java"
    protocol = "classic"

    def _run(self) -> None:
        source = str(Path(__file__).with_name("JavaMember.java"))
        arguments = [self.bootstrap, self.group, self.topic, self.protocol, self.instance or "-"]
        pipe = subprocess.PIPE
        self._identity: tuple[str, int | None] = ("", None)
        self.lines: list[str] = []
        with subprocess.Popen(
            [require_program("kafka-class"), source, *arguments],
            stdin=pipe,
            stdout=pipe,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            listener = threading.Thread(target=self._listen, args=(process.stdout,), daemon=True)
            listener.start()
            while not self._stop.wait(0.05) and process.poll() is None:
                pass
            process.stdin.close()
            try:
                process.wait(WAIT_S)
            finally:
                process.kill()
            listener.join(WAIT_S)
        assert self.lines[-1:] == ["closed"], "\n".join(self.lines[-50:])

    def _listen(self, lines: IO[str]) -> None:
        for line in lines:
            self.lines.append(line.rstrip())
            event, *words = self.lines[-1].split(" ")
            if event == "read":
                self.read.append(Read(int(words[0]), int(words[1]), words[2].encode()))
            elif event in ("assigned", "revoked", "lost"):
                self._identity = words[0], int(words[1])
                self._on_event(event, frozenset(int(number) for number in words[2].split(",") if number))
            elif event == "uncommitted":
                self.commit_errors.append(line)

    def _on_event(self, event: str, partitions: frozenset[int]) -> None:
        if event == "assigned":
            self._assigned_to([*self.assigned, *partitions])
        else:
            self.assigned -= partitions

    def identity(self) -> tuple[str, int | None]:
        return self._identity


class NewJava(Java):
    name = "java, new"
    protocol = "consumer"


class KafkaPython(Member):
    name = "kafka-python"

    def _run(self) -> None:
        member = self

        class Listener(kafka.ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_revoked(self, revoked: Any) -> None: ...

            def on_partitions_assigned(self, assigned: Any) -> None:
                member._assigned_to([partition.partition for partition in assigned])

        static = {} if self.instance is None else {"group_instance_id": self.instance}
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            metadata_max_age_ms=1_000,
            **static,
        )
        self._consumer.subscribe([self.topic], listener=Listener())
        while not self._stop.is_set():
            for records in self._consumer.poll(100).values():
                self.read += [Read(record.partition, record.offset, record.value) for record in records]
                try:
                    self._consumer.commit()
                except kafka.errors.KafkaError as error:
                    self.commit_errors.append(repr(error))
        self._consumer.close()

    def identity(self) -> tuple[str, int | None]:
        generation = self._consumer._coordinator._generation
        return str(generation.member_id), int(generation.generation_id)


class AioKafka(Member):
    name = "aiokafka"

    def _run(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        member = self

        class Listener(aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_revoked(self, revoked: Any) -> None: ...

            async def on_partitions_assigned(self, assigned: Any) -> None:
                member._assigned_to([partition.partition for partition in assigned])

        static = {} if self.instance is None else {"group_instance_id": self.instance}
        self._consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.group,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            metadata_max_age_ms=1_000,
            **static,
        )
        self._consumer.subscribe([self.topic], listener=Listener())
        await self._consumer.start()
        try:
            while not self._stop.is_set():
                for records in (await self._consumer.getmany(timeout_ms=100)).values():
                    self.read += [Read(record.partition, record.offset, record.value) for record in records]
                    try:
                        await self._consumer.commit()
                    except aiokafka.errors.KafkaError as error:
                        self.commit_errors.append(repr(error))
        finally:
            await self._consumer.stop()

    def identity(self) -> tuple[str, int | None]:
        coordinator = self._consumer._coordinator
        return str(coordinator.member_id), int(coordinator.generation)


MEMBERS: Final[dict[str, type[Member]]] = {
    member.name: member for member in (Confluent, Cooperative, KafkaPython, AioKafka)
}


@contextlib.contextmanager
def running(members: Sequence[Member]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for member in members:
            stack.enter_context(member)
        yield


def wait_until(
    what: str, condition: Callable[[], bool], members: Sequence[Member] = (), wait_s: float = WAIT_S
) -> None:
    deadline = time.monotonic() + wait_s
    while not condition():
        for member in members:
            if member.failure is not None:
                raise member.failure
        states = [(member.name, sorted(member.assigned), len(member.read)) for member in members]
        assert time.monotonic() < deadline, f"{what}: not within {wait_s:.0f} s; {states}"
        time.sleep(0.05)


def is_balanced(members: Sequence[Member], partitions: int) -> bool:
    """Returns whether every member has partitions, and every partition exactly one member."""
    assigned = [partition for member in members for partition in member.assigned]
    return sorted(assigned) == list(range(partitions)) and all(member.assigned for member in members)
