import pytest

from lakestream.schemas.columns import Column, Fields, ListColumn
from lakestream.schemas.layout_terms import (
    IDENTITY,
    SortTerm,
    Term,
    Transform,
    partition_terms,
    resolve_term,
    sort_terms,
)
from lakestream.schemas.types import Kind, Primitive

COLUMNS = (
    Column(16, "user_id", Primitive(Kind.LONG)),
    Column(17, "at", Primitive(Kind.DATE)),
    Column(18, "a", Fields((Column(19, "b", Fields((Column(20, "c", Primitive(Kind.STRING)),))),))),
    Column(21, "tags", ListColumn(Column(22, "element", Primitive(Kind.STRING)))),
    Column(23, "odd, (name)", Primitive(Kind.DOUBLE)),
)


def test_partition_terms_are_parsed() -> None:
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


def test_printed_terms_and_transforms_are_parsed_to_the_same_value() -> None:
    for term in partition_terms("day(_stream.timestamp), bucket(16, user_id), truncate(4, name), country"):
        assert partition_terms(str(term)) == (term,)
        assert Transform.of(str(term.transform)) == term.transform
    assert Transform.of("unknown") is None
    assert Transform.of("bucket") is None
    assert Transform.of("bucket[0]") is None
    assert Transform.of("truncate[2147483648]") is None
    assert Transform.of("truncate[2147483647]") == Transform("truncate", 2147483647)
    assert Transform.of("day[3]") is None


def test_partition_fields_are_named_as_in_spark() -> None:
    terms = partition_terms("day(_stream.timestamp), bucket(16, user_id), truncate(4, name), country")
    assert [term.field_name for term in terms] == [
        "_stream_timestamp_day",
        "user_id_bucket_16",
        "name_trunc_4",
        "country",
    ]


def test_sort_terms_are_parsed() -> None:
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
        ("weekly(at)", "unknown transform 'weekly': use identity, bucket"),
        ("bucket(user_id)", "write bucket"),
        ("bucket(0, user_id)", "invalid width"),
        ("bucket(99999999999, user_id)", "invalid width"),
        ("day(a, b)", "takes one column"),
        ("a,,b", "empty term"),
        ("a,", "empty term"),
        ("day(a", "unbalanced parenthesis or quote"),
        ("day(day(a))", "unbalanced parenthesis or quote"),
        ("a b", "invalid column name"),
        ("a, a", "a appears twice"),
        ("day(a), identity(b), hours(a)", "use the same column"),
        (",".join(f"c{n}" for n in range(40)), "40 terms"),
    ],
)
def test_invalid_partition_terms_are_rejected(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        partition_terms(text)


@pytest.mark.parametrize(
    ("text", "why"), [("a desc, a", "twice"), ("a down", "invalid column name"), ("a nulls", "invalid column name")]
)
def test_invalid_sort_terms_are_rejected(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        sort_terms(text)


@pytest.mark.parametrize(
    ("text", "source_id"),
    [("user_id", 16), ("bucket(3, a.b.c)", 20), ("month(at)", 17), ("`odd, (name)`", 23), ("void(a.b.c)", 20)],
)
def test_term_is_bound_to_its_column_by_full_name(text: str, source_id: int) -> None:
    (term,) = partition_terms(text)
    found = resolve_term(term, COLUMNS)
    assert found is not None
    assert found.source_id == source_id


def test_void_accepts_all_types() -> None:
    (term,) = partition_terms("VOID(a.b)")
    assert (str(term), term.field_name, Transform.of("void")) == ("void(a.b)", "a_b_null", term.transform)
    assert all(term.transform.result(Primitive(kind)).kind is kind for kind in Kind)


def test_term_is_not_bound_when_the_column_does_not_exist() -> None:
    for text in ("other", "a.b.d", "tags.element"):
        (term,) = partition_terms(text)
        assert resolve_term(term, COLUMNS) is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("day(user_id)", "user_id is long: use identity, bucket, truncate"),
        ("hour(at)", "at is date"),
        ("bucket(4, `odd, (name)`)", "is double: use identity"),
        ("a.b", "not of a primitive type"),
        ("tags", "not of a primitive type"),
    ],
)
def test_term_is_rejected_when_the_transform_does_not_accept_the_type(text: str, why: str) -> None:
    (term,) = partition_terms(text)
    with pytest.raises(ValueError, match=why):
        resolve_term(term, COLUMNS)
