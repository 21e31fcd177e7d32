"""The rules of groups of the new protocol, each of which can be switched off: see mutants.py."""

from typing import Any

from msgspec.structs import replace
from tests.simulation.mutant import Mutant

from lakestream.coordination.groups import consumer, offsets
from lakestream.coordination.groups.held import Held

ANYWHERE = ("groups calm", "groups lossy", "groups zombies", "groups crashes")
CALM = ("groups calm",)

_without = consumer.without


def _no_news(group: Any, member_ids: Any, now: Any) -> Any:
    """Who is gone is gone, and nobody else has to do with it."""
    step = _without(group, member_ids, now)
    record = step.group.record
    if record is group.record:
        return step
    calm = replace(record, epoch=group.record.epoch)
    return step._replace(group=type(group)(**{**_fields(step.group), "record": calm}))


def _fields(group: Any) -> dict[str, Any]:
    return {name: getattr(group, name) for name in group.__dataclass_fields__}


def _any_epoch(group: Any, member_id: str, epoch: int, *, knows_epochs: bool = True) -> Any:
    member = group.members.get(member_id)
    return _epoch_refusal(group, member_id, epoch if member is None else member.epoch, knows_epochs=knows_epochs)


_epoch_refusal = offsets._epoch_refusal
_led = consumer._Walk._led


def _given_back_by_itself(self: Any, member_id: str, member: Any, owned: Any) -> Any:
    """What a member was told to give back is taken for given back with its next heartbeat."""
    return _led(
        self, member_id, member, None if owned is None else owned - (member.assigned - member.target) - member.revoking
    )


FOLLOWER_MUTANTS = (
    Mutant(
        "a partition is given when nobody has it",
        "it is given at once",
        [(consumer._Walk, "_free", lambda self, member_id, wanted: wanted)],
        ANYWHERE,
    ),
    Mutant(
        "a member says that it has given back",
        "it is taken for given back with the next heartbeat",
        [(consumer._Walk, "_led", _given_back_by_itself)],
        CALM,
    ),
    Mutant(
        "who goes is news for all others",
        "the target stays as it is",
        [(consumer, "without", _no_news)],
        CALM,
    ),
    Mutant(
        "who is silent is no member",
        "what it has stays its own",
        [(Held, "_sessions", lambda self: [])],
        CALM,
    ),
    Mutant(
        "members commit at their newest epoch",
        "at any that they had",
        [(offsets, "_epoch_refusal", _any_epoch)],
        CALM,
    ),
)
