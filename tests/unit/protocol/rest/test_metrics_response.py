import pytest

from lakestream.protocol.rest.metrics_response import accepts_gzip


@pytest.mark.parametrize(
    ("header", "accepted"),
    [
        ("gzip", True),
        ("GZIP;q=1.0, *;q=0", True),
        ("zstd, x-gzip", True),
        ("gzip; q=0.001", True),
        ("", False),
        ("identity", False),
        ("*", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000, br", False),
        ("gzip;q=much", False),
        ("gzipped", False),
    ],
)
def test_gzip_is_accepted_when_the_header_lists_it_with_a_weight(header: str, accepted: bool) -> None:
    assert accepts_gzip(header) is accepted
