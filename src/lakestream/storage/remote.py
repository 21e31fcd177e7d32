"""Buckets: S3, GCS and Azure Blob, over obstore. Opened by opening.py; retries are added by retrying.py.

One call here is one request, never repeated by obstore itself: only then does a refused `create` surely mean that
somebody else has the key, and only then does the retry budget hold.
"""

import atexit
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import obstore

from lakestream.errors import Misconfigured, Missing
from lakestream.model import Buffer, Span
from lakestream.storage.names import check_key, folder
from lakestream.storage.object_store import Body, ObjectInfo
from lakestream.storage.ranges import Read, beyond, check_spans, cut, plan_reads
from lakestream.storage.remote_errors import FAILURES, Call, translate
from lakestream.storage.together import together

if TYPE_CHECKING:
    from obstore import ObjectMeta, PutMode
    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig, S3Store

_PAGE_SIZE = 1000
_DELETE_SIZE = 250  # one request holds 1000 keys on S3, 256 on Azure
_AT_ONCE_MAX = 8

_EXIT_WAIT_S = 0.1

T = TypeVar("T")


def client_options(endpoint: str | None) -> "ClientConfig":
    """The time-outs are the last resort of a call that nobody else bounds; Retrying has shorter ones."""
    return {
        "allow_http": endpoint is not None and endpoint.startswith("http://"),
        "connect_timeout": timedelta(seconds=5),
        "timeout": timedelta(seconds=60),
        "pool_idle_timeout": timedelta(seconds=15),  # below what stores close idle connections at
    }


def no_retries() -> "RetryConfig":
    return {"max_retries": 0, "retry_timeout": timedelta(seconds=60)}


@cache
def wait_at_exit() -> None:
    """A worker thread of obstore still needs the interpreter for a moment after its call was answered. When the
    interpreter ends in that moment the process aborts (an open issue of its async bridge, PyO3/pyo3-async-runtimes 40):
    seen in up to a third of the runs that ended right after a call. Exit handlers run before that, so one can wait."""
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

        return await self._asked(Call(self._name, "get", key), read)

    async def get_ranges(self, key: str, spans: Sequence[Span]) -> list[Buffer]:
        check_spans(spans)
        if any(span.size == 0 for span in spans):
            await self._check_inside(key, spans)  # stores refuse to be asked for no bytes
        answers: list[Buffer] = [b""] * len(spans)
        reads = [read for read in plan_reads(spans) if read.span.size]
        for read, body in zip(reads, await self._read_all(key, reads), strict=True):
            cut(read, body, spans, answers)
        return answers

    async def head(self, key: str) -> ObjectInfo:
        async def look() -> ObjectInfo:
            return _info(await obstore.head_async(self._store, check_key(key)))

        return await self._asked(Call(self._name, "look at", key), look)

    async def walk(self, prefix: str, after: str = "") -> AsyncIterator[list[ObjectInfo]]:
        start = folder(prefix)
        call = Call(self._name, "list", start or "everything")
        pages = obstore.list(self._store, start or None, offset=after or None, chunk_size=_PAGE_SIZE)
        last = after
        while True:
            try:
                metas = await anext(pages)
            except StopAsyncIteration:
                return
            except FAILURES as error:
                raise translate(error, call) from error
            # Asked for again here: one of the servers sends what lies before `after` too.
            page = [found for meta in metas if (found := _info(meta)).key > after]
            last = self._check_order(page, last)
            if page:
                yield page

    async def delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            check_key(key)
        for first in range(0, len(keys), _DELETE_SIZE):
            await self._delete_some(list(keys[first : first + _DELETE_SIZE]))

    async def close(self) -> None:
        """Connections belong to obstore, which closes idle ones by itself."""

    async def _write(self, verb: str, mode: "PutMode", key: str, body: Body) -> None:
        # Arrow calls its bytes signed ones, which obstore refuses.
        buffers = [one if isinstance(one, bytes) else memoryview(one).cast("B") for one in body]

        async def send() -> None:
            # One request, whatever the size: parts of an upload that broke off would stay in the bucket and cost.
            await obstore.put_async(self._store, check_key(key), buffers, mode=mode, use_multipart=False)

        await self._asked(Call(self._name, verb, key, writes=True), send)

    async def _read_all(self, key: str, reads: Sequence[Read]) -> list[Buffer]:
        if len(reads) == 1:
            return [await self._read(key, reads[0].span)]
        return await together([self._read(key, read.span) for read in reads], _AT_ONCE_MAX)

    async def _read(self, key: str, span: Span) -> Buffer:
        async def read() -> Buffer:
            return memoryview(
                await obstore.get_range_async(self._store, check_key(key), start=span.start, end=span.end)
            )

        body = await self._asked(Call(self._name, f"get bytes [{span.start}, {span.end}) of", key), read)
        if len(body) != span.size:
            raise beyond(key, span, span.start + len(body))
        return body

    async def _check_inside(self, key: str, spans: Sequence[Span]) -> None:
        size = (await self.head(key)).size
        for span in spans:
            if span.end > size:
                raise beyond(key, span, size)

    async def _delete_some(self, keys: list[str]) -> None:
        try:
            await self._asked_to_delete(keys)
        except Missing:
            # Where a missing key is an error it hides what became of the others, so ask for each alone.
            if len(keys) > 1:
                await together([self._delete_some([key]) for key in keys], _AT_ONCE_MAX)

    async def _asked_to_delete(self, keys: list[str]) -> None:
        async def remove() -> None:
            await obstore.delete_async(self._store, keys)

        named = keys[0] if len(keys) == 1 else f"{keys[0]} and {len(keys) - 1} more"
        await self._asked(Call(self._name, "delete", named), remove)

    async def _asked(self, call: Call, request: Callable[[], Awaitable[T]]) -> T:
        try:
            return await request()
        except FAILURES as error:
            raise translate(error, call) from error

    def _check_order(self, page: Sequence[ObjectInfo], last: str) -> str:
        """Readers go on from the last key they saw: a store that lists in another order would make them skip some."""
        for found in page:
            if found.key <= last:
                raise Misconfigured(f"{self._name} does not list in order of key ({found.key} after {last})")
            last = found.key
        return last


def _info(meta: "ObjectMeta") -> ObjectInfo:
    return ObjectInfo(meta["path"], meta["size"], int(meta["last_modified"].timestamp() * 1000))
