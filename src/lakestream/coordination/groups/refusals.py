"""Why a group says no. Named as Kafka names them, since clients act on each in its own way; the numbers are given in
protocol/kafka."""

from enum import Enum, auto

from lakestream.errors import Rejected


class Refusal(Enum):
    COORDINATOR_NOT_AVAILABLE = auto()  # nobody can say now: ask again
    COORDINATOR_LOAD_IN_PROGRESS = auto()
    NOT_COORDINATOR = auto()  # find out who is
    ILLEGAL_GENERATION = auto()
    INCONSISTENT_GROUP_PROTOCOL = auto()
    INVALID_GROUP_ID = auto()
    UNKNOWN_MEMBER_ID = auto()
    INVALID_SESSION_TIMEOUT = auto()
    REBALANCE_IN_PROGRESS = auto()  # join again
    NON_EMPTY_GROUP = auto()
    GROUP_ID_NOT_FOUND = auto()
    MEMBER_ID_REQUIRED = auto()  # join again with the id that comes with it
    GROUP_MAX_SIZE_REACHED = auto()
    FENCED_INSTANCE_ID = auto()  # another has your instance id: end
    GROUP_SUBSCRIBED_TO_TOPIC = auto()
    UNSUPPORTED_VERSION = auto()
    FENCED_MEMBER_EPOCH = auto()  # give everything up, and join again
    UNRELEASED_INSTANCE_ID = auto()  # another member has it, and has not left
    UNSUPPORTED_ASSIGNOR = auto()
    STALE_MEMBER_EPOCH = auto()  # ask again with the epoch of your next heartbeat
    INVALID_REGULAR_EXPRESSION = auto()
    UNKNOWN_SERVER_ERROR = auto()


class Refused(Rejected):
    def __init__(self, refusal: Refusal, message: str) -> None:
        super().__init__(message)
        self.refusal = refusal
