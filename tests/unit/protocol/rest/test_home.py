import pytest
from starlette.testclient import TestClient

from lakestream.errors import Unavailable
from lakestream.metadata.brokers import Broker
from lakestream.protocol.rest.api import ClusterInfo
from lakestream.protocol.rest.app import application
from lakestream.protocol.rest.health import Health
from lakestream.protocol.rest.home import HomePage, accepts_html

BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


async def no_metrics() -> bytes:
    return b""


async def cluster() -> ClusterInfo:
    return ClusterInfo("id", "1.2", [Broker(0, "host-1", 9092), Broker(1, "<script>", 1)])


async def unavailable() -> ClusterInfo:
    raise Unavailable("the metadata store does not respond")


def test_home_page_has_addresses_and_links_for_browsers_and_no_content_for_others() -> None:
    client = TestClient(application(Health({}), no_metrics, home=HomePage(cluster)), "http://localhost")
    page = client.get("/", headers={"accept": BROWSER})
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "<code>host-1:9092</code>, <code>&lt;script&gt;:1</code>" in page.text
    for path in ("/v1/config", "/subjects", "/metrics", "/readyz"):
        assert f'href="{path}"' in page.text
    assert client.get("/", headers={"accept": "*/*"}).json() == {}
    assert client.get("/").headers["vary"] == "accept"


def test_home_page_is_served_when_the_metadata_store_is_unavailable() -> None:
    client = TestClient(application(Health({}), no_metrics, home=HomePage(unavailable)), "http://localhost")
    assert "unknown: the metadata store does not respond" in client.get("/", headers={"accept": BROWSER}).text


@pytest.mark.parametrize(
    ("accept", "accepts"),
    [
        (BROWSER, True),
        ("text/html;level=1 ; q=0.5", True),
        ("application/json, text/html;q=0", False),
        ("text/html; q=0.000", False),
        ("*/*", False),
        ("", False),
        ("application/vnd.schemaregistry.v1+json", False),
    ],
)
def test_html_is_accepted_when_it_is_named(accept: str, accepts: bool) -> None:
    assert accepts_html(accept) is accepts
