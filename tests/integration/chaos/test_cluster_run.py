"""All parts at once: three brokers, three Oxia nodes, S3 and two pipelines, with all kinds of clients.

Brokers are added and removed under load, and then each part is killed (SIGKILL) and frozen (SIGSTOP) once; `make soak`
repeats both. At the end every record is compared: what the clients sent and polled, what each broker returns, the rows
of the tables, and what `lakestream doctor --full` finds.

Pauses of clients:

- A broker that is added, or stopped with SIGTERM, causes no error that the client does not retry by itself, and no
  pause above three seconds, in addition to the longest pause before the change. On a machine that is busy with other
  programs it may be longer, in proportion to the load. Failures of a client by a known bug of its own
  (known_client_bugs.py) are printed and do not count.
- After a kill or a freeze a client may call the failed broker until its request times out (5 s), the broker is in the
  metadata until its session ends (3 s) and the client reads them again (2 s). A member that is frozen out of its group
  rejoins after its session (6 s). Records of an open transaction hold back `read_committed` readers until its timeout
  (10 s). A program closes a client whose call did not return (18 s) and creates another. So a client continues at the
  latest when the last call (18 s) has failed and the transaction that it left (10 s) was aborted, once the metadata are
  read again (2 s).

    CLUSTER_RUN_S=3600 CLUSTER_RUN_SEED=7 pytest -s tests/integration/chaos/test_cluster_run.py
"""

import asyncio
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast
from urllib.parse import urlsplit

import pytest
from tests.harness.engines.engines import pyiceberg_of, uri_of
from tests.harness.processes.pipelines import BrokersAndPipelines
from tests.harness.processes.serve import cli
from tests.integration.jepsen_style import confluent_client
from tests.integration.jepsen_style.checker import check, report
from tests.integration.jepsen_style.client_api import (
    BOUND_S,
    METADATA_MS,
    PARTITIONS,
    TRANSACTION_MS,
    Content,
    Library,
    text_of,
)
from tests.integration.jepsen_style.client_logging import quiet_clients
from tests.integration.jepsen_style.cluster import Cluster, cluster_with_pipelines
from tests.integration.jepsen_style.faults import change_brokers, fault_types, inject, one_of_each_part, rounds
from tests.integration.jepsen_style.history import (
    ClientFailure,
    Fault,
    Place,
    Record,
    Rows,
    Send,
    Transaction,
    count_done,
)
from tests.integration.jepsen_style.known_client_bugs import CLIENT_BUGS, UNKNOWN
from tests.integration.jepsen_style.pauses import Pause, longer, longest_pauses, names_of, outage
from tests.integration.jepsen_style.run import Run, save_artifacts, summary

pytestmark = pytest.mark.alone

RUN_S: Final = float(os.environ.get("CLUSTER_RUN_S", "0"))
PARTS: Final = ("broker", "oxia", "versitygw", "pipeline")
"""Each is killed and frozen."""
BROKERS: Final = 3
PIPELINES: Final = 2
LIBRARIES: Final = {name: cast(Library, confluent_client) for name in ("first", "second")}
"""Two clients of each kind: a group has two members."""
CALM_S: Final = 10.0
PAUSE_S_MAX: Final = 3.0
"""Longest pause of a client that adding or removing a broker may cause."""
OWN_LOAD: Final = 3.0
"""Runnable processes for each core that this test has itself on a machine with two."""
RECOVERY_S_MAX: Final = BOUND_S + (TRANSACTION_MS + METADATA_MS) / 1000
"""Longest pause of a client after a fault has ended."""
END_S_MAX: Final = 600.0
FRESH_S_MAX: Final = 180.0
START_S_MAX: Final = 120.0
FINDINGS_MAX: Final = 20
LOG_END: Final = 2_000


