"""Compiles Python functions to machine code with numba, and caches the results on disk.

Kernels have explicit signatures and are compiled, or loaded, when their module is imported: errors show then, and no
call waits for a compiler. So import modules with kernels late, and not on an event loop.

Compiling takes seconds, loading milliseconds. The results are in `NUMBA_CACHE_DIR`, else in `LAKESTREAM_CACHE`, else in
the user's cache folder, in one folder per content of the kernel's file and of this one. Kernels may share code only
through this file: numba itself checks only the file of the kernel, and can pair a new index with an old result while
two versions start at the same time. Where the folder cannot be written (read-only file system) or the cache is damaged,
each process compiles for itself.

Kernels get memory as addresses. So it does not matter which object owns the bytes, whether they are writable, or how
many buffers there are; but each kernel must bound its reads itself.
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

# numba declares itself typed, but has few annotations, so its use is not type-checked.
_config, _types, _cgutils = cast(Any, numba.config), cast(Any, numba.types), cast(Any, numba.core.cgutils)
_intrinsic: Any = numba.extending.intrinsic
_carray: Any = cast(Any, numba).carray
_BYTE, _WORD, _DOUBLE_WORD = (cast(Any, llvmlite.ir).IntType(size) for size in (8, 64, 128))

_log = logging.getLogger(__name__)

Longs: TypeAlias = NDArray[np.int64]
Array: TypeAlias = NDArray[Any]
"""A contiguous array; its element type is in the kernel's signature."""
Long: TypeAlias = Any
"""A number inside a kernel, 64 bits, signed: it wraps around, unlike an int of Python."""

_Function = TypeVar("_Function", bound=Callable[..., Any])


def kernel(signature: str) -> Callable[[_Function], _Function]:
    """Compiles a function when its module is imported. Calls release the GIL."""

    def compiled(function: _Function) -> _Function:
        if _FOLDER is not None:
            try:
                return _cached(signature, function, _FOLDER)
            except Exception as error:  # The cache may fail in any way; the code itself still compiles.
                _log.warning(
                    "kernels.cache_failed kernel=%s error=%s: each process compiles it", function.__name__, error
                )
        return cast(_Function, numba.njit(signature, nogil=True)(function))

    return compiled


def inlined(function: _Function) -> _Function:
    """Compiles a function that kernels call into each of them."""
    return cast(_Function, numba.njit(nogil=True)(function))


def _cached(signature: str, function: _Function, folder: Path) -> _Function:
    """Compiles with the cache in `folder`. numba reads the setting only in `njit`: its other users are unaffected."""
    before = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder / _state_of(function.__code__.co_filename))
    try:
        return cast(_Function, numba.njit(signature, nogil=True, cache=True)(function))
    finally:
        _config.CACHE_DIR = before


def _folder() -> Path | None:
    """Returns the cache folder, or None if it is not writable. numba would then choose another folder, without the
    separation by source content."""
    folder = _chosen_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        _log.warning(
            "kernels.cache_failed error=%s: each process compiles all kernels; set NUMBA_CACHE_DIR to a folder", error
        )
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
    """Returns the byte at an address, as a number of 64 bits. This function and those below check nothing."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        pointer = builder.inttoptr(arguments[0], _BYTE.as_pointer())
        return builder.zext(builder.load(pointer), _WORD)

    return _types.int64(_types.int64), generate


@_intrinsic  # type: ignore[untyped-decorator]
def word_at(_typing: Any, address: Any) -> Any:
    """Returns the eight bytes at an address, little-endian."""

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
    """Returns the upper 64 of the 128 bits of a product."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        product = builder.mul(*(builder.zext(factor, _DOUBLE_WORD) for factor in arguments))
        return builder.trunc(builder.lshr(product, _DOUBLE_WORD(64)), _WORD)

    return _types.uint64(_types.uint64, _types.uint64), generate


@inlined
def memory(address: Long, size: Long) -> Array:
    """Returns the bytes at an address, unchecked."""
    return _carray(_pointer(address), size, np.uint8)  # type: ignore[no-any-return]


@inlined
def copy(target: Long, source: Long, size: Long) -> None:
    """Copies bytes between two ranges that do not overlap."""
    _copy(target, source, size)


@inlined
def is_utf8(at: Long, end: Long) -> bool:
    """Returns whether bytes are UTF-8 as Unicode defines it: shortest forms only, no surrogates, at most U+10FFFF."""
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
