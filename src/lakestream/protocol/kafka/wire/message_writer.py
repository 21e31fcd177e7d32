"""Encodes mappings to message bytes, with one generated function per message and version.

Before: a handler's response, a dict that is the same for all versions.  After: codec.py, which adds size and header.

kio's own writer inspects the type of every field of every instance. Here the schema is traversed once and becomes
straight-line Python: neighbouring fields of fixed size are one `struct.pack`, nested structs are nested loops. The
bytes are the same.

A mapping contains fields by kio's names. A missing field has the schema's default; a name that is not in this version
is ignored. Milliseconds are ints, error codes ints, arrays any sized sequence, structs mappings, a null uuid is None or
zero. A tagged field that is None or has its default is not written.

The generated code checks nothing that Python does not check itself. Only when it fails are the fields of the mapping
checked one by one (message_errors.py), so that the error can name the invalid one.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from kio.static.protocol import Entity

from lakestream.protocol.kafka.wire.message_errors import find_bad_field
from lakestream.protocol.kafka.wire.message_schema import FIXED, NUMBERS, Shape, Slot, shape_of
from lakestream.protocol.kafka.wire.primitives import ONE_BYTE, uvarint

Writer = Callable[[Mapping[str, Any]], bytes]


@cache
def compile_writer(entity_type: type[Entity]) -> Writer:
    """Returns the writer for kio's `entity_type`. It raises ValueError with the path of a field that does not fit."""
    shape = shape_of(entity_type)
    title = f"{shape.name} v{shape.version}"
    source = _WriterSource()
    source.struct(shape, "body")
    write = source.function(title, "body")

    def write_or_explain(body: Mapping[str, Any]) -> bytes:
        try:
            return write(body)
        except Exception as error:  # the mapping is the only possible cause of any exception
            raise ValueError(f"{title}: {find_bad_field(shape, body) or repr(error)}") from error

    return write_or_explain


_PRECOMPILED: Final = 17


def _packed(code: str, flexible: bool) -> Callable[[Sequence[int]], bytes]:
    """Returns a writer for an array of numbers. Structs of short arrays, as of replicas, are precompiled."""
    head = "B" if flexible else "i"
    precompiled = [struct.Struct(f">{head}{count}{code}").pack for count in range(_PRECOMPILED)]
    extra = 1 if flexible else 0  # compact counts are one more than the count, and 0 is null

    def write(values: Sequence[int]) -> bytes:
        count = len(values)
        if count < _PRECOMPILED:
            return precompiled[count](count + extra, *values)
        prefix = uvarint(count + 1) if flexible else struct.pack(">i", count)
        return prefix + struct.pack(f">{count}{code}", *values)

    return write


