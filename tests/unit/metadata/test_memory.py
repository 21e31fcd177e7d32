"""What the in-memory store has beyond the contract: clients that fall silent, on virtual time."""

import asyncio

from lakestream.errors import Missing
from lakestream.metadata.memory import MemoryServer
from lakestream.metadata.store import Key, Put
from lakestream.testing.simulation import SimLoop, simulate


class LoopClock:
    def now_ms(self) -> int:
        return int(asyncio.get_running_loop().time() * 1000)


KEY = Key("/members/a", "/members")


def test_a_silent_clients_session_expires_in_virtual_time() -> None:
    async def scenario(loop: SimLoop) -> None:
        server = MemoryServer(LoopClock())
        doomed, witness = server.client(), server.client()
        session = await doomed.session(30_000)
        await doomed.put([Put(KEY, b"", session=session)])
        await asyncio.sleep(3600)
        assert not session.lost
        doomed.silence()
        await asyncio.sleep(29)
        assert await witness.get(KEY) is not None
        await asyncio.sleep(2)
        assert await witness.get(KEY) is None
        assert session.lost
        doomed.speak()
        (answer,) = await doomed.put([Put(KEY, b"zombie", session=session)])
        assert isinstance(answer, Missing)

    simulate(1, scenario)


def test_a_client_that_speaks_in_time_keeps_its_session() -> None:
    async def scenario(loop: SimLoop) -> None:
        client = MemoryServer(LoopClock()).client()
        session = await client.session(30_000)
        client.silence()
        await asyncio.sleep(29)
        client.speak()
        await asyncio.sleep(3600)
        assert not session.lost

    simulate(1, scenario)


def test_a_session_opened_in_silence_expires_too() -> None:
    async def scenario(loop: SimLoop) -> None:
        client = MemoryServer(LoopClock()).client()
        client.silence()
        session = await client.session(30_000)
        async with asyncio.timeout(31):
            await session.wait_lost()

    simulate(1, scenario)
