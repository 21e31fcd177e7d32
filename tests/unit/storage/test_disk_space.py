import asyncio
import threading
from pathlib import Path

import pytest

from lakestream.errors import Unavailable
from lakestream.storage.disk_space import FREE_BYTES_MIN, DiskSpace

FULL, FREE = Path("/full"), Path("/free")


async def test_a_full_disk_is_named() -> None:
    sizes = {FREE: FREE_BYTES_MIN, FULL: FREE_BYTES_MIN - 1}
    space = DiskSpace([FREE, FULL], sizes.__getitem__)
    with pytest.raises(Unavailable, match="disk full: /full has 8,191 KiB free"):
        await space.check()
    sizes[FULL] = FREE_BYTES_MIN
    await space.check()
    space.close()


async def test_a_disk_that_does_not_respond_occupies_one_call(tmp_path: Path) -> None:
    waiting, calls = threading.Event(), []

    def hang(folder: Path) -> int:
        calls.append(folder)
        waiting.wait(30)
        return FREE_BYTES_MIN

    space = DiskSpace([tmp_path], hang)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(space.check(), 0.01)
    waiting.set()
    await space.check()
    assert len(calls) <= 2, "the first one, and one after it"
    space.close()
