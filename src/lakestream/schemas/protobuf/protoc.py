"""Runs protoc in a process of its own, so that no schema can crash, block or fill the memory of the calling process.

Before: imports.py.  After: schema.py, which builds descriptors of the output. A call takes about 0.1 s and blocks: do
not call it in an event loop. The input files are in a temporary folder; protoc rejects paths outside of it.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc_tools  # type: ignore[import-untyped]
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from lakestream.errors import Rejected, Unavailable

_SECONDS_MAX: Final = 10
_CPU_SECONDS_MAX: Final = 2
_MEMORY_MAX: Final = 2 << 30
_OUTPUT_MAX: Final = 16 << 20
_ERROR_MAX: Final = 64 << 10

_INCLUDED: Final = Path(grpc_tools.__file__).parent / "_proto"

_INHERITED: Final = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""Environment variables that Python may need to start."""

_NOISE: Final = re.compile(r"warning:|^WARNING: |^[IWEF]\d{4} ")
"""Lines that are not errors: warnings, and log lines of protoc's libraries."""

_CHILD: Final = """
import resource, sys
cpu, memory, output = (int(limit) for limit in sys.argv[1:4])
from grpc_tools import _protoc_compiler
for limit, most in (("CORE", 0), ("CPU", cpu), ("FSIZE", output), ("AS", memory)):
    try:
        resource.setrlimit(getattr(resource, "RLIMIT_" + limit), (most, most))
    except (OSError, ValueError):
        pass  # The system does not support this limit, or has a lower one.
sys.exit(_protoc_compiler.run_main([argument.encode() for argument in ["protoc", *sys.argv[4:]]]))
"""


def compile_files(
    texts: Mapping[str, str], descriptors: Sequence[FileDescriptorProto], names: Sequence[str]
) -> list[FileDescriptorProto]:
    """Returns the files of these names and their imports, each after its imports. Rejected, with protoc's message, if
    they do not compile."""
    with tempfile.TemporaryDirectory(prefix="lakestream-protoc-") as folder:
        home = Path(folder)
        sources = home / "sources"
        _write(sources, texts)
        (home / "ready").write_bytes(FileDescriptorSet(file=descriptors).SerializeToString())
        _run(home, [f"-I{sources}", f"-I{_INCLUDED}", f"--descriptor_set_in={home / 'ready'}", *names])
        try:
            return list(FileDescriptorSet.FromString((home / "out").read_bytes()).file)
        except DecodeError as error:
            raise Rejected(f"the compiled Protobuf schema cannot be read: {error}") from error


def _write(sources: Path, texts: Mapping[str, str]) -> None:
    sources.mkdir()
    for name, text in texts.items():
        path = sources / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
        except OSError as error:
            raise Rejected(f"the Protobuf file name {name!r} cannot be used: {error.strerror}") from error


def _run(home: Path, arguments: list[str]) -> None:
    limits = (_CPU_SECONDS_MAX, _MEMORY_MAX, _OUTPUT_MAX)
    command = [sys.executable, "-I", "-c", _CHILD, *map(str, limits)]
    command += ["--include_imports", f"--descriptor_set_out={home / 'out'}", *arguments]
    with (home / "errors").open("wb") as errors:
        try:
            ended = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                cwd=home,
                env={name: os.environ[name] for name in _INHERITED if name in os.environ},
                timeout=_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Rejected(f"the Protobuf schema does not compile within {_SECONDS_MAX} s: make it smaller") from error
        except OSError as error:
            raise Unavailable(f"protoc cannot be started: {error}") from error
    if ended.returncode:
        with (home / "errors").open("rb") as errors_file:
            output = errors_file.read(_ERROR_MAX).decode("utf-8", "replace")
        lines = output.replace(f"{home / 'sources'}/", "").splitlines()
        if any(line.startswith("Traceback") for line in lines):
            raise Unavailable(f"protoc cannot be started: {lines[-1]}")
        raise Rejected(_error_message(lines, ended.returncode))


def _error_message(lines: list[str], code: int) -> str:
    """Returns the first error of protoc. Later ones are often a consequence of it."""
    for line in lines:
        if line.strip() and not _NOISE.search(line):
            return f"the Protobuf schema does not compile: {line.strip()[:500]}"
    return (
        f"the Protobuf schema does not compile: protoc exited with code {code} without a message, probably at a limit:"
        " make the schema smaller"
    )
