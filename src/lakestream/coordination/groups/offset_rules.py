"""Rules of committed offsets: which members may commit, fetch and delete them, and when they expire. Pure.

Before: group_runtime.py and offset_expiration.py, which store and remove offsets.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from lakestream.coordination.groups.classic_group import unknown_member_error
from lakestream.coordination.groups.consumer_protocol import subscribed_topics
from lakestream.coordination.groups.errors import GroupError
from lakestream.metadata.group_records import AnyGroupRecord, Committed, ConsumerGroupRecord, GroupState
from lakestream.model import PartitionId

NO_GENERATION = -1
_UNKNOWN_TO_PRODUCERS = (GroupError.STALE_MEMBER_EPOCH, GroupError.GROUP_ID_NOT_FOUND)


class Committer(NamedTuple):
    """A member of the group; or, with the defaults, a client that commits without being a member."""

    member_id: str = ""
    instance_id: str | None = None
    generation: int = NO_GENERATION
    supports_group_id_not_found: bool = True
    """False for an old client: it gets ILLEGAL_GENERATION instead, and cannot be a member of the consumer protocol."""

    @property
    def is_anonymous(self) -> bool:
        return not self.member_id and self.instance_id is None and self.generation < 0


def commit_error(group: AnyGroupRecord | None, committer: Committer) -> GroupError | None:
    if group is None:
        if committer.generation < 0:
            return None  # creates a group that only has offsets and never has members
        return GroupError.GROUP_ID_NOT_FOUND if committer.supports_group_id_not_found else GroupError.ILLEGAL_GENERATION
    if committer.generation < 0 and group.is_empty:
        return None
    if committer.generation < 0 and not committer.member_id and committer.instance_id is None:
        return GroupError.UNKNOWN_MEMBER_ID  # the group has members, and only they may commit
    if isinstance(group, ConsumerGroupRecord):
        return _epoch_error(
            group, committer.member_id, committer.generation, supports_epochs=committer.supports_group_id_not_found
        )
    if error := unknown_member_error(group.members, committer.member_id, committer.instance_id):
        return error
    if committer.generation != group.generation:
        return GroupError.ILLEGAL_GENERATION
    return GroupError.REBALANCE_IN_PROGRESS if group.state is GroupState.COMPLETING else None


def transaction_commit_error(group: AnyGroupRecord | None, committer: Committer) -> GroupError | None:
    """Checks a commit in a transaction.

    Old clients send no member id: their transactional ids fence them. During a rebalance a member may still commit what
    it has read before. Producers support fewer error codes, and an unknown one would be fatal for them."""
    error = None if committer.is_anonymous else commit_error(group, committer)
    if error is GroupError.REBALANCE_IN_PROGRESS:
        return None
    return GroupError.ILLEGAL_GENERATION if error in _UNKNOWN_TO_PRODUCERS else error


def offset_fetch_error(group: AnyGroupRecord, member_id: str, epoch: int) -> GroupError | None:
    """Checks an offset fetch: a member must have reached the epoch in which it got a partition."""
    if not isinstance(group, ConsumerGroupRecord):
        return None
    return _epoch_error(group, member_id, epoch)


def _epoch_error(
    group: ConsumerGroupRecord, member_id: str, epoch: int, *, supports_epochs: bool = True
) -> GroupError | None:
    member = group.members.get(member_id)
    if member is None:
        return GroupError.UNKNOWN_MEMBER_ID
    if member.classic is not None:
        return None if epoch == member.epoch else GroupError.ILLEGAL_GENERATION
    if not supports_epochs:
        return GroupError.UNSUPPORTED_VERSION
    return None if epoch == member.epoch else GroupError.STALE_MEMBER_EPOCH


def offset_delete_error(group: AnyGroupRecord) -> GroupError | None:
    """Rejects the deletion of single offsets if the members' subscriptions cannot be read."""
    if not group.is_empty and subscribed_topics(group) is None:
        return GroupError.NON_EMPTY_GROUP
    return None


def expired(
    group: AnyGroupRecord,
    offsets: Mapping[PartitionId, Committed],
    topic_name: Callable[[str], str | None],
    now_ms: int,
    retention_ms: int,
) -> list[PartitionId]:
    """Returns the partitions whose offsets have expired.

    The offsets of an empty group expire some time after its last member left; those of other groups, after the members
    unsubscribed from the topic. `topic_name` returns the name of a topic id, or None if the topic was deleted: its
    offsets expire immediately."""
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


def _unused_since(group: AnyGroupRecord, committed: Committed) -> int:
    """Returns since when an offset is unused. A client that is no member may commit to an empty group: this counts."""
    if group.is_empty and (isinstance(group, ConsumerGroupRecord) or group.protocol_type):
        return max(group.since_ms, committed.committed_ms)
    return committed.committed_ms
