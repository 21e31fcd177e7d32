"""Three brokers, Oxia and S3 are killed, paused and cut off in random subsets while stock clients send, poll and commit
transactions. What they saw is written down, and the checker finds nothing in it that must not be."""

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.integration.programs import SOAK
from tests.integration.turmoil.checker import check, report
from tests.integration.turmoil.cluster import cluster
from tests.integration.turmoil.history import Happened, Outcome, Poll, Send, Transaction, save
from tests.integration.turmoil.known import CLIENTS_FAULTS, UNKNOWN
from tests.integration.turmoil.picture import draw
from tests.integration.turmoil.quiet import quiet_clients
from tests.integration.turmoil.run import Run

RUN_S = float(os.environ.get("TURMOIL_S", "60"))
BROKERS = 3
END_S_MAX = 180

pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with quiet_clients():
        yield


@pytest.mark.timeout(RUN_S + END_S_MAX)
async def test_no_anomaly_in_turmoil(tmp_path: Path) -> None:
    seed = os.environ.get("TURMOIL_SEED") or (uuid.uuid4().hex if SOAK else tmp_path.name)
    async with cluster(tmp_path, BROKERS) as world:
        run = Run(world, seed)
        run.look_inside(tmp_path)
        try:
            faults = await run.go(RUN_S)
            anomalies = check(run.history.events)
            assert not anomalies, report(anomalies)
            assert "Traceback" not in world.logs(), world.logs()
        except BaseException:
            kept(run, tmp_path, seed)
            raise
    if run.no_returns.keys() - CLIENTS_FAULTS:
        kept(run, tmp_path, seed)
    picture = tmp_path / "turmoil.svg"
    picture.write_text(draw(run.history.events))
    save(run.history.events, tmp_path / "history.jsonl")
    print(f"\nTURMOIL_SEED={seed}: {faults} faults; {told(run)}; picture: {picture}")
    assert not run.no_returns[UNKNOWN], "a client waits for ever, and not for a reason of its own that is known"
    assert faults >= RUN_S / 10
    assert done(run.history.events, Send) >= 5 * RUN_S
    assert done(run.history.events, Transaction) >= RUN_S


def kept(run: Run, folder: Path, seed: str) -> None:
    """What is needed to understand a failure, where nobody removes it."""
    safe = Path(tempfile.mkdtemp(prefix="lakestream-turmoil-"))
    save(run.history.events, safe / "history.jsonl")
    (safe / "turmoil.svg").write_text(draw(run.history.events))
    for log in folder.glob("*.log"):
        shutil.copy(log, safe)
    print(f"\nTURMOIL_SEED={seed}; {told(run)}; history, picture and logs: {safe}")
    print(f"to check it again: python -m tests.integration.turmoil.checker {safe / 'history.jsonl'}")


def done(events: list[Happened], kind: type[Send | Transaction]) -> int:
    return sum(isinstance(event, kind) and event.outcome is Outcome.DONE for event in events)


def told(run: Run) -> str:
    events = run.history.events
    polled = sum(len(event.records) for event in events if isinstance(event, Poll))
    causes = "; ".join(f"{count} times {cause}" for cause, count in run.no_returns.most_common())
    lost = f"{run.no_returns.total()} calls of clients that did not come back ({causes or 'none'})"
    return f"{done(events, Send)} sends, {done(events, Transaction)} transactions, {polled} records polled, {lost}"
