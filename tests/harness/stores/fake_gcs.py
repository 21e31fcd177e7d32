"""Fake of Google Cloud Storage: the part of its XML API that Lakestream uses, in memory, over HTTP.

It tests the requests of obstore for a `gs://` store (paths, ranges, generation preconditions, listing with
continuation, deletes) and the error kinds of their responses. It does not test the behaviour of Google: credentials,
signatures, quotas, redirects, consistency and multipart uploads are missing, and its rules are taken from Google's
documentation, not from a real bucket.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import gmtime, strftime, time
from typing import ClassVar, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Stored(NamedTuple):
    body: bytes
    generation: int
    modified: int

    @property
    def etag(self) -> str:
        return f'"{self.generation:x}"'


@dataclass
class Bucket:
    objects: dict[str, Stored] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    generation: int = 1000


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    buckets: ClassVar[dict[str, Bucket]]

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        target = self._find()
        if target is None:
            return
        bucket, key = target
        expected = self.headers.get("x-goog-if-generation-match")
        with bucket.lock:
            existing = bucket.objects.get(key)
            if expected is not None and int(expected) != (existing.generation if existing else 0):
                return self._fail(412, "PreconditionFailed", "At least one of the pre-conditions did not hold.")
            bucket.generation += 1
            stored = bucket.objects[key] = Stored(body, bucket.generation, int(time()))
        self._respond(200, b"", {"ETag": stored.etag, "x-goog-generation": str(stored.generation)})

    def do_GET(self) -> None:
        self._get(with_body=True)

    def do_HEAD(self) -> None:
        self._get(with_body=False)

    def do_DELETE(self) -> None:
        target = self._find()
        if target is None:
            return
        bucket, key = target
        with bucket.lock:
            deleted = bucket.objects.pop(key, None)
        if deleted is None:
            return self._fail(404, "NoSuchKey", "The specified key does not exist.")
        self._respond(204, b"", {})

    def _get(self, *, with_body: bool) -> None:
        target = self._find()
        if target is None:
            return
        bucket, key = target
        if not key:
            return self._list(bucket)
        with bucket.lock:
            stored = bucket.objects.get(key)
        if stored is None:
            return self._fail(404, "NoSuchKey", "The specified key does not exist.")
        headers = {"ETag": stored.etag, "x-goog-generation": str(stored.generation), "Accept-Ranges": "bytes"}
        headers["Last-Modified"] = formatdate(stored.modified, usegmt=True)
        size, requested = len(stored.body), self.headers.get("Range")
        if requested is None:
            return self._respond(200, stored.body, headers, with_body=with_body)
        first, _, last = requested.removeprefix("bytes=").partition("-")
        start, end = int(first), min(int(last) + 1 if last else size, size)
        if start >= size:
            return self._fail(416, "InvalidRange", "The requested range cannot be satisfied.")
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self._respond(206, stored.body[start:end], headers, with_body=with_body)

    def _list(self, bucket: Bucket) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        after = max(query.get("continuation-token", ""), query.get("start-after", ""))
        with bucket.lock:
            keys = sorted(key for key in bucket.objects if key.startswith(query.get("prefix", "")) and key > after)
            page = [(key, bucket.objects[key]) for key in keys[: int(query.get("max-keys", 1000))]]
        more = len(page) < len(keys)
        token = f"<NextContinuationToken>{escape(page[-1][0])}</NextContinuationToken>" if more else ""
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>{_iso(stored.modified)}</LastModified>"
            f"<ETag>{escape(stored.etag)}</ETag><Size>{len(stored.body)}</Size></Contents>"
            for key, stored in page
        )
        body = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{contents}{token}</ListBucketResult>"
        self._respond(200, body.encode(), {"Content-Type": "application/xml"})

    def _find(self) -> tuple[Bucket, str] | None:
        name, _, key = unquote(urlsplit(self.path).path).removeprefix("/").partition("/")
        bucket = self.buckets.get(name)
        if bucket is None:
            self._fail(404, "NoSuchBucket", "The specified bucket does not exist.")
            return None
        return bucket, key

    def _fail(self, status: int, code: str, message: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{message}</Message></Error>"
        self._respond(status, body.encode(), {"Content-Type": "application/xml"})

    def _respond(self, status: int, body: bytes, headers: dict[str, str], *, with_body: bool = True) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body and self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: requests would fill the output of the tests."""


class FakeGcsServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024
    """Length of the queue of connections that are not accepted yet. With the default of 5, a hundred concurrent calls
    on a busy machine waited for half a minute and failed."""


def _iso(seconds: int) -> str:
    return strftime("%Y-%m-%dT%H:%M:%S.000Z", gmtime(seconds))


@contextmanager
def fake_gcs(*buckets: str) -> Iterator[str]:
    """Runs the server; yields its endpoint, for GOOGLE_BASE_URL."""
    handler = type("Handler", (_Handler,), {"buckets": {name: Bucket() for name in buckets}})
    with FakeGcsServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, name="fake-gcs")
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
