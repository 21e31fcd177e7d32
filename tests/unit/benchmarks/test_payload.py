from pathlib import Path

from benchmarks.kafka.load.payload import keep, kept


def test_values_are_kept_for_generators_whatever_their_size(tmp_path: Path) -> None:
    values = [b"", b"\0\0\0\1", b"x" * 70_000, b"\n"]
    keep(values, tmp_path / "values")
    assert kept(tmp_path / "values") == values
