from pathlib import Path

from benchmarks.kafka.load.payload import read_values, write_values


def test_values_are_kept_for_generators_whatever_their_size(tmp_path: Path) -> None:
    values = [b"", b"\0\0\0\1", b"x" * 70_000, b"\n"]
    write_values(values, tmp_path / "values")
    assert read_values(tmp_path / "values") == values
