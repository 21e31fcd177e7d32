"""Sessions of a group's members: when each was heard last, and when its session expires.

Before: group_runtime.py.  After: metadata/groups.py, which stores the times for the next coordinator.

A heartbeat writes nothing. The times are stored with every write of the group's record, and by themselves when half of
the shortest session has passed. The next coordinator continues the sessions from them, so a member that has died does
not get a whole session from each coordinator.

Times in memory are of the event loop's clock, stored times are of the metadata store's clock: the clocks of two brokers
may differ by a minute. Even the store's time may be wrong, or a former coordinator may have replaced newer times late.
So the stored times decide only within bounds: **after a takeover, a member keeps at least half of its session, and at
most a whole one.** Half a session is also the time that a member needs to find its new coordinator; until the takeover
it could send no heartbeat. So a wrong clock, set forward or back, removes no member that is alive, and keeps one that
has died for no longer than it was kept without stored times.
"""

from collections.abc import Collection, Mapping

from lakestream.coordination.groups import transitions
from lakestream.coordination.groups.messages import AnyGroup, GroupLimits


class MemberSessions:
    """`stored_ms`: when the members were heard last, by the store's clock. `now_ms`: by the event loop's clock."""

    def __init__(self, limits: GroupLimits, stored_ms: Mapping[str, int], store_now_ms: int, now_ms: int) -> None:
        self._limits = limits
        self._resumed_ms = now_ms
        self._heard_ms = {one: now_ms - max(0, store_now_ms - ms) for one, ms in stored_ms.items()}
        self._stored_at_ms = now_ms

    def heard(self, member_id: str, now_ms: int) -> None:
        self._heard_ms[member_id] = now_ms

    def expirations_ms(self, group: AnyGroup, now_ms: int) -> dict[str, int]:
        """Returns when each session expires. A member whose request waits for a reply is alive."""
        expirations_ms = {}
        for one, member in group.record.members.items():
            if not group.has_waiting_request(one):
                session_ms = transitions.session_ms(member, self._limits)
                heard_ms = self._heard_ms.setdefault(one, now_ms)
                expirations_ms[one] = max(heard_ms + session_ms, self._resumed_ms + session_ms // 2)
        return expirations_ms

    def extend(self, ms: int) -> None:
        self._resumed_ms += ms
        self._heard_ms = {one: heard_ms + ms for one, heard_ms in self._heard_ms.items()}

    def set_limits(self, limits: GroupLimits, group: AnyGroup) -> None:
        """Sets other limits. A shorter session timeout applies to a member from its next heartbeat on: its response has
        the interval that belongs to it."""
        shortened_ms = max(0, self._limits.session_ms - limits.session_ms)
        self._limits = limits
        for one, member in group.record.members.items():
            if one in self._heard_ms and transitions.is_of_consumer_protocol(member):
                self._heard_ms[one] += shortened_ms

    def forget_others(self, members: Collection[str]) -> None:
        """Removes the times of all but these members."""
        self._heard_ms = {one: ms for one, ms in self._heard_ms.items() if one in members}

    def store_due_ms(self, group: AnyGroup) -> int | None:
        """Returns when the times must be stored again, at the latest. None if the group has no members."""
        members = group.record.members.values()
        shortest_ms = min((transitions.session_ms(member, self._limits) for member in members), default=None)
        return None if shortest_ms is None else self._stored_at_ms + shortest_ms // 2

    def to_store(self, group: AnyGroup, store_now_ms: int, now_ms: int) -> dict[str, int]:
        """Returns the times by the store's clock. The caller stores them now."""
        self._stored_at_ms = now_ms
        ahead_ms = store_now_ms - now_ms
        return {
            one: ahead_ms + (now_ms if group.has_waiting_request(one) else self._heard_ms.setdefault(one, now_ms))
            for one in group.record.members
        }
