"""Stock clients send, poll and commit transactions while random brokers and stores are killed, paused and disconnected.

The cluster has three brokers, Oxia and S3. The checker finds no anomaly in the history of the clients' calls.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.harness.clients.programs import SOAK
from tests.integration.jepsen_style.checker import check, report
from tests.integration.jepsen_style.client_logging import quiet_clients
from tests.integration.jepsen_style.cluster import cluster
from tests.integration.jepsen_style.history import Send, Transaction, count_done, save
from tests.integration.jepsen_style.known_client_bugs import CLIENT_BUGS, UNKNOWN
from tests.integration.jepsen_style.run import Run, save_artifacts, summary
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
            faults = await run.run(lambda: run.inject_faults(RUN_S))
            anomalies = check(run.history.events)
            assert not anomalies, report(anomalies)
            assert "Traceback" not in servers.logs(), servers.logs()
        except BaseException:
            save_artifacts(run, tmp_path, f"TURMOIL_SEED={seed}")
            raise
    if run.hung_calls.keys() - CLIENT_BUGS:
        save_artifacts(run, tmp_path, f"TURMOIL_SEED={seed}")
    svg = tmp_path / "faults.svg"
    svg.write_text(draw(run.history.events))
    save(run.history.events, tmp_path / "history.jsonl")
    print(f"\nTURMOIL_SEED={seed}: {faults} faults; {summary(run)}; diagram: {svg}")
    assert not run.hung_calls[UNKNOWN], "a call of a client hung, and not because of a known bug of the client"
    assert faults >= RUN_S / 10
    assert count_done(run.history.events, Send) >= 5 * RUN_S
    assert count_done(run.history.events, Transaction) >= RUN_S