class _WriterSource:
    """Generates Python source. Its methods add lines that append one part of a message to the list `out`.

    `self._run` contains fixed-size fields without code yet: they are packed together when another kind of field
    follows.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._depth = 1
        self._run: list[tuple[str, str]] = []
        self._serial = 0
        self._constants: dict[str, Any] = {
            "UVARINT": ONE_BYTE,
            "uvarint": uvarint,
            "BOOL": {False: 0, True: 1},
            "ZERO": bytes(16),
        }

    def function(self, title: str, argument: str) -> Callable[[Any], bytes]:
        self._flush()
        head = [f"def write({argument}):", " out = []", " put = out.append"]
        source = "\n".join([*head, *self._lines, ' return b"".join(out)'])
        exec(compile(source, f"<writer of {title}>", "exec"), self._constants)
        written: Callable[[Any], bytes] = self._constants["write"]
        return written

    def struct(self, shape: Shape, mapping: str) -> None:
        for slot in shape.slots:
            value = self._name("v")
            self._line(f"{value} = {mapping}.get({slot.name!r}, {slot.default!r})")
            self.value(slot, shape.flexible, value)
        if shape.flexible:
            self._tagged(shape.tagged, mapping)

    def value(self, slot: Slot, flexible: bool, value: str) -> None:
        """Adds code for the value of one field, which is in the variable `value`."""
        if slot.array:
            self._array(slot, flexible, value)
        elif slot.kind == "struct":
            self._nested(slot, value)
        elif slot.kind in FIXED:
            self._fixed(slot, value)
        elif slot.kind == "string":
            self._string(flexible, slot.nullable, value)
        else:
            self._bytes(flexible, slot.nullable, value)

    def _fixed(self, slot: Slot, value: str) -> None:
        if slot.kind == "uuid":
            self._pack("16s", f"ZERO if {value} is None else {value}.bytes")
        elif slot.kind == "bool":
            self._pack("B", f"BOOL[{value}]")  # struct's own bool would accept any object
        elif slot.nullable:
            self._pack(FIXED[slot.kind], f"-1 if {value} is None else {value}")
        else:
            self._pack(FIXED[slot.kind], value)

    def _string(self, flexible: bool, nullable: bool, value: str) -> None:
        if nullable:
            with self._unless_null(value, flexible, "h"):
                self._string(flexible, False, value)
            return
        self._line(f"{value} = {value}.encode()")
        self._length(flexible, "h", value)
        self._line(f"put({value})")

    def _bytes(self, flexible: bool, nullable: bool, value: str) -> None:
        if nullable:
            with self._unless_null(value, flexible, "i"):
                self._bytes(flexible, False, value)
            return
        self._length(flexible, "i", value)
        self._line(f"put({value})")

    def _nested(self, slot: Slot, value: str) -> None:
        assert slot.shape is not None
        if not slot.nullable:
            self.struct(slot.shape, value)
            return
        with self._block(f"if {value} is None:"):
            self._line(f"put({struct.pack('>b', -1)!r})")
        with self._block("else:"):
            self._pack("b", "1")
            self.struct(slot.shape, value)

    def _array(self, slot: Slot, flexible: bool, value: str) -> None:
        if slot.nullable:
            with self._unless_null(value, flexible, "i"):
                self._items(slot, flexible, value)
        else:
            self._items(slot, flexible, value)

    def _items(self, slot: Slot, flexible: bool, value: str) -> None:
        if slot.kind in NUMBERS:
            self._flush()
            writer = self._constant("A", _packed(FIXED[slot.kind], flexible))
            self._line(f"put({writer}({value}))")
            return
        if slot.kind == "string":  # a string would be accepted as a list of its characters
            self._line(f"if {value}.__class__ is str: raise TypeError")
        self._length(flexible, "i", value)
        item = self._name("v")
        with self._block(f"for {item} in {value}:"):
            if slot.shape is not None:
                self.struct(slot.shape, item)
            else:
                self.value(slot.item(), flexible, item)

    def _tagged(self, slots: Sequence[Slot], mapping: str) -> None:
        if not slots:
            self._pack("x", "")  # no tagged fields: one zero byte
            return
        self._flush()
        tags = self._name("t")
        self._line(f"{tags} = []")
        for slot in slots:
            self._tagged_field(slot, mapping, tags)
        self._line(f"put(uvarint(len({tags}) // 3))")
        self._line(f"out += {tags}")

    def _tagged_field(self, slot: Slot, mapping: str, tags: str) -> None:
        """Adds code for tag, size and value, unless the value is the default, which the code compares as bytes."""
        assert slot.tag is not None
        source = _WriterSource()
        source.value(slot.present(), True, "value")
        write = source.function(slot.name, "value")
        default = None if slot.default is None else write(slot.default)
        value, data = self._name("v"), self._name("d")
        self._line(f"{value} = {mapping}.get({slot.name!r})")
        with self._block(f"if {value} is not None:"):
            self._line(f"{data} = {self._constant('T', write)}({value})")
            prefix = uvarint(slot.tag)
            self._line(f"if {data} != {default!r}: {tags} += ({prefix!r}, uvarint(len({data})), {data})")

    def _length(self, flexible: bool, code: str, value: str) -> None:
        if not flexible:
            self._pack(code, f"len({value})")
            self._flush()
            return
        self._flush()
        count = self._name("n")
        self._line(f"{count} = len({value}) + 1")
        self._line(f"put(UVARINT[{count}] if {count} < 128 else uvarint({count}))")

    @contextmanager
    def _unless_null(self, value: str, flexible: bool, code: str) -> Iterator[None]:
        null = b"\0" if flexible else struct.pack(f">{code}", -1)
        with self._block(f"if {value} is None:"):
            self._line(f"put({null!r})")
        with self._block("else:"):
            yield

    def _pack(self, code: str, expression: str) -> None:
        self._run.append((code, expression))

    def _flush(self) -> None:
        if not self._run:
            return
        pack = struct.Struct(">" + "".join(code for code, _ in self._run)).pack
        arguments = ", ".join(expression for _, expression in self._run if expression)
        self._run.clear()
        self._line(f"put({self._constant('S', pack)}({arguments}))" if arguments else f"put({pack()!r})")

    @contextmanager
    def _block(self, head: str) -> Iterator[None]:
        self._flush()
        self._line(head)
        self._depth += 1
        yield
        self._flush()
        self._depth -= 1

    def _line(self, text: str) -> None:
        self._lines.append(" " * self._depth + text)

    def _name(self, prefix: str) -> str:
        self._serial += 1
        return f"{prefix}{self._serial}"

    def _constant(self, prefix: str, value: Any) -> str:
        name = self._name(prefix)
        self._constants[name] = value
        return name
