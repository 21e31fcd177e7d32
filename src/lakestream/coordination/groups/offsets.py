"""Committed offsets: who may commit, and when what was committed is forgotten. Pure.

Before: held.py and expiry.py, which store and remove.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from lakestream.coordination.groups.classic import stranger
from lakestream.coordination.groups.refusals import Refusal
from lakestream.coordination.groups.subscription import subscribed_topics
from lakestream.metadata.group_records import AnyGroup, Committed, ConsumerGroupRecord, State
from lakestream.model import PartitionId

NO_GENERATION = -1
_NOT_FOR_PRODUCERS = (Refusal.STALE_MEMBER_EPOCH, Refusal.GROUP_ID_NOT_FOUND)


class Committer(NamedTuple):
    """Who commits: a member of the group, or (without all of these) somebody who reads without being one."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = NO_GENERATION
    knows_missing_groups: bool = True
    """An old client is told of an illegal generation instead, and cannot be a member of the new protocol."""

    @property
    def is_nobody(self) -> bool:
        return not self.member_id and self.instance_id is None and self.generation < 0


def commit_refusal(group: AnyGroup | None, who: Committer) -> Refusal | None:
    if group is None:
        if who.generation < 0:
            return None  # it makes the group: one that has offsets and never members
        return Refusal.GROUP_ID_NOT_FOUND if who.knows_missing_groups else Refusal.ILLEGAL_GENERATION
    if who.generation < 0 and group.is_empty:
        return None
    if who.generation < 0 and not who.member_id and who.instance_id is None:
        return Refusal.UNKNOWN_MEMBER_ID  # members are there, and only they may
    if isinstance(group, ConsumerGroupRecord):
        return _epoch_refusal(group, who.member_id, who.generation, knows_epochs=who.knows_missing_groups)
    if refusal := stranger(group.members, who.member_id, who.instance_id):
        return refusal
    if who.generation != group.generation:
        return Refusal.ILLEGAL_GENERATION
    return Refusal.REBALANCE_IN_PROGRESS if group.state is State.COMPLETING else None


def transaction_refusal(group: AnyGroup | None, who: Committer) -> Refusal | None:
    """The same for offsets of a transaction. Clients of old do not say who they are: their transactional ids keep them
    apart. While members share out partitions, what one has read before may still be committed. And producers know fewer
    words: one that they do not know would be their end."""
    refusal = None if who.is_nobody else commit_refusal(group, who)
    if refusal is Refusal.REBALANCE_IN_PROGRESS:
        return None
    return Refusal.ILLEGAL_GENERATION if refusal in _NOT_FOR_PRODUCERS else refusal


def fetch_refusal(group: AnyGroup, member_id: str, epoch: int) -> Refusal | None:
    """Whether a member may ask what was committed: not before it has come to the epoch in which it got a partition."""
    if not isinstance(group, ConsumerGroupRecord):
        return None
    return _epoch_refusal(group, member_id, epoch)


def _epoch_refusal(
    group: ConsumerGroupRecord, member_id: str, epoch: int, *, knows_epochs: bool = True
) -> Refusal | None:
    member = group.members.get(member_id)
    if member is None:
        return Refusal.UNKNOWN_MEMBER_ID
    if member.classic is not None:
        return None if epoch == member.epoch else Refusal.ILLEGAL_GENERATION
    if not knows_epochs:
        return Refusal.UNSUPPORTED_VERSION
    return None if epoch == member.epoch else Refusal.STALE_MEMBER_EPOCH


def deletion_refusal(group: AnyGroup) -> Refusal | None:
    """Whether offsets may be deleted one by one: of members of whom nobody knows what they read, none."""
    if not group.is_empty and subscribed_topics(group) is None:
        return Refusal.NON_EMPTY_GROUP
    return None


def expired(
    group: AnyGroup,
    offsets: Mapping[PartitionId, Committed],
    topic_name: Callable[[str], str | None],
    now_ms: int,
    retention_ms: int,
) -> list[PartitionId]:
    """What is forgotten by now: of an empty group all of it, some time after its last member left; of others what they
    no longer read. `topic_name`: by id; None for a topic that is gone, whose offsets go at once."""
    topics = subscribed_topics(group) if not group.is_empty else frozenset[str]()

    def is_expired(partition: PartitionId, committed: Committed) -> bool:
        name = topic_name(partition.topic_id)
        if name is None:
            return True
        if topics is None or name in topics:
            return False
        if committed.expires_ms >= 0:
            return now_ms >= committed.expires_ms
        return now_ms >= _unused_since(group, committed) + retention_ms

    return [partition for partition, committed in offsets.items() if is_expired(partition, committed)]


def _unused_since(group: AnyGroup, committed: Committed) -> int:
    """Somebody who reads without being a member may commit to an empty group: that counts too."""
    if group.is_empty and (isinstance(group, ConsumerGroupRecord) or group.protocol_type):
        return max(group.since_ms, committed.committed_ms)
    return committed.committed_ms
