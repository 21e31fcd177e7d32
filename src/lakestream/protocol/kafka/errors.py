"""Kafka's error codes, and the code of each error class."""

from enum import IntEnum
from typing import Final

from lakestream import errors


class Code(IntEnum):
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    PRODUCER_FENCED = 90
    INVALID_UPDATE_VERSION = 95
    UNKNOWN_TOPIC_ID = 100
    BROKER_ID_NOT_REGISTERED = 102
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    TRANSACTION_ABORTABLE = 120
    INVALID_REGULAR_EXPRESSION = 128


KAFKA_CODE: Final[dict[type[errors.LakestreamError], Code]] = {
    errors.Unavailable: Code.REQUEST_TIMED_OUT,
    errors.Uncertain: Code.REQUEST_TIMED_OUT,
    errors.Conflict: Code.UNKNOWN_SERVER_ERROR,
    errors.Fenced: Code.INVALID_PRODUCER_EPOCH,
    errors.Missing: Code.UNKNOWN_TOPIC_OR_PARTITION,
    errors.Rejected: Code.INVALID_REQUEST,
    errors.OutOfOrder: Code.OUT_OF_ORDER_SEQUENCE_NUMBER,
    errors.OutOfRange: Code.OFFSET_OUT_OF_RANGE,
    errors.InvalidRecords: Code.INVALID_RECORD,
    errors.BatchTooLarge: Code.MESSAGE_TOO_LARGE,
    errors.WrongTransaction: Code.INVALID_TXN_STATE,
    errors.Misconfigured: Code.INVALID_CONFIG,
    errors.Corrupt: Code.KAFKA_STORAGE_ERROR,
}


class KafkaError(errors.Rejected):
    """A rejected request with a specific Kafka error code."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: errors.LakestreamError) -> Code:
    if isinstance(error, KafkaError):
        return error.code
    return next(KAFKA_CODE[kind] for kind in type(error).__mro__ if kind in KAFKA_CODE)


def code_in_fetch(error: errors.LakestreamError) -> Code:
    """Returns the code for a Fetch response.

    Consumers do not retry the codes that producers retry: the Java consumer throws on a timeout. On
    NOT_LEADER_OR_FOLLOWER all consumers refresh the metadata and retry.

    Damaged records must be reported to the user. On KAFKA_STORAGE_ERROR librdkafka, Java and kafka-python retry
    silently, the last two hundreds of times a second. On CORRUPT_MESSAGE Java and kafka-python raise, librdkafka
    returns an error to the application twice a second, and aiokafka logs a warning.
    """
    if isinstance(error, errors.Unavailable):
        return Code.NOT_LEADER_OR_FOLLOWER
    return code_for_readers(error)


def code_for_readers(error: errors.LakestreamError) -> Code:
    return Code.CORRUPT_MESSAGE if isinstance(error, errors.Corrupt) else code_of(error)
