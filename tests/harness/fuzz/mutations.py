"""Damages JSON values and Avro files in a way that mostly keeps their form, so that they pass the parser."""

import copy
import json
import random
import re
import zlib
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from lakestream.catalog.manifests.avro_codec import write_bytes, write_long
from lakestream.catalog.manifests.avro_file import AvroFile, read_file

NUMBERS: Final = [
    *(0, 1, -1, 2, 3, 127, 999, 1000, 2**31 - 1, -(2**31), 2**31, 2**53, 2**63 - 1, -(2**63), 2**63, 10**30),
    *(0.0, 1.0, 1.5, -0.0, 1e308),
]
TEXTS: Final = [
    *("", " ", "a", "main", "0", "-1", "9" * 30, "9" * 5_000, "1e5", "null", "true", "\x00", "\n", "ä", "名前", "😀"),
    *("x" * 300, "..", "/", "a/../b", "%", "%00", "file:///", "file:///etc/passwd", "s3://x/y", "\u2028", "\ufffd"),
    *("identity", "bucket[0]", "bucket[16]", "truncate[0]", "void", "hour", "decimal(0,0)", "decimal(38,39)"),
    *("fixed[0]", "fixed[999999999]", "long", "int", "string", "struct", "list", "map", "timestamp_ns", "unknown"),
    *("lakestream.topic-id", "00000000-0000-0000-0000-000000000000"),
]
_NESTED: Final = re.compile(rb'"@nested-(\d+)-([0-9a-f]+)@"')
"""Stands for a deeply nested value, which Python's own functions for JSON and copies cannot handle."""
_DEPTHS: Final = (3, 70, 300, 450, 900)


def any_value(rng: random.Random) -> Any:
    kind = rng.randrange(8)
    if kind < 3:
        return rng.choice(NUMBERS)
    if kind < 6:
        return rng.choice(TEXTS)
    if kind == 6:
        return rng.choice((None, True, False, [], {}, [None], [[]], {"": None}, [0] * 50))
    return f"@nested-{rng.choice(_DEPTHS)}-{rng.getrandbits(32):x}@"


def mutated(value: Any, rng: random.Random, count: int = 1) -> Any:
    """Returns a copy with `count` damaged members or items, at any depth."""
    whole = [copy.deepcopy(value)]
    for _ in range(count):
        places = list(_places(whole[0]))
        if places:
            deeper = max(rng.choices(places, k=2), key=lambda one: one.depth)  # the outermost are checked by a parser
            _damage(deeper.owner, deeper.key, rng)
        else:
            whole[0] = any_value(rng)
    return whole[0]


class _Place(NamedTuple):
    owner: Any
    """An object or an array."""
    key: Any
    depth: int


def _places(value: Any) -> Iterator[_Place]:
    open_ = [(value, 0)]
    while open_:
        owner, depth = open_.pop()
        for key in list(owner) if isinstance(owner, dict) else range(len(owner)) if isinstance(owner, list) else ():
            yield _Place(owner, key, depth)
            if isinstance(owner[key], dict | list):
                open_.append((owner[key], depth + 1))


def _damage(owner: Any, place: Any, rng: random.Random) -> None:
    old = owner[place]
    match rng.randrange(11):
        case 0:
            del owner[place]
        case 1 if isinstance(owner, dict):
            owner[rng.choice([*owner, *TEXTS[:6]])] = copy.deepcopy(old)
        case 1:
            owner.insert(place, copy.deepcopy(old))
        case 3 if isinstance(old, str) and old:
            at = rng.randrange(len(old))
            owner[place] = old[:at] + rng.choice(TEXTS)[:50] + old[at + rng.randrange(2) :]
        case 3 | 4 if isinstance(old, int) and not isinstance(old, bool):
            owner[place] = old + rng.choice((-1, 1, 2, 1000, -(2**31), 2**31))
        case 5 if isinstance(old, list):
            owner[place] = old * rng.choice((0, 2, 3)) or [any_value(rng)]
        case 6 | 7 if isinstance(old, str):
            owner[place] = rng.choice(TEXTS)
        case 6 | 7 if isinstance(old, int) and not isinstance(old, bool):
            owner[place] = rng.choice(NUMBERS)
        case 8 | 9 if isinstance(owner, dict):
            owner[f"x{rng.randrange(9)}"] = any_value(rng)
        case _:
            owner[place] = any_value(rng)


def to_json(value: Any) -> bytes:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return _NESTED.sub(lambda found: _nested(int(found[1]), int(found[2], 16)), text) if b'"@nested-' in text else text


def _nested(depth: int, kinds: int) -> bytes:
    """Returns arrays and objects in each other, alternating as the bits of `kinds`."""
    is_array = [kinds >> (level % 32) & 1 for level in range(depth)]
    opening = b"".join(b"[" if one else b'{"type":' for one in is_array)
    return opening + b"1" + b"".join(b"]" if one else b"}" for one in reversed(is_array))


def damaged_bytes(body: bytes, rng: random.Random) -> bytes:
    made = bytearray(body)
    at = rng.randrange(len(made)) if made else 0
    match rng.randrange(4):
        case 0:
            del made[at:]
        case 1 if made:
            made[at] ^= 1 << rng.randrange(8)
        case 2:
            made[at:at] = rng.randbytes(rng.choice((1, 4, 30)))
        case _:
            made[at : at + 4] = rng.choice((b"\xff\xff\xff\xff\x0f", b"\0", b"\x80\x80\x80\x80\x01", b"\x01", b"\x7f"))
    return bytes(made)


# Avro


def avro_file(file: AvroFile, codec: str, sync: bytes = b"0123456789abcdef") -> bytes:
    header = {**file.metadata, "avro.schema": to_json(file.schema), "avro.codec": codec.encode()}
    out = bytearray(b"Obj\x01")
    write_long(out, len(header))
    for name, content in header.items():
        write_bytes(out, name.encode())
        write_bytes(out, content)
    out.append(0)
    out += sync
    for count, data in file.blocks:
        write_long(out, count)
        write_bytes(out, _packed(data, codec))
        out += sync
    return bytes(out)


def _packed(data: bytes, codec: str) -> bytes:
    if codec != "deflate":
        return data
    packer = zlib.compressobj(1, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def damaged_avro(body: bytes, rng: random.Random) -> bytes:
    """Returns a damaged Avro file: its records, the schema of its records, its header, its codec, or any bytes."""
    file = read_file(body, "seed")
    codec = rng.choice(("deflate", "deflate", "null"))
    match rng.randrange(10):
        case 0 | 1 | 2 | 3:
            blocks = [(count, damaged_bytes(data, rng)) for count, data in file.blocks]
            return avro_file(file._replace(blocks=blocks), codec)
        case 4 | 5 | 6:
            return avro_file(file._replace(schema=mutated(file.schema, rng, rng.choice((1, 1, 3)))), codec)
        case 7:
            blocks = [(rng.choice((count + 1, 0, -1, 2**31, 2**62)), data) for count, data in file.blocks]
            return avro_file(file._replace(blocks=rng.choice((blocks, file.blocks * 3))), codec)
        case 8:
            return avro_file(file, rng.choice(("zstandard", "snappy", "bzip2", "")))
        case _:
            return damaged_bytes(body, rng)
