"""Content of records that follows from their values."""

from tests.integration.jepsen_style.client_api import content_of, text_of


def test_text_is_the_value_when_the_whole_record_is_as_sent() -> None:
    contents = [content_of(f"sends.{number}") for number in range(100)]
    assert {content.key is None for content in contents} == {True, False}
    assert {len(content.headers) for content in contents} == {0, 1}
    for number, content in enumerate(contents):
        assert text_of(b"sends.%d" % number, content) == f"sends.{number}"


def test_text_names_the_content_when_it_is_not_as_sent() -> None:
    sent = content_of("sends.1")
    for changed in (
        sent._replace(key=b"other"),
        sent._replace(timestamp_ms=sent.timestamp_ms + 1),
        sent._replace(headers=(("other", b""),)),
    ):
        assert text_of(b"sends.1", changed) == f"sends.1 with {changed}"
