"""What became of a write whose answer was lost: the decisions, without a server."""

from lakestream.errors import Conflict, Missing, Uncertain
from lakestream.metadata.oxia.proto import oxia_pb2 as pb
from lakestream.metadata.oxia.writes import Acked, Deleted, DeleteOp, PutOp, delete_answer, put_answer, resolved
from lakestream.metadata.store import ABSENT, Stored


def put(expected: int | None, *, in_doubt: bool) -> PutOp:
    return PutOp(pb.PutRequest(key="/k", client_identity="me", expected_version_id=expected), 0.0, in_doubt)


def record(identity: str, modifications: int = 0) -> pb.GetResponse:
    version = pb.Version(
        version_id=5, created_timestamp=77, modifications_count=modifications, client_identity=identity
    )
    return pb.GetResponse(version=version)


GONE = pb.GetResponse(status=pb.KEY_NOT_FOUND)
REFUSED = pb.PutResponse(status=pb.UNEXPECTED_VERSION_ID)


def test_the_first_version_is_zero_and_still_an_answer() -> None:
    answer = put_answer(put(ABSENT, in_doubt=False), pb.PutResponse(version=pb.Version(created_timestamp=9)), "n:1")
    assert answer == Acked(Stored(0, 9), 0, "n:1")


def test_refused_without_doubt_is_a_conflict() -> None:
    assert isinstance(put_answer(put(ABSENT, in_doubt=False), REFUSED, "n:1"), Conflict)


def test_refused_in_doubt_needs_a_look() -> None:
    assert put_answer(put(ABSENT, in_doubt=True), REFUSED, "n:1") is None


def test_a_session_that_is_gone() -> None:
    gone = pb.PutResponse(status=pb.SESSION_DOES_NOT_EXIST)
    assert isinstance(put_answer(put(None, in_doubt=False), gone, "n:1"), Missing)


def test_its_own_first_try_is_recognised() -> None:
    for expected in (ABSENT, 4, None):
        assert resolved(put(expected, in_doubt=True), record("me"), "n:1") == Acked(Stored(5, 77), 0, "n:1", True)


def test_anothers_creation_is_a_conflict() -> None:
    assert isinstance(resolved(put(ABSENT, in_doubt=True), record("other"), "n:1"), Conflict)


def test_a_creation_that_was_overwritten_may_have_been_ours() -> None:
    assert isinstance(resolved(put(ABSENT, in_doubt=True), record("other", modifications=1), "n:1"), Uncertain)


def test_a_version_that_moved_on_may_have_been_moved_by_us() -> None:
    assert isinstance(resolved(put(4, in_doubt=True), record("other"), "n:1"), Uncertain)


def test_a_plain_put_that_is_not_there_may_still_come() -> None:
    assert isinstance(resolved(put(None, in_doubt=True), record("other"), "n:1"), Uncertain)
    assert isinstance(resolved(put(None, in_doubt=True), GONE, "n:1"), Uncertain)


def test_what_may_be_sent_twice() -> None:
    assert put(ABSENT, in_doubt=False).repeatable
    assert put(0, in_doubt=False).repeatable
    assert not put(None, in_doubt=False).repeatable
    assert PutOp(pb.PutRequest(key="/probe"), 0.0).repeatable
    assert DeleteOp(pb.DeleteRequest(key="/k", expected_version_id=0), 0.0).repeatable
    assert not DeleteOp(pb.DeleteRequest(key="/k"), 0.0).repeatable


def test_deletes() -> None:
    op = DeleteOp(pb.DeleteRequest(key="/k", expected_version_id=3), 0.0)
    assert delete_answer(pb.DeleteResponse()) == Deleted(True)
    assert delete_answer(pb.DeleteResponse(status=pb.KEY_NOT_FOUND)) == Deleted(False)
    assert delete_answer(pb.DeleteResponse(status=pb.UNEXPECTED_VERSION_ID)) is None
    assert isinstance(resolved(op, record("other"), "n:1"), Conflict)
    assert resolved(op, GONE, "n:1") == Deleted(False)
    op.in_doubt = True
    assert resolved(op, GONE, "n:1") == Deleted(True)
