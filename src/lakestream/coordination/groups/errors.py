"""Errors of group requests. The names are Kafka's, since clients handle each of them differently.

Their numbers are in protocol/kafka."""

from enum import Enum, auto

from lakestream.errors import Rejected


class GroupError(Enum):
    COORDINATOR_NOT_AVAILABLE = auto()  # temporary: retry
    COORDINATOR_LOAD_IN_PROGRESS = auto()
    NOT_COORDINATOR = auto()  # find the coordinator again
    ILLEGAL_GENERATION = auto()
    INCONSISTENT_GROUP_PROTOCOL = auto()
    INVALID_GROUP_ID = auto()
    UNKNOWN_MEMBER_ID = auto()
    INVALID_SESSION_TIMEOUT = auto()
    REBALANCE_IN_PROGRESS = auto()  # join again
    NON_EMPTY_GROUP = auto()
    GROUP_ID_NOT_FOUND = auto()
    MEMBER_ID_REQUIRED = auto()  # join again with the id in the response
    GROUP_MAX_SIZE_REACHED = auto()
    FENCED_INSTANCE_ID = auto()  # another member uses this instance id: stop
    GROUP_SUBSCRIBED_TO_TOPIC = auto()
    UNSUPPORTED_VERSION = auto()
    FENCED_MEMBER_EPOCH = auto()  # revoke all partitions, and join again
    UNRELEASED_INSTANCE_ID = auto()  # another member uses this instance id, and has not left
    UNSUPPORTED_ASSIGNOR = auto()
    STALE_MEMBER_EPOCH = auto()  # retry with the epoch of the next heartbeat
    INVALID_REGULAR_EXPRESSION = auto()
    UNKNOWN_SERVER_ERROR = auto()


class GroupRequestFailed(Rejected):
    def __init__(self, error: GroupError, message: str) -> None:
        super().__init__(message)
        self.error = error
