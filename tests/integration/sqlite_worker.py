"""A process of its own on a shared metadata file; says on stdout what was acknowledged.

sqlite_worker.py DATABASE hammer NAME   race for keys, count, and be a member, until killed
sqlite_worker.py DATABASE member NAME   open a session, say "member"; on each line of input say whether it is lost
sqlite_worker.py DATABASE put           on each line of input put it under /news, its value the time just before
sqlite_worker.py DATABASE watch         say "woken PATH" for every change under /news
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


def say(*words: object) -> None:
    """In one write, so that a kill never leaves half a line that looks whole."""
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def hammer(store: SqliteStore, name: str) -> None:
    session = await store.session(SESSION_MS)
    await store.put([Put(MEMBERS.key(name), b"", ABSENT, session)])
    last = await store.floor(RACE, "~")
    start = int(last.name) + 1 if last else 0
    async with asyncio.TaskGroup() as tasks:
        for lane in range(RACERS):
            tasks.create_task(race(store, name, start, lane))
        for key in COUNTERS:
            tasks.create_task(count(store, key))


async def race(store: SqliteStore, name: str, start: int, lane: int) -> None:
    """Every process tries every key of the lane, so all meet on it; nobody leaves a gap."""
    number = start - start % RACERS + lane
    while True:
        key = RACE.key(f"{number:020d}")
        (answer,) = await store.create([Create(key, name.encode(), GUARD)])
        if isinstance(answer, Created):
            say("created", key.path, answer.version)
        elif not isinstance(answer, Conflict):
            raise answer
        number += RACERS


async def count(store: SqliteStore, key: Key) -> None:
    while True:
        there = await store.get(key)
        value = str(int(there.value) + 1 if there else 1).encode()
        (answer,) = await store.put([Put(key, value, there.version if there else ABSENT)])
        if isinstance(answer, Stored):
            say("counted", key.path)
        elif not isinstance(answer, Conflict):
            raise answer


async def member(store: SqliteStore, name: str) -> None:
    session = await store.session(SESSION_MS)
    await store.put([Put(MEMBERS.key(name), b"", ABSENT, session)])
    say("member")
    async for _ in lines():
        say("lost" if session.lost else "alive")


async def put(store: SqliteStore) -> None:
    say("ready")
    async for line in lines():
        await put_one(store, NEWS.key(line), str(time.monotonic_ns()).encode())
        say("put", line)


async def watch(store: SqliteStore) -> None:
    async for changes in store.watch(NEWS.path):
        if changes.everything:
            say("everything")
        for path in changes.paths:
            say("woken", path)


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


def end_with(parent: int) -> None:
    """Nothing is left behind when the tests are killed."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


async def main(database: str, what: str, *names: str) -> None:
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    async with opened(Path(database)) as store:
        match what:
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
