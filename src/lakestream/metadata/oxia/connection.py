"""Connection to an Oxia server. Every call has a deadline, and every failure is raised as `CallFailed`.

Below: gRPC.  Above: shards.py, writes.py, reads.py, sessions.py, notifications.py.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import grpc
import grpc.aio

from lakestream.metadata.oxia.errors import CallFailed, Effect, call_failed
from lakestream.metadata.oxia.proto import oxia_pb2 as pb

_SERVICE = "/io.streamnative.oxia.proto.OxiaClient/"
_OPTIONS: Sequence[tuple[str, int]] = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    # This client decides which calls may be retried, not the library.
    ("grpc.enable_retries", 0),
    # Streams of a machine that vanished end within 15 s. Oxia allows one ping every 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    # Channels of one process do not share connections, so closing a store closes only its own connections.
    ("grpc.use_local_subchannel_pool", 1),
)


class OxiaNode:
    def __init__(self, address: str) -> None:
        self.address = address
        self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        self._write = self._unary("Write", pb.WriteResponse)
        self._create_session = self._unary("CreateSession", pb.CreateSessionResponse)
        self._keep_alive = self._unary("KeepAlive", pb.KeepAliveResponse)
        self._close_session = self._unary("CloseSession", pb.CloseSessionResponse)
        self._read = self._stream("Read", pb.ReadResponse)
        self._range_scan = self._stream("RangeScan", pb.RangeScanResponse)
        self._assignments = self._stream("GetShardAssignments", pb.ShardAssignments)
        self._notifications = self._stream("GetNotifications", pb.NotificationBatch)

    async def write(self, request: pb.WriteRequest, timeout_s: float) -> pb.WriteResponse:
        assert request.HasField("shard"), "a write without a shard kills the server"
        response: pb.WriteResponse = await self._call(self._write, request, timeout_s)
        counts = (len(response.puts), len(response.deletes))
        if counts != (len(request.puts), len(request.deletes)):
            raise CallFailed(Effect.UNKNOWN, f"{self.address}: returned {counts} results for another number of writes")
        return response

    async def read(self, shard: int, gets: Sequence[pb.GetRequest], timeout_s: float) -> list[pb.GetResponse]:
        request = pb.ReadRequest(shard=shard, gets=gets)
        responses = [get async for message in self._messages(self._read, request, timeout_s) for get in message.gets]
        if len(responses) != len(gets):
            raise CallFailed(Effect.NONE, f"{self.address}: returned {len(responses)} of {len(gets)} reads")
        return responses

    async def scan(self, shard: int, start: str, end: str, limit: int | None, timeout_s: float) -> list[pb.GetResponse]:
        """Returns the records of a range. `timeout_s` is for each message of the response: scans may be long."""
        request = pb.RangeScanRequest(shard=shard, start_inclusive=start, end_exclusive=end)
        records: list[pb.GetResponse] = []
        async with aclosing(self._messages(self._range_scan, request, timeout_s)) as messages:
            async for message in messages:
                records.extend(message.records)
                if limit is not None and len(records) >= limit:
                    break
        return records[:limit]

    def assignments(self, namespace: str, timeout_s: float) -> AsyncGenerator[pb.ShardAssignments, None]:
        """Yields the assignments without end. Only the first message has the timeout."""
        request = pb.ShardAssignmentsRequest(namespace=namespace)
        return self._messages(self._assignments, request, timeout_s, first_only=True)

    def notifications(
        self, shard: int, offset_exclusive: int | None, timeout_s: float | None
    ) -> AsyncGenerator[pb.NotificationBatch, None]:
        """Yields notifications without end. Only the first message has the timeout.

        Without an offset, the first message has only the current offset.
        """
        request = pb.NotificationsRequest(shard=shard, start_offset_exclusive=offset_exclusive)
        return self._messages(self._notifications, request, timeout_s, first_only=True)

    async def create_session(self, shard: int, timeout_ms: int, identity: str, timeout_s: float) -> int:
        request = pb.CreateSessionRequest(shard=shard, session_timeout_ms=timeout_ms, client_identity=identity)
        response: pb.CreateSessionResponse = await self._call(self._create_session, request, timeout_s)
        return response.session_id

    async def keep_alive(self, shard: int, session_id: int, timeout_s: float) -> None:
        await self._call(self._keep_alive, pb.SessionHeartbeat(shard=shard, session_id=session_id), timeout_s)

    async def close_session(self, shard: int, session_id: int, timeout_s: float) -> None:
        await self._call(self._close_session, pb.CloseSessionRequest(shard=shard, session_id=session_id), timeout_s)

    async def close(self) -> None:
        await self._channel.close(None)

    def _unary(self, method: str, response: Any) -> Any:
        return self._channel.unary_unary(
            _SERVICE + method,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response.FromString,
        )

    def _stream(self, method: str, response: Any) -> Any:
        return self._channel.unary_stream(
            _SERVICE + method,
            request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=response.FromString,
        )

    async def _call(self, method: Any, request: Any, timeout_s: float) -> Any:
        try:
            return await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise call_failed(self.address, error) from None

    async def _messages(
        self, method: Any, request: Any, timeout_s: float | None, *, first_only: bool = False
    ) -> AsyncGenerator[Any, None]:
        """Yields the messages of a stream. The timeout is for each message, or only for the first."""
        call = method(request)
        try:
            while True:
                async with asyncio.timeout(timeout_s):
                    message = await call.read()
                if message is grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
                    return
                if first_only:
                    timeout_s = None
                yield message
        except grpc.aio.AioRpcError as error:
            raise call_failed(self.address, error) from None
        except TimeoutError:
            raise CallFailed(Effect.UNKNOWN, f"{self.address}: no response for {timeout_s} s") from None
        finally:
            call.cancel()


class OxiaNodes:
    """Connections by address. There are few servers, so connections are only closed with the store."""

    def __init__(self) -> None:
        self._nodes: dict[str, OxiaNode] = {}

    def __getitem__(self, address: str) -> OxiaNode:
        node = self._nodes.get(address)
        if node is None:
            node = self._nodes[address] = OxiaNode(address)
        return node

    async def close(self) -> None:
        for node in self._nodes.values():
            await node.close()
