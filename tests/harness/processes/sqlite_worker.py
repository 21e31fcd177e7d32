"""Process on a shared metadata file, which prints its acknowledged operations.

sqlite_worker.py DATABASE hammer NAME   create keys in competition, count, and hold a session, until killed
sqlite_worker.py DATABASE member NAME   open a session, print "member"; for each line of input print "lost" or "alive"
sqlite_worker.py DATABASE put           for each line of input put a record under /news with the current time
sqlite_worker.py DATABASE watch         print "woken PATH" for every change under /news
"""

import asyncio
import os
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from lakestream.clock import SystemClock
from lakestream.errors import Conflict
from lakestream.metadata.sqlite import SqliteStore
from lakestream.metadata.store import ABSENT, Create, Created, Folder, Key, Put, Stored, put_one

RACE = Folder("/race", "/race")
COUNTERS = [Key(f"/count/{n}", "/count") for n in range(3)]
MEMBERS = Folder("/members", "/members")
NEWS = Folder("/news", "/news")
GUARD = Key("/guard", "/guard")
SESSION_MS = 1_500
RACERS = 8


def emit(*words: object) -> None:
    """Prints a line in one write, so that a kill never leaves a partial line."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def hammer(store: SqliteStore, name: str) -> None:
    session = await store.session(SESSION_MS)
    await store.put([Put(MEMBERS.key(name), b"", ABSENT, session)])
    last = await store.floor(RACE, "~")
    start = int(last.name) + 1 if last else 0
    async with asyncio.TaskGroup() as tasks:
        for sequence in range(RACERS):
            tasks.create_task(race(store, name, start, sequence))
        for key in COUNTERS:
            tasks.create_task(count(store, key))


async def race(store: SqliteStore, name: str, start: int, sequence: int) -> None:
    """Creates the keys of one sequence in order. All processes try every key, so they conflict, but leave no gap."""
    number = start - start % RACERS + sequence
    while True:
        key = RACE.key(f"{number:020d}")
        (result,) = await store.create([Create(key, name.encode(), GUARD)])
        if isinstance(result, Created):
            emit("created", key.path, result.version)
        elif not isinstance(result, Conflict):
            raise result
        number += RACERS


async def count(store: SqliteStore, key: Key) -> None:
    while True:
        stored = await store.get(key)
        value = str(int(stored.value) + 1 if stored else 1).encode()
        (result,) = await store.put([Put(key, value, stored.version if stored else ABSENT)])
        if isinstance(result, Stored):
            emit("counted", key.path)
        elif not isinstance(result, Conflict):
            raise result


async def member(store: SqliteStore, name: str) -> None:
    session = await store.session(SESSION_MS)
    await store.put([Put(MEMBERS.key(name), b"", ABSENT, session)])
    emit("member")
    async for _ in lines():
        emit("lost" if session.lost else "alive")


async def put(store: SqliteStore) -> None:
    emit("ready")
    async for line in lines():
        await put_one(store, NEWS.key(line), str(time.monotonic_ns()).encode())
        emit("put", line)


async def watch(store: SqliteStore) -> None:
    async for changes in store.watch(NEWS.path):
        if changes.everything:
            emit("everything")
        for path in changes.paths:
            emit("woken", path)


async def lines() -> AsyncIterator[str]:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    try:
        async for line in reader:
            yield line.decode().strip()
    finally:
        transport.close()


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SqliteStore]:
    store = await SqliteStore.open(path, SystemClock())
    try:
        yield store
    finally:
        await store.close()


def exit_with(parent: int) -> None:
    """Exits when the parent process has ended."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


async def main(database: str, command: str, *names: str) -> None:
    threading.Thread(target=exit_with, args=(os.getppid(),), daemon=True).start()
    async with opened(Path(database)) as store:
        match command:
            case "hammer":
                await hammer(store, *names)
            case "member":
                await member(store, *names)
            case "put":
                await put(store)
            case "watch":
                await watch(store)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