@pytest.mark.timeout(2 * RUN_S + END_S_MAX)
async def test_every_record_is_kept_once_when_all_parts_fail_and_brokers_come_and_go(tmp_path: Path) -> None:
    seed = os.environ.get("CLUSTER_RUN_SEED") or str(random.randrange(10**6))
    print(f"\nCLUSTER_RUN_SEED={seed}")
    async with cluster_with_pipelines(tmp_path, BROKERS, PIPELINES) as (cluster, system):
        run = Run(cluster, seed, LIBRARIES)
        run.dump_hung_calls(tmp_path)
        scenario = Scenario(run, cluster)
        try:
            faults = await run.run(scenario.run)
            findings = [*scenario.findings, *await at_rest(run, cluster, system)]
            anomalies = check(run.history.events)
            assert not anomalies, report(anomalies)
            assert not findings, "\n".join(findings[:FINDINGS_MAX])
        except BaseException:
            save_artifacts(run, tmp_path, f"CLUSTER_RUN_SEED={seed}")
            raise
    print(f"{faults} faults; {summary(run)}")
    assert not run.hung_calls[UNKNOWN], "a call of a client hung, and not because of a known bug of the client"
    assert faults >= 2 * len(PARTS)
    assert count_done(run.history.events, Send) >= 500
    assert count_done(run.history.events, Transaction) >= 100


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_clients():
        yield


class Scenario:
    """Changes of brokers and faults, in turns."""

    def __init__(self, run: Run, cluster: Cluster) -> None:
        self.findings: list[str] = []
        self._usual_s = 0.0
        """Longest pause without a fault."""
        self._run = run
        self._cluster = cluster

    async def run(self) -> int:
        """Returns the number of faults. At the end all processes run, and all clients and pipelines work."""
        faults, history = 0, self._run.history
        self._run.crashes.clear()
        await self._run.wait_for_clients()
        for pipeline in self._cluster.pipelines:
            await pipeline.start()
        while not faults or history.now_s() < RUN_S:
            calm_s = history.now_s()
            await self._wait_for_pipelines()
            await asyncio.sleep(max(0.0, calm_s + CALM_S - history.now_s()))
            await self._change_brokers(calm_s)
            faults += await self._inject_faults()
        await self._wait_for_pipelines()
        return faults

    async def _change_brokers(self, calm_s: float) -> None:
        """Adds and removes brokers while nothing fails. The pauses since `calm_s` show how busy the machine is."""
        history = self._run.history
        start_s = history.now_s()
        self._usual_s, _ = self._report(calm_s, "while nothing changed")
        await change_brokers(self._cluster, history, self._run.rng, self._run.wait_for_clients)
        _, pauses = self._report(start_s, "while brokers were added and removed")
        failures = [event for event in history.events if isinstance(event, ClientFailure) and event.end_s >= start_s]
        of_bugs = [failure for failure in failures if any(bug in failure.what for bug in CLIENT_BUGS)]
        self.findings += [
            f"{failure.client} failed at {failure.end_s:.1f} s while brokers were added and removed: {failure.what}"
            for failure in failures
            if failure not in of_bugs
        ]
        stopped = {name for failure in of_bugs for name in names_of(history.events, failure.client)}
        outages = [outage(history.events, failure) for failure in of_bugs]
        for failure in of_bugs:
            print(f"a known bug of the client: {failure.client} at {failure.end_s:.1f} s: {failure.what[:200]}")
        load = os.getloadavg()[0] / (os.cpu_count() or 1)
        limit_s = PAUSE_S_MAX * max(1.0, load / OWN_LOAD) + self._usual_s
        print(f"limit of the pauses: {limit_s:.1f} s, with {load:.1f} runnable processes for each core")
        for name, pause in pauses.items():
            self.findings += longer({name: pause}, limit_s, outages if name in stopped else [])

    async def _inject_faults(self) -> int:
        history = self._run.history
        start_s = history.now_s()
        self._run.crashes.set()
        types = one_of_each_part(fault_types(self._cluster), self._run.rng)
        for faults in rounds(types, self._run.rng):
            await inject(faults, self._cluster, history, self._run.rng)
        self._run.crashes.clear()
        await self._run.wait_for_clients()
        _, pauses = self._report(start_s, "while parts were killed and frozen")
        injected = [event for event in history.events if isinstance(event, Fault) and event.start_s >= start_s]
        self.findings += longer(pauses, RECOVERY_S_MAX + self._usual_s, injected)
        return len(types)

    def _report(self, start_s: float, when: str) -> tuple[float, dict[str, Pause]]:
        """Prints the longest pause since a time, and what was done. Returns its length, and the pauses by name."""
        history = self._run.history
        pauses = longest_pauses(history.events, start_s, history.now_s())
        name, longest = max(pauses.items(), key=lambda named: named[1].length_s)
        print(f"paused at most {longest} ({name}) {when}")
        for event in history.events:
            if isinstance(event, Fault) and event.start_s >= start_s:
                print(f"  {event.client} {event.what} from {event.start_s:.1f} to {event.end_s:.1f} s")
        return longest.length_s, pauses

    async def _wait_for_pipelines(self) -> None:
        """Waits until a pipeline has moved records since its start. The other may find nothing left to move."""
        pipelines, deadline_s = self._cluster.pipelines, self._run.history.now_s() + START_S_MAX
        while not any(pipeline.works() for pipeline in pipelines):
            for process in self._cluster.processes():
                process.check_running()
            outputs = [pipeline.output()[-LOG_END:] for pipeline in pipelines]
            assert self._run.history.now_s() < deadline_s, f"no pipeline moves records: {outputs}"
            await asyncio.sleep(0.2)


