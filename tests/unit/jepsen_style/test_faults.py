"""Choice of the faults that are injected at the same time."""

import random
from contextlib import nullcontext

import pytest
from tests.integration.jepsen_style.faults import CONCURRENT_MAX, FaultType, one_of_each_part, rounds

TYPES = [
    FaultType(target, kind, nullcontext)
    for target in ("broker-0", "broker-1", "oxia-n1", "oxia-n2", "versitygw")
    for kind in ("killed", "paused")
]


@pytest.mark.parametrize("seed", range(20))
def test_rounds_contain_each_fault_once_and_one_of_each_process(seed: int) -> None:
    chosen = list(rounds(TYPES, random.Random(seed)))
    assert sorted((fault.target, fault.kind) for faults in chosen for fault in faults) == sorted(
        (fault.target, fault.kind) for fault in TYPES
    )
    for faults in chosen:
        assert 1 <= len(faults) <= CONCURRENT_MAX
        assert len({fault.target for fault in faults}) == len(faults)
        assert sum(fault.part == "oxia" for fault in faults) <= 1, "the other nodes are a majority"


def test_each_part_is_killed_and_paused_once() -> None:
    chosen = one_of_each_part(TYPES, random.Random(1))
    parts = [(part, kind) for part in ("broker", "oxia", "versitygw") for kind in ("killed", "paused")]
    assert sorted((fault.part, fault.kind) for fault in chosen) == parts
