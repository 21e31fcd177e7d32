"""Main loop of a worker process: reads requests from stdin and writes a response to each. See worker_process.py."""

import os
import resource
import select
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import BinaryIO, Final

LENGTH: Final = struct.Struct("<I")
"""Prefix of every request and every response."""
OUT_OF_MEMORY: Final = 12
"""Exit code of a worker that a request made run out of memory."""


def serve(handle: Callable[[bytes], bytes], memory_max: int, idle_s_max: float | None = None) -> None:
    """Handles requests until stdin ends, or no request arrives within `idle_s_max`. A MemoryError that `handle` raises
    ends the process."""
    # Both signals reach the whole process group; the broker closes stdin when it no longer needs the worker.
    for ignored in (signal.SIGINT, signal.SIGTERM):
        signal.signal(ignored, signal.SIG_IGN)
    for resource_type, limit in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, memory_max)):
        try:
            resource.setrlimit(resource_type, (limit, limit))
        except (OSError, ValueError):
            continue  # the system has no such limit, or a lower one
    try:
        handle_requests(sys.stdin.buffer, sys.stdout.buffer, handle, float(sys.argv[1]), idle_s_max)
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    with suppress(KeyError, OSError):
        os.rmdir(os.environ["TMPDIR"])  # private to this process, and empty: a killed broker does not remove it


def handle_requests(
    requests: BinaryIO,
    responses: BinaryIO,
    handle: Callable[[bytes], bytes],
    cpu_s_max: float = 0.0,
    idle_s_max: float | None = None,
) -> None:
    """Handles requests until the input ends, or none arrives within `idle_s_max`.

    `cpu_s_max` is the CPU time for one request, after which the kernel ends the process. 0 means no limit.
    """
    while _arrives(requests, idle_s_max) and len(head := requests.read(LENGTH.size)) == LENGTH.size:
        size = LENGTH.unpack(head)[0]
        request = requests.read(size)
        if len(request) < size:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_s_max)  # SIGPROF has no handler, so it ends the process
        response = handle(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        responses.write(LENGTH.pack(len(response)) + response)
        responses.flush()
        del request, response  # they may be large, and the process idle


def _arrives(requests: BinaryIO, wait_s: float | None) -> bool:
    """Returns whether a request, or the end of the input, arrives in time. None of it is buffered: the broker sends a
    request after it has received the last response."""
    return wait_s is None or bool(select.select([requests], [], [], wait_s)[0])
