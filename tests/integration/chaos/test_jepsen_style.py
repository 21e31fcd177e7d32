"""Stock clients send, poll and commit transactions while random brokers and stores are killed, paused and disconnected.

The cluster has three brokers, Oxia and S3. The checker finds no anomaly in the history of the clients' calls.
"""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.clients.programs import SOAK
from tests.integration.jepsen_style.checker import check, report
from tests.integration.jepsen_style.client_logging import quiet_clients
from tests.integration.jepsen_style.cluster import cluster
from tests.integration.jepsen_style.history import HistoryEvent, Outcome, Poll, Send, Transaction, save
from tests.integration.jepsen_style.known_client_bugs import CLIENT_BUGS, UNKNOWN
from tests.integration.jepsen_style.run import Run
from tests.integration.jepsen_style.svg_report import draw

RUN_S = float(os.environ.get("TURMOIL_S", "60"))
BROKERS = 3
END_S_MAX = 180

pytestmark = [
    pytest.mark.alone,
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning"),
]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_clients():
        yield


@pytest.mark.timeout(RUN_S + END_S_MAX)
async def test_history_has_no_anomaly_when_brokers_and_stores_fail(tmp_path: Path) -> None:
    seed = os.environ.get("TURMOIL_SEED") or (uuid.uuid4().hex if SOAK else tmp_path.name)
    async with cluster(tmp_path, BROKERS) as servers:
        run = Run(servers, seed)
        run.dump_hung_calls(tmp_path)
        try:
            faults = await run.run(RUN_S)
            anomalies = check(run.history.events)
            assert not anomalies, report(anomalies)
            assert "Traceback" not in servers.logs(), servers.logs()
        except BaseException:
            save_artifacts(run, tmp_path, seed)
            raise
    if run.hung_calls.keys() - CLIENT_BUGS:
        save_artifacts(run, tmp_path, seed)
    svg = tmp_path / "faults.svg"
    svg.write_text(draw(run.history.events))
    save(run.history.events, tmp_path / "history.jsonl")
    print(f"\nTURMOIL_SEED={seed}: {faults} faults; {summary(run)}; diagram: {svg}")
    assert not run.hung_calls[UNKNOWN], "a call of a client hung, and not because of a known bug of the client"
    assert faults >= RUN_S / 10
    assert count_done(run.history.events, Send) >= 5 * RUN_S
    assert count_done(run.history.events, Transaction) >= RUN_S


def save_artifacts(run: Run, folder: Path, seed: str) -> None:
    """Saves the history, the diagram and the logs of a failed run to a folder that is not deleted."""
    kept = Path(tempfile.mkdtemp(prefix="lakestream-turmoil-"))
    save(run.history.events, kept / "history.jsonl")
    (kept / "faults.svg").write_text(draw(run.history.events))
    for log in folder.glob("*.log"):
        shutil.copy(log, kept)
    print(f"\nTURMOIL_SEED={seed}; {summary(run)}; history, diagram and logs: {kept}")
    print(f"check it again with: python -m tests.integration.jepsen_style.checker {kept / 'history.jsonl'}")


def count_done(events: list[HistoryEvent], kind: type[Send | Transaction]) -> int:
    return sum(isinstance(event, kind) and event.outcome is Outcome.DONE for event in events)


def summary(run: Run) -> str:
    events = run.history.events
    polled = sum(len(event.records) for event in events if isinstance(event, Poll))
    causes = "; ".join(f"{count} times {cause}" for cause, count in run.hung_calls.most_common())
    hung = f"{run.hung_calls.total()} hung calls of clients ({causes or 'none'})"
    sends, transactions = count_done(events, Send), count_done(events, Transaction)
    return f"{sends} sends, {transactions} transactions, {polled} records polled, {hung}"
