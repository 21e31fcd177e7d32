import pytest

from lakestream.schemas.columns import Column, Fields, ListColumn
from lakestream.schemas.shape import Kind, Primitive
from lakestream.schemas.terms import IDENTITY, SortTerm, Term, Transform, found_in, partition_terms, sort_terms

COLUMNS = (
    Column(16, "user_id", Primitive(Kind.LONG)),
    Column(17, "at", Primitive(Kind.DATE)),
    Column(18, "a", Fields((Column(19, "b", Fields((Column(20, "c", Primitive(Kind.STRING)),))),))),
    Column(21, "tags", ListColumn(Column(22, "element", Primitive(Kind.STRING)))),
    Column(23, "odd, (name)", Primitive(Kind.DOUBLE)),
)


def test_a_list_of_transforms_is_read() -> None:
    text = (
        "day(_stream.timestamp), bucket(16, user_id), TRUNCATE(name, 4),identity(country), region, hours(`odd, (name)`)"
    )
    assert partition_terms(text) == (
        Term(Transform("day"), "_stream.timestamp"),
        Term(Transform("bucket", 16), "user_id"),
        Term(Transform("truncate", 4), "name"),
        Term(IDENTITY, "country"),
        Term(IDENTITY, "region"),
        Term(Transform("hour"), "odd, (name)"),
    )
    assert partition_terms(" ") == ()


def test_what_is_written_is_read_again() -> None:
    for term in partition_terms("day(_stream.timestamp), bucket(16, user_id), truncate(4, name), country"):
        assert partition_terms(str(term)) == (term,)
        assert Transform.of(str(term.transform)) == term.transform
    assert Transform.of("unknown") is None
    assert Transform.of("bucket") is None
    assert Transform.of("day[3]") is None


def test_names_of_partitions_are_those_that_spark_gives() -> None:
    terms = partition_terms("day(_stream.timestamp), bucket(16, user_id), truncate(4, name), country")
    assert [term.field_name for term in terms] == [
        "_stream_timestamp_day",
        "user_id_bucket_16",
        "name_trunc_4",
        "country",
    ]


def test_an_order_is_read() -> None:
    user, time = Term(IDENTITY, "user_id"), Term(IDENTITY, "_stream.timestamp")
    assert sort_terms("user_id desc nulls last, _stream.timestamp") == (
        SortTerm(user, True, False),
        SortTerm(time, False, True),
    )
    assert sort_terms("user_id DESC NULLS FIRST") == (SortTerm(user, True, True),)
    assert sort_terms("bucket(4, user_id) nulls last") == (
        SortTerm(Term(Transform("bucket", 4), "user_id"), False, False),
    )
    assert sort_terms("") == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("weekly(at)", "'weekly' is no transform: known are identity, bucket"),
        ("bucket(user_id)", "write bucket"),
        ("bucket(0, user_id)", "from 1 on"),
        ("bucket(99999999999, user_id)", "from 1 on"),
        ("day(a, b)", "takes one column"),
        ("a,,b", "something is missing"),
        ("a,", "something is missing"),
        ("day(a", "has no partner"),
        ("day(day(a))", "has no partner"),
        ("a b", "no name of a column"),
        ("a, a", "a is there twice"),
        ("day(a), identity(b), hours(a)", "are of one column"),
        (",".join(f"c{n}" for n in range(40)), "40 terms"),
    ],
)
def test_what_is_wrong_is_said(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        partition_terms(text)


@pytest.mark.parametrize(("text", "why"), [("a desc, a", "twice"), ("a down", "no name"), ("a nulls", "no name")])
def test_what_is_wrong_in_an_order_is_said(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        sort_terms(text)


@pytest.mark.parametrize(
    ("text", "source_id"),
    [("user_id", 16), ("bucket(3, a.b.c)", 20), ("month(at)", 17), ("`odd, (name)`", 23), ("void(a.b.c)", 20)],
)
def test_columns_are_found_by_their_full_names(text: str, source_id: int) -> None:
    (term,) = partition_terms(text)
    found = found_in(term, COLUMNS)
    assert found is not None
    assert found.source_id == source_id


def test_void_takes_everything_and_says_nothing() -> None:
    (term,) = partition_terms("VOID(a.b)")
    assert (str(term), term.field_name, Transform.of("void")) == ("void(a.b)", "a_b_null", term.transform)
    assert all(term.transform.result(Primitive(kind)).kind is kind for kind in Kind)


def test_a_column_that_is_not_there_may_come() -> None:
    for text in ("other", "a.b.d", "tags.element"):
        (term,) = partition_terms(text)
        assert found_in(term, COLUMNS) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("day(user_id)", "user_id is long, which takes identity, bucket, truncate"),
        ("hour(at)", "at is date"),
        ("bucket(4, `odd, (name)`)", "is double, which takes identity"),
        ("a.b", "not of one value"),
        ("tags", "not of one value"),
    ],
)
def test_a_type_that_a_transform_does_not_take(text: str, why: str) -> None:
    (term,) = partition_terms(text)
    with pytest.raises(ValueError, match=why):
        found_in(term, COLUMNS)
