"""Object store in a bucket of S3, GCS or Azure Blob, through obstore. Retries are added by retrying.py.

Each call is one request, without obstore's own retries: otherwise a conflict in `create` could be caused by an earlier
attempt of the same call, and the retry budget would not hold.
"""

import atexit
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import obstore

from lakestream.aio.gather import gather_limited
from lakestream.errors import Misconfigured, Missing
from lakestream.model import Buffer, Span
from lakestream.storage.object_keys import check_key, folder
from lakestream.storage.object_store import Body, ObjectInfo
from lakestream.storage.obstore_errors import FAILURES, StoreCall, translate
from lakestream.storage.range_reads import RangeRead, beyond, check_spans, plan_reads, slice_spans

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig, S3Store

_PAGE_SIZE = 1000
_DELETE_SIZE = 250  # one request holds 1000 keys on S3, 256 on Azure
_CONCURRENT_MAX = 8

_EXIT_WAIT_S = 0.1

T = TypeVar("T")


def client_options(endpoint: str | None) -> "ClientConfig":
    """Client options. Their timeouts are for calls without RetryingStore, whose timeouts are shorter."""
    return {
        "allow_http": endpoint is not None and endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=5),
        "timeout": timedelta(seconds=60),
        "pool_idle_timeout": timedelta(seconds=15),  # shorter than the stores' own idle timeouts
    }


def no_retries() -> "RetryConfig":
    return {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}


@cache
def wait_at_exit() -> None:
    """Delays the exit of the interpreter, to avoid an abort.

    obstore's threads still need the interpreter for a moment after a call has returned. If the interpreter ends then,
    the process aborts (open issue of its async bridge, PyO3/pyo3-async-runtimes 40): up to a third of the runs that
    ended right after a call. Exit handlers run before that.
    """
    atexit.register(time.sleep, _EXIT_WAIT_S)


class RemoteStore:
    def __init__(self, store: "S3Store | GCSStore | AzureStore", name: str) -> None:
        wait_at_exit()
        self._store = store
        self._name = name

    async def put(self, key: str, body: Body) -> None:
        await self._write("put", "overwrite", key, body)

    async def create(self, key: str, body: Body) -> None:
        await self._write("create", "create", key, body)

    async def get(self, key: str) -> Buffer:
        async def read() -> Buffer:
            result = await obstore.get_async(self._store, check_key(key))
            return memoryview(await result.bytes_async())

        return await self._call(StoreCall(self._name, "get", key), read)

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        check_spans(spans)
        if any(span.size == 0 for span in spans):
            await self._check_size(key, spans)  # stores reject requests for empty ranges
        results: list[Buffer] = [b""] * len(spans)
        reads = [read for read in plan_reads(spans) if read.span.size]
        for read, body in zip(reads, await self._read_all(key, reads), strict=True):
            slice_spans(read, body, spans, results)
        return results

    async def head(self, key: str) -> ObjectInfo:
        async def head() -> ObjectInfo:
            return _info(await obstore.head_async(self._store, check_key(key)))

        return await self._call(StoreCall(self._name, "read metadata of", key), head)

    async def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        start = folder(prefix)
        call = StoreCall(self._name, "list", start or "everything")
        pages = obstore.list(self._store, start or None, offset=after or None, chunk_size=_PAGE_SIZE)
        last = after
        while True:
            try:
                metas = await anext(pages)
            except StopAsyncIteration:
                return
            except FAILURES as error:
                raise translate(error, call) from error
            # Filtered again, because one of the servers also returns keys before `after`.
            page = [info for meta in metas if (info := _info(meta)).key > after]
            last = self._check_order(page, last)
            if page:
                yield page

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for first in range(0, len(keys), _DELETE_SIZE):
            await self._delete_keys(list(keys[first : first + _DELETE_SIZE]))

    async def close(self) -> None:
        """Does nothing: obstore closes idle connections."""

    async def _write(self, verb: str, mode: "PutMode", key: str, body: Body) -> None:
        # The format of Arrow's buffers is signed bytes, which obstore rejects.
        buffers = [buffer if isinstance(buffer, bytes) else memoryview(buffer).cast("B") for buffer in body]

        async def send() -> None:
            # One request for any size: parts of an aborted multipart upload would stay in the bucket and cost money.
            await obstore.put_async(self._store, check_key(key), buffers, mode=mode, use_multipart=False)

        await self._call(StoreCall(self._name, verb, key, writes=True), send)

    async def _read_all(self, key: str, reads: Sequence[RangeRead]) -> list[Buffer]:
        if len(reads) == 1:
            return [await self._read(key, reads[0].span)]
        return await gather_limited([self._read(key, read.span) for read in reads], _CONCURRENT_MAX)

    async def _read(self, key: str, span: Span) -> Buffer:
        async def read() -> Buffer:
            return memoryview(
                await obstore.get_range_async(self._store, check_key(key), start=span.start, end=span.end)
            )

        body = await self._call(StoreCall(self._name, f"get bytes [{span.start}, {span.end}) of", key), read)
        if len(body) != span.size:
            raise beyond(key, span, span.start + len(body))
        return body

    async def _check_size(self, key: str, spans: Sequence[Span]) -> None:
        size = (await self.head(key)).size
        for span in spans:
            if span.end > size:
                raise beyond(key, span, size)

    async def _delete_keys(self, keys: list[str]) -> None:
        async def remove() -> None:
            await obstore.delete_async(self._store, keys)

        names = keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1} more"
        try:
            await self._call(StoreCall(self._name, "delete", names), remove)
        except Missing:
            # In stores where a missing key is an error, it hides the results of the other keys: delete each by itself.
            if len(keys) > 1:
                await gather_limited([self._delete_keys([key]) for key in keys], _CONCURRENT_MAX)

    async def _call(self, call: StoreCall, request: Callable[[], Awaitable[T]]) -> T:
        try:
            return await request()
        except FAILURES as error:
            raise translate(error, call) from error

    def _check_order(self, page: Sequence[ObjectInfo], last: str) -> str:
        """Returns the last key. Callers continue after it, so in a store with another order they would skip objects."""
        for info in page:
            if info.key <= last:
                raise Misconfigured(f"{self._name} does not list in order of key ({info.key} after {last})")
            last = info.key
        return last


def _info(meta: "ObjectMeta") -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))
