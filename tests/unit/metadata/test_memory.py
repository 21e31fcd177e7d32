"""The in-memory store beyond the contract: sessions of clients that send no heartbeats, on virtual time."""

import asyncio

from lakestream.errors import Missing
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.store import Key, Put
from lakestream.testing.simulation import SimLoop, simulate


class LoopClock:
    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)


KEY = Key("/members/a", "/members")


def test_session_of_a_silent_client_expires() -> None:
    async def scenario(loop: SimLoop) -> None:
        server = MemoryServer(LoopClock())
        silent, other = server.client(), server.client()
        session = await silent.session(30_000)
        await silent.put([Put(KEY, b"", session=session)])
        await asyncio.sleep(3600)
        assert not session.lost
        silent.silence()
        await asyncio.sleep(29)
        assert await other.get(KEY) is not None
        await asyncio.sleep(2)
        assert await other.get(KEY) is None
        assert session.lost
        silent.resume()
        (result,) = await silent.put([Put(KEY, b"zombie", session=session)])
        assert isinstance(result, Missing)

    simulate(1, scenario)


def test_session_survives_when_the_client_resumes_in_time() -> None:
    async def scenario(loop: SimLoop) -> None:
        client = MemoryServer(LoopClock()).client()
        session = await client.session(30_000)
        client.silence()
        await asyncio.sleep(29)
        client.resume()
        await asyncio.sleep(3600)
        assert not session.lost

    simulate(1, scenario)


def test_session_opened_by_a_silent_client_expires() -> None:
    async def scenario(loop: SimLoop) -> None:
        client = MemoryServer(LoopClock()).client()
        client.silence()
        session = await client.session(30_000)
        async with asyncio.timeout(31):
            await session.wait_lost()

    simulate(1, scenario)
