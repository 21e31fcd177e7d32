"""Mutants of the rules of consumer groups with the consumer protocol (see mutants.py)."""

from typing import Any

from msgspec.structs import replace
from tests.simulation.mutant import Mutant

from lakestream.coordination.groups import consumer_group, offset_rules
from lakestream.coordination.groups.member_sessions import MemberSessions

ANYWHERE = ("groups calm", "groups lossy", "groups zombies", "groups crashes")
CALM = ("groups calm",)

_without = consumer_group.without_members


def _without_new_epoch(group: Any, member_ids: Any, now: Any) -> Any:
    """Removes members without a new group epoch."""
    step = _without(group, member_ids, now)
    record = step.group.record
    if record is group.record:
        return step
    unchanged = replace(record, epoch=group.record.epoch)
    return step._replace(group=type(group)(**{**_fields(step.group), "record": unchanged}))


def _fields(group: Any) -> dict[str, Any]:
    return {name: getattr(group, name) for name in group.__dataclass_fields__}


def _any_epoch(group: Any, member_id: str, epoch: int, *, supports_epochs: bool = True) -> Any:
    member = group.members.get(member_id)
    return _epoch_error(group, member_id, epoch if member is None else member.epoch, supports_epochs=supports_epochs)


_epoch_error = offset_rules._epoch_error
_next_state = consumer_group._Reconciler._next_state


def _assume_revoked(self: Any, member_id: str, member: Any, owned: Any) -> Any:
    """Takes partitions for revoked at the member's next heartbeat, even if the member still owns them."""
    return _next_state(
        self, member_id, member, None if owned is None else owned - (member.assigned - member.target) - member.revoking
    )


CONSUMER_GROUP_MUTANTS = (
    Mutant(
        "a partition is assigned when no member owns it",
        "a partition is assigned immediately",
        [(consumer_group._Reconciler, "_free", lambda self, member_id, wanted: wanted)],
        ANYWHERE,
    ),
    Mutant(
        "a revocation needs the member's confirmation",
        "a partition is taken for revoked at the next heartbeat",
        [(consumer_group._Reconciler, "_next_state", _assume_revoked)],
        CALM,
    ),
    Mutant(
        "a leaving member causes a new group epoch",
        "the group epoch stays",
        [(consumer_group, "without_members", _without_new_epoch)],
        CALM,
    ),
    Mutant(
        "a member without heartbeats times out",
        "its partitions stay assigned",
        [(MemberSessions, "expirations_ms", lambda self, group, now_ms: {})],
        CALM,
    ),
    Mutant(
        "members commit with their newest epoch",
        "members commit with any epoch",
        [(offset_rules, "_epoch_error", _any_epoch)],
        CALM,
    ),
)