# Records at the end


async def at_rest(run: Run, cluster: Cluster, system: BrokersAndPipelines) -> list[str]:
    """Reads logs and tables when all records are in the tables. Returns what is wrong, apart from the records."""
    for process in cluster.processes():
        process.check_running()
    for topic in run.topics:
        await asyncio.to_thread(wait_until_fresh, system, topic)
    codes = [await asyncio.to_thread(pipeline.stop) for pipeline in cluster.pipelines]
    code, output = await system.run("doctor", "--full")
    for node in cluster.nodes:
        await asyncio.to_thread(run.add_logs, f"reader zone_id={node.broker.zone}")
    for topic in run.topics:
        run.history.events += await asyncio.to_thread(rows_of, run, system, topic)
    findings = [f"pipelines exited with {codes}"] if any(codes) else []
    findings += [f"doctor exited with {code}: {output}"] if code else []
    logs = cluster.logs() + system.logs()
    return findings + [line for line in logs.splitlines() if "Traceback" in line or "pipeline.topic_stalled" in line]


def wait_until_fresh(system: BrokersAndPipelines, topic: str) -> None:
    """Waits until the table has all acknowledged records."""
    http = urlsplit(uri_of(system.cluster)).netloc
    for _ in range(int(FRESH_S_MAX / 20)):
        refresh = cli("table", "refresh", topic, "--http", http, "--wait", "20s")
        if not refresh.returncode:
            return
    raise AssertionError(f"table {topic}: {refresh.stderr.decode()} {refresh.stdout.decode()}")


def rows_of(run: Run, system: BrokersAndPipelines, topic: str) -> list[Rows]:
    start_s = run.history.now_s()
    rows = pyiceberg_of(system.cluster).load_table(f"default.{topic}").scan().to_arrow().to_pylist()
    records: dict[int, list[Record]] = {number: [] for number in range(PARTITIONS)}
    for row in rows:
        stream = row["_stream"]
        headers = tuple((header["key"], header["value"]) for header in stream["headers"])
        content = Content(stream["key"], round(stream["timestamp"].timestamp() * 1000), headers)
        records[stream["partition"]].append(Record(stream["offset"], text_of(row["value"], content)))
    end_s = run.history.now_s()
    return [
        Rows(client="table", start_s=start_s, end_s=end_s, place=Place(topic, number), records=tuple(sorted(found)))
        for number, found in records.items()
    ]
