"""Python functions as machine code (numba), kept on disk between processes.

Kernels have their signature written out and are compiled, or loaded, when their module is imported: what is wrong shows
then, and no call ever waits for a compiler. So import modules that have kernels late, and away from an event loop.

Compiling takes seconds, loading milliseconds. The results lie in `NUMBA_CACHE_DIR`, else in `LAKESTREAM_CACHE`, else in
the user's cache folder, in a folder of their own for every state of their file and of this one, which is all that
kernels may share: numba by itself looks only at the file that a kernel stands in, and can pair a new index with an old
result while two versions start at once. Where nothing can be kept (a file system that is only for reading) or what was
kept is damaged, every process compiles for itself.

Kernels get memory as addresses. That way it does not matter who owns the bytes, whether they may be written, or how
many buffers there are; and each kernel has to say itself how far it may read.
"""

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar, cast

import llvmlite.ir  # type: ignore[import-untyped]
import numba
import numba.core.cgutils
import numba.extending
import numpy as np
from numpy.typing import NDArray

# numba says that it has types, but has few: what is used of it is left unchecked.
_config, _types, _cgutils = cast(Any, numba.config), cast(Any, numba.types), cast(Any, numba.core.cgutils)
_intrinsic: Any = numba.extending.intrinsic
_carray: Any = cast(Any, numba).carray
_BYTE, _WORD, _DOUBLE_WORD = (cast(Any, llvmlite.ir).IntType(size) for size in (8, 64, 128))

_log = logging.getLogger(__name__)

Longs: TypeAlias = NDArray[np.int64]
Array: TypeAlias = NDArray[Any]
"""Of the element type that the kernel's signature says, without gaps."""
Long: TypeAlias = Any
"""A number inside a kernel, 64 bits, signed: wraps around where an int of Python grows."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(signature: str) -> Callable[[_Function], _Function]:
    """Compiled when its module is imported, called without Python's lock."""

    def compiled(function: _Function) -> _Function:
        if _FOLDER is not None:
            try:
                return _kept(signature, function, _FOLDER)
            except Exception as error:  # Whatever is wrong with what is kept, the code itself still compiles.
                _log.warning("kernel %s is compiled for this process only: %s", function.__name__, error)
        return cast(_Function, numba.njit(signature, nogil=True)(function))

    return compiled


def inlined(function: _Function) -> _Function:
    """A part of kernels, compiled into each."""
    return cast(_Function, numba.njit(nogil=True)(function))


def _kept(signature: str, function: _Function, folder: Path) -> _Function:
    """numba reads the folder's name when a function is given to it; others in the process keep their own."""
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder / _state_of(function.__code__.co_filename))
    try:
        return cast(_Function, numba.njit(signature, nogil=True, cache=True)(function))
    finally:
        _config.CACHE_DIR = before


def _folder() -> Path | None:
    """None: it cannot be written. numba would look for another place, and mix up states of the sources there."""
    folder = _chosen_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        _log.warning("kernels are compiled for this process only (set NUMBA_CACHE_DIR to a folder): %s", error)
        return None
    return folder


def _chosen_folder() -> Path:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if not chosen:
        cache = os.environ.get("LAKESTREAM_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "lakestream")
        chosen = os.path.join(os.path.expanduser(cache), "kernels")
    return Path(chosen)


def _state_of(source: str) -> str:
    return hashlib.sha256(Path(__file__).read_bytes() + Path(source).read_bytes()).hexdigest()[:16]


_FOLDER: Final = _folder()
_HIGH_BITS: Final = np.uint64(0x8080_8080_8080_8080)


@_intrinsic  # type: ignore[untyped-decorator]
def _pointer(_typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return _types.CPointer(_types.uint8)(_types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def _copy(_typing: Any, target: Any, source: Any, size: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pointer = context.get_value_type(_types.CPointer(_types.uint8))
        to, from_ = (builder.inttoptr(address, pointer) for address in arguments[:2])
        _cgutils.raw_memcpy(builder, to, from_, arguments[2], 1)
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.int64, _types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def byte_at(_typing: Any, address: Any) -> Any:
    """The byte at an address, as a number of 64 bits. Nothing is checked here, nor in those below."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _BYTE.as_pointer())
        return builder.zext(builder.load(pointer), _WORD)

    return _types.int64(_types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def word_at(_typing: Any, address: Any) -> Any:
    """The eight bytes at an address, the first one lowest."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.load(builder.inttoptr(arguments[0], _WORD.as_pointer()), align=1)

    return _types.uint64(_types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def put_byte(_typing: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _BYTE.as_pointer())
        builder.store(builder.trunc(arguments[1], _BYTE), pointer)
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def put_word(_typing: Any, address: Any, value: Any) -> Any:
    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        builder.store(arguments[1], builder.inttoptr(arguments[0], _WORD.as_pointer()), align=1)
        return context.get_dummy_value()

    return _types.void(_types.int64, _types.uint64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def high_product(_typing: Any, one: Any, other: Any) -> Any:
    """The upper 64 of the 128 bits of a product."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        product = builder.mul(*(builder.zext(factor, _DOUBLE_WORD) for factor in arguments))
        return builder.trunc(builder.lshr(product, _DOUBLE_WORD(64)), _WORD)

    return _types.uint64(_types.uint64, _types.uint64), generate


@inlined
def memory(address: Long, size: Long) -> Array:
    """The bytes at an address. Nothing is checked here."""
    return _carray(_pointer(address), size, np.uint8)  # type: ignore[no-any-return]


@inlined
def copy(target: Long, source: Long, size: Long) -> None:
    """Between two places that do not overlap."""
    _copy(target, source, size)


@inlined
def is_utf8(at: Long, end: Long) -> bool:
    """As Unicode defines it: shortest forms only, no surrogates, nothing above U+10FFFF."""
    while at < end:
        while end - at >= 8 and not word_at(at) & _HIGH_BITS:
            at += 8
        if at == end:
            break
        lead = byte_at(at)
        at += 1
        if lead < 0x80:
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= lead <= 0xDF:
            more = 1
        elif 0xE0 <= lead <= 0xEF:
            more = 2
            if lead == 0xE0:
                low = 0xA0
            elif lead == 0xED:
                high = 0x9F
        elif 0xF0 <= lead <= 0xF4:
            more = 3
            if lead == 0xF0:
                low = 0x90
            elif lead == 0xF4:
                high = 0x8F
        else:
            return False
        if end - at < more or byte_at(at) < low or byte_at(at) > high:
            return False
        for place in range(at + 1, at + more):
            if byte_at(place) < 0x80 or byte_at(place) > 0xBF:
                return False
        at += more
    return True
