"""`/metrics` while stock clients use brokers: rates of topics, lag of groups, quantiles of latencies, compression."""

import gzip
import time
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its types export nothing
from prometheus_client.parser import text_string_to_metric_families
from tests.harness.processes.serve import WAIT_S, Server, output_of, serving, two_free_ports, wait_until

from lakestream.protocol.rest.prometheus import METRICS

TOPIC, IDLE, GROUP = "orders", "idle", "billing"
VALUE = b"x" * 1_000


@pytest.fixture(scope="module", params=[1, 2])
def server(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("metrics")
    with serving(folder, "--workers", str(request.param), kafka=two_free_ports()) as running:
        yield running


def scrape(server: Server, **headers: str) -> tuple[HTTPResponse, bytes]:
    host, port = server.http.split(":")
    connection = HTTPConnection(host, int(port), timeout=WAIT_S)
    connection.request("GET", "/metrics", headers={name.replace("_", "-"): value for name, value in headers.items()})
    with closing(connection), connection.getresponse() as response:
        return response, response.read()


def consume(server: Server, topic: str, group: str, count: int) -> None:
    """Consumes and commits this many records of partition 0."""
    consumer = Consumer(
        {"bootstrap.servers": server.bootstrap, "group.id": group, "auto.offset.reset": "earliest"}
        | {"enable.auto.commit": False}
    )
    consumer.subscribe([topic])
    for _ in range(count):
        message = consumer.poll(WAIT_S)
        assert message is not None
        assert not message.error()
    consumer.commit(offsets=[TopicPartition(topic, 0, count)], asynchronous=False)
    consumer.close()


def produce(server: Server, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": server.bootstrap})
    for _ in range(count):
        producer.produce(topic, VALUE)
    assert producer.flush(WAIT_S) == 0


@pytest.fixture(scope="module")
def used(server: Server) -> Server:
    """A server with a topic of ten records, of which a group has consumed four."""
    admin = AdminClient({"bootstrap.servers": server.bootstrap})
    for future in admin.create_topics([NewTopic(name, 1) for name in (TOPIC, IDLE)]).values():
        future.result(WAIT_S)
    produce(server, TOPIC, 10)
    consume(server, TOPIC, GROUP, 4)
    return server


def test_page_is_valid_and_compressed_when_the_scraper_accepts_gzip(used: Server) -> None:
    plain, page = scrape(used)
    assert plain.getheader("content-encoding") is None
    zipped, body = scrape(used, accept_encoding="gzip")
    assert zipped.getheader("content-encoding") == "gzip"
    assert {plain.getheader("vary"), zipped.getheader("vary")} == {"accept-encoding"}
    assert plain.getheader("content-type") == zipped.getheader("content-type")
    assert len(body) < len(page) / 4
    for text in (page, gzip.decompress(body)):
        families = list(text_string_to_metric_families(text.decode()))
        assert [family.type for family in families] == [metric.kind.value for metric in METRICS]
        samples = [(sample.name, *sorted(sample.labels.items())) for family in families for sample in family.samples]
        assert len(samples) == len(set(samples))


def test_topics_have_rates_until_they_are_deleted(used: Server) -> None:
    wait_until(lambda: used.metric("lakestream_topic_produced_records_total", topic=TOPIC) == 10)
    assert used.metric("lakestream_topic_produced_bytes_total", topic=TOPIC) > 10 * len(VALUE)
    assert 1 <= used.metric("lakestream_topic_produced_batches_total", topic=TOPIC) <= 10
    wait_until(lambda: used.metric("lakestream_topic_fetched_bytes_total", topic=TOPIC) > 4 * len(VALUE))
    assert used.metric("lakestream_topic_fetched_batches_total", topic=TOPIC) >= 1
    assert f'topic="{IDLE}"' not in "".join(
        line for line in used.get("/metrics")[1].splitlines() if line.startswith("lakestream_topic_")
    )
    produce(used, "short-lived", 1)
    wait_until(lambda: used.metric("lakestream_topic_produced_records_total", topic="short-lived") == 1)
    output_of("topic", "delete", "short-lived", "--bootstrap", used.bootstrap)
    wait_until(lambda: 'topic="short-lived"' not in used.get("/metrics")[1])


def test_group_without_members_has_lag_in_records_and_seconds(used: Server) -> None:
    labels = {"group": GROUP, "topic": TOPIC}
    wait_until(lambda: used.metric("lakestream_group_lag_records", **labels) == 6)
    age_s, at_s = used.metric("lakestream_group_lag_seconds", **labels), time.monotonic()
    assert age_s > 0
    wait_until(lambda: used.metric("lakestream_group_lag_seconds", **labels) > age_s + 0.5)
    older_s = used.metric("lakestream_group_lag_seconds", **labels)
    assert older_s < age_s + time.monotonic() - at_s + 3
    page = used.get("/metrics")[1]
    assert page.count('lakestream_group_lag_records{group="billing"') == 1, "only the coordinator measures a group"
    consume(used, TOPIC, GROUP + "-2", 10)
    produce(used, TOPIC, 2)
    wait_until(lambda: used.metric("lakestream_group_lag_records", group=GROUP + "-2", topic=TOPIC) == 2)
    wait_until(lambda: used.metric("lakestream_group_lag_records", **labels) == 8)
    assert used.metric("lakestream_group_lag_seconds", **labels) > used.metric(
        "lakestream_group_lag_seconds", group=GROUP + "-2", topic=TOPIC
    )
    assert used.metric("lakestream_groups_without_lag") == 0


def test_requests_have_quantiles_of_the_last_minute(used: Server) -> None:
    produce(used, TOPIC, 1)

    def seconds(quantile: str) -> float:
        name = "lakestream_kafka_request_quantile_seconds"
        labels = f'{{quantile="{quantile}",request="Produce",'
        lines = [line for line in used.get("/metrics")[1].splitlines() if line.startswith(name + labels)]
        return max((float(line.rpartition(" ")[2]) for line in lines), default=0)

    wait_until(lambda: seconds("0.5") > 0)
    assert 0 < seconds("0.5") <= seconds("0.95") <= seconds("0.99") <= seconds("0.999") < WAIT_S
