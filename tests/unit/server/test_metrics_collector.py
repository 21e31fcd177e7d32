"""The largest page of a worker: as many topics, groups and requests as are shown, with the longest names."""

from typing import cast

from lakestream.coordination.group_lag import ROWS_MAX, GroupLagMonitor, GroupTopicLag
from lakestream.coordination.groups.coordinator import NAME_BYTES_MAX
from lakestream.data.log.topic_counts import OTHER_TOPICS, TOPICS_MAX, TopicCounter
from lakestream.metadata.claims import Lag
from lakestream.model import MiB
from lakestream.protocol.kafka.dispatch import HANDLERS
from lakestream.protocol.kafka.network.request_metrics import CANCELLED, FAILED, LATENCY_BOUNDS_S, OK, REFUSED
from lakestream.protocol.rest import prometheus
from lakestream.protocol.rest.prometheus import METRICS, Distribution, Readings, reading
from lakestream.server import metrics_collector
from lakestream.server.latency_quantiles import QUANTILES
from lakestream.server.shared_pages import PAGE_BYTES, SharedPages

TOPIC_NAME_MAX = 249
MANY = 2**62
TOPICS = [f"{number:0{TOPIC_NAME_MAX}}" for number in range(TOPICS_MAX)] + [OTHER_TOPICS]
DISTRIBUTION = Distribution(LATENCY_BOUNDS_S, [MANY] * (len(LATENCY_BOUNDS_S) + 1), 1e300)


class ManyGroups:
    """What a monitor returns at most."""

    unmeasured = MANY

    @property
    def rows(self) -> list[GroupTopicLag]:
        names = (f"{number:0{NAME_BYTES_MAX}}" for number in range(ROWS_MAX))
        return [GroupTopicLag(name, TOPICS[0], Lag(MANY, 1)) for name in names]


def counter() -> TopicCounter:
    counter = TopicCounter()
    for name in TopicCounter.__slots__:
        setattr(counter, name, MANY)
    return counter


def largest() -> Readings:
    kinds = [metrics_collector.request_name(key) for key in HANDLERS]
    outcomes = (OK, REFUSED, FAILED, CANCELLED)
    return [
        *metrics_collector._topics(dict.fromkeys(TOPICS, counter())),
        *metrics_collector._group_lags(cast("GroupLagMonitor", ManyGroups()), MANY),
        *(reading(prometheus.KAFKA_READ_ERRORS, MANY, name) for name in TOPICS),
        *(reading(prometheus.KAFKA_REQUESTS, DISTRIBUTION, kind, outcome) for kind in kinds for outcome in outcomes),
        *(reading(prometheus.KAFKA_QUANTILES, 1e-300, kind, str(one)) for kind in kinds for one in QUANTILES),
        *(
            reading(metric, MANY, kind)
            for kind in kinds
            for metric in (prometheus.KAFKA_BYTES_IN, prometheus.KAFKA_BYTES_OUT)
        ),
        *(reading(metric, MANY) for metric in METRICS if not metric.labels and metric is not prometheus.LOOP_LAG),
    ]


def test_largest_page_of_a_worker_fits_into_shared_memory() -> None:
    readings = largest()
    body = prometheus.encode_readings(readings)
    assert len(body) < 0.8 * PAGE_BYTES  # the rest is for operations of the object store, some dozens
    pages = SharedPages(2)
    pages.write(1, body)
    found = pages.read(1)
    assert found is not None
    assert [(one.metric, one.labels) for one in prometheus.decode_readings(found)] == [
        (one.metric, one.labels) for one in readings
    ]
    pages.close()
    assert len(prometheus.text([("1", one) for one in readings])) < 6 * MiB
