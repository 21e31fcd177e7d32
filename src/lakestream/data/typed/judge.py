"""JSON values held against all that their schema demands: a process of its own, beside a broker.

    coordination/judging.py  ──  length · Ask  ──▶  this  ──  length · Answer  ──▶

Schemas and values come from strangers. A schema may be made so that a small value takes for ever (each of its parts
asks for the next one twice) or a large one does (a long list, each item one of many lists), and a validator cannot be
interrupted. Here that costs nobody else: the system ends a process that computes for too long. One whose broker is
gone reads the end of its input.

Patterns are matched in linear time where that is possible, else with a bound. Nothing is ever fetched. `format` is not
asserted: to most drafts it is a remark.
"""

import resource
import signal
import sys
from collections import OrderedDict
from typing import Any, BinaryIO, Final

import jsonschema_rs
import msgspec

from lakestream.data.typed.json_places import said
from lakestream.data.typed.judged import LENGTH, RULES_MAX, Answer, Ask, Rules

TEXT_MAX: Final = 60
REASON_MAX: Final = 400
TOO_LARGE: Final = "holding values against it takes more memory than there is for it"

_MEMORY_MAX: Final = 4 << 30
_NOWHERE: Final = "json-schema:///"
"""What the validator puts in front of names, where a schema has no address."""
_VALUE: Final = "\0"
"""Stands for the value in messages, until it is put there cut short."""
_PATTERNS: Final = {"backtrack_limit": 100_000, "size_limit": 1 << 20, "dfa_size_limit": 1 << 20}
_DIALECTS: Final = {
    "http://json-schema.org/draft-04/schema": jsonschema_rs.Draft4Validator,
    "http://json-schema.org/draft-06/schema": jsonschema_rs.Draft6Validator,
    "http://json-schema.org/draft-07/schema": jsonschema_rs.Draft7Validator,
    "https://json-schema.org/draft/2019-09/schema": jsonschema_rs.Draft201909Validator,
    "https://json-schema.org/draft/2020-12/schema": jsonschema_rs.Draft202012Validator,
}


class Judge:
    """Of one schema."""

    def __init__(self, rules: Rules) -> None:
        """ValueError: it cannot be used, and why."""
        self._references = dict(rules.references)
        self._missing = ""
        try:
            self._validator = _DIALECTS[rules.dialect.rstrip("#")](
                msgspec.json.decode(rules.text),
                validate_formats=False,
                retriever=self._found,
                pattern_options=jsonschema_rs.FancyRegexOptions(**_PATTERNS),
                mask=_VALUE,
            )
        except jsonschema_rs.ValidationError as error:
            if self._missing:
                what = f"$ref '{self._missing}' leads to no schema"
                raise ValueError(f"{what}: it is neither in the schema nor one of its references") from None
            raise ValueError(_said(error)) from None

    def reason(self, text: bytes) -> str | None:
        """None: the value is what it should be. What is wrong first is said; there may be more."""
        try:
            self._validator.validate(msgspec.json.decode(text))
        except jsonschema_rs.ValidationError as error:
            return _said(error)
        except (ValueError, RecursionError) as error:  # no JSON, or nested too deeply
            return said(f"it cannot be read: {error}", text)
        return None

    def _found(self, uri: str) -> Any:
        """A reference by its name, also where an `$id` around it makes another address of the name."""
        bare = uri.partition("#")[0]
        for name in sorted(self._references, key=len, reverse=True):
            if bare == name or bare.endswith(f"/{name}"):
                return msgspec.json.decode(self._references[name])
        self._missing = uri.removeprefix(_NOWHERE)
        raise LookupError(uri)


def _said(error: jsonschema_rs.ValidationError) -> str:
    """The place as a JSON pointer, and what is demanded there."""
    nearest = _nearest(error)
    message = error.message.replace(_VALUE, _shown(error.instance))
    where = "".join(f"/{str(step).replace('~', '~0').replace('/', '~1')}" for step in error.instance_path)
    reason = f"{where}: {message}" if where else message
    return f"{reason[:REASON_MAX]}{f' ({_said(nearest)})' if nearest else ''}"


def _nearest(error: jsonschema_rs.ValidationError) -> jsonschema_rs.ValidationError | None:
    """Where a value may be one of several: what the one minds that it is most like."""
    if not isinstance(
        error.kind, jsonschema_rs.ValidationErrorKind.OneOfNotValid | jsonschema_rs.ValidationErrorKind.AnyOf
    ):
        return None
    first = [branch[0] for branch in error.kind.context if branch]
    deepest = max(first, key=lambda one: len(one.instance_path), default=None)
    return deepest if deepest is not None and len(deepest.instance_path) > len(error.instance_path) else None


def _shown(value: Any) -> str:
    match value:
        case dict():
            return "the object"
        case list():
            return "the array"
        case _:
            text = msgspec.json.encode(value).decode()
            return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"


class Court:
    """All that are known here."""

    def __init__(self) -> None:
        self._judges: OrderedDict[int, Judge | str] = OrderedDict()

    def answer(self, ask: Ask) -> Answer:
        if ask.rules is not None:
            self._judges[ask.number] = _judge(ask.rules)
            if len(self._judges) > RULES_MAX:
                self._judges.popitem(last=False)
        judge = self._judges[ask.number]
        if isinstance(judge, str):
            return Answer([], judge)
        reasons = ((place, judge.reason(value)) for place, value in enumerate(ask.values))
        return Answer([(place, reason) for place, reason in reasons if reason is not None])


def _judge(rules: Rules) -> Judge | str:
    try:
        return Judge(rules)
    except (ValueError, RecursionError) as error:
        return str(error)
    except MemoryError:
        return TOO_LARGE


def main(asks: BinaryIO, answers: BinaryIO, cpu_s_max: float = 0.0) -> None:
    """Until there is nothing more to read. `cpu_s_max`: for one ask; 0: it may take for ever."""
    court, decoder = Court(), msgspec.msgpack.Decoder(Ask)
    while len(head := asks.read(LENGTH.size)) == LENGTH.size:
        size = LENGTH.unpack(head)[0]
        body = asks.read(size)
        if len(body) < size:
            return
        signal.setitimer(signal.ITIMER_PROF, cpu_s_max)  # nobody handles it, so it ends us
        try:
            answer = court.answer(decoder.decode(body))
        except MemoryError:
            answer = Answer([], TOO_LARGE)
        except Exception as error:  # whatever it is: with the same values it would come again
            answer = Answer([], f"{type(error).__name__}: {error}")
        signal.setitimer(signal.ITIMER_PROF, 0)
        written = msgspec.msgpack.encode(answer)
        answers.write(LENGTH.pack(len(written)) + written)
        answers.flush()


def _limit() -> None:
    for limit, most in ((resource.RLIMIT_CORE, 0), (resource.RLIMIT_AS, _MEMORY_MAX)):
        try:
            resource.setrlimit(limit, (most, most))
        except (OSError, ValueError):
            continue  # a system that has no such limit, or a lower one


if __name__ == "__main__":
    for told in (signal.SIGINT, signal.SIGTERM):  # to a whole group: the broker answers all, then closes our input
        signal.signal(told, signal.SIG_IGN)
    _limit()
    main(sys.stdin.buffer, sys.stdout.buffer, float(sys.argv[1]))
