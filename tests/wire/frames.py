"""Files with captured requests of real clients. Each frame has its size in front, as on the wire."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

CAPTURES: Final = Path(__file__).parent / "captures"
SIZE_BYTES: Final = 4


def captured() -> dict[str, list[bytes]]:
    """Returns the frames of each client, without their sizes."""
    return {path.stem: list(cut(path.read_bytes())) for path in sorted(CAPTURES.glob("*.bin"))}


def cut(stream: bytes) -> Iterator[bytes]:
    """Yields the complete frames of a stream."""
    at = 0
    while at + SIZE_BYTES <= len(stream):
        end = at + SIZE_BYTES + int.from_bytes(stream[at : at + SIZE_BYTES], "big")
        if end > len(stream):
            return
        yield stream[at + SIZE_BYTES : end]
        at = end


def joined(frames: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(SIZE_BYTES, "big") + frame for frame in frames)


def key_and_version(frame: bytes) -> tuple[int, int]:
    return int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
