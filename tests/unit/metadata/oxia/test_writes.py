"""The outcome of a write whose response was lost, without a server."""

from lakestream.errors import Conflict, Missing, Uncertain
from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.writes import DeleteAck, DeleteOp, PutAck, PutOp, delete_result, put_result, resolved
from lakestream.metadata.store import ABSENT, Stored


def put(expected: int | None, *, in_doubt: bool) -> PutOp:
    return PutOp(pb.PutRequest(key="/k", client_identity="me", expected_version_id=expected), 0.0, in_doubt)


def record(identity: str, modifications: int = 0) -> pb.GetResponse:
    version = pb.Version(
        version_id=5, created_timestamp=77, modifications_count=modifications, client_identity=identity
    )
    return pb.GetResponse(version=version)


NO_RECORD = pb.GetResponse(status=pb.KEY_NOT_FOUND)
UNEXPECTED_VERSION = pb.PutResponse(status=pb.UNEXPECTED_VERSION_ID)


def test_version_zero_is_a_successful_put() -> None:
    result = put_result(put(ABSENT, in_doubt=False), pb.PutResponse(version=pb.Version(created_timestamp=9)), "n:1")
    assert result == PutAck(Stored(0, 9), 0, "n:1")


def test_rejected_first_attempt_is_a_conflict() -> None:
    assert isinstance(put_result(put(ABSENT, in_doubt=False), UNEXPECTED_VERSION, "n:1"), Conflict)


def test_rejected_retry_needs_a_read() -> None:
    assert put_result(put(ABSENT, in_doubt=True), UNEXPECTED_VERSION, "n:1") is None


def test_put_with_an_ended_session_is_missing() -> None:
    no_session = pb.PutResponse(status=pb.SESSION_DOES_NOT_EXIST)
    assert isinstance(put_result(put(None, in_doubt=False), no_session, "n:1"), Missing)


def test_retry_recognizes_its_own_first_attempt() -> None:
    for expected in (ABSENT, 4, None):
        assert resolved(put(expected, in_doubt=True), record("me"), "n:1") == PutAck(Stored(5, 77), 0, "n:1", True)


def test_create_of_another_writer_is_a_conflict() -> None:
    assert isinstance(resolved(put(ABSENT, in_doubt=True), record("other"), "n:1"), Conflict)


def test_create_is_uncertain_when_the_record_was_overwritten() -> None:
    assert isinstance(resolved(put(ABSENT, in_doubt=True), record("other", modifications=1), "n:1"), Uncertain)


def test_put_is_uncertain_when_the_version_has_changed() -> None:
    assert isinstance(resolved(put(4, in_doubt=True), record("other"), "n:1"), Uncertain)


def test_unconditional_put_is_uncertain_when_the_record_is_missing() -> None:
    assert isinstance(resolved(put(None, in_doubt=True), record("other"), "n:1"), Uncertain)
    assert isinstance(resolved(put(None, in_doubt=True), NO_RECORD, "n:1"), Uncertain)


def test_only_conditional_writes_are_repeatable() -> None:
    assert put(ABSENT, in_doubt=False).repeatable
    assert put(0, in_doubt=False).repeatable
    assert not put(None, in_doubt=False).repeatable
    assert PutOp(pb.PutRequest(key="/probe"), 0.0).repeatable
    assert DeleteOp(pb.DeleteRequest(key="/k", expected_version_id=0), 0.0).repeatable
    assert not DeleteOp(pb.DeleteRequest(key="/k"), 0.0).repeatable


def test_delete_result_depends_on_the_response_and_earlier_attempts() -> None:
    op = DeleteOp(pb.DeleteRequest(key="/k", expected_version_id=3), 0.0)
    assert delete_result(pb.DeleteResponse()) == DeleteAck(True)
    assert delete_result(pb.DeleteResponse(status=pb.KEY_NOT_FOUND)) == DeleteAck(False)
    assert delete_result(pb.DeleteResponse(status=pb.UNEXPECTED_VERSION_ID)) is None
    assert isinstance(resolved(op, record("other"), "n:1"), Conflict)
    assert resolved(op, NO_RECORD, "n:1") == DeleteAck(False)
    op.in_doubt = True
    assert resolved(op, NO_RECORD, "n:1") == DeleteAck(True)
