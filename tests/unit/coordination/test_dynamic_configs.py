"""Tests of the values and the precedence of configs of groups and brokers."""

import pytest

from lakestream.coordination.dynamic_configs import (
    BROKER_CONFIGS,
    CLUSTER_DEFAULT,
    GROUP_CONFIGS,
    broker_values,
    check_intervals,
    group_values,
    own_of,
    parsed,
)
from lakestream.coordination.groups.coordinator import GroupSettings
from lakestream.errors import Misconfigured
from lakestream.metadata.cluster import GROUP_KIND, ConfigResource
from lakestream.protocol.kafka.services import BrokerSettings


def test_value_of_one_broker_takes_precedence_over_that_of_all_brokers() -> None:
    configs = {
        CLUSTER_DEFAULT: {"num.partitions": "7", "group.max.size": "9"},
        own_of(1): {"num.partitions": "8"},
    }
    assert broker_values(configs, 0) == {"num.partitions": 7, "group.max.size": 9}
    assert broker_values(configs, 1) == {"num.partitions": 8, "group.max.size": 9}
    assert broker_values({}, 1) == {}


def test_stored_configs_of_another_version_are_ignored() -> None:
    group = ConfigResource(GROUP_KIND, "g")
    configs = {
        CLUSTER_DEFAULT: {"from.the.future": "1", "num.partitions": "many", "group.max.size": "9"},
        group: {"share.session.timeout.ms": "50000", "consumer.session.timeout.ms": "50000"},
    }
    assert broker_values(configs, 0) == {"group.max.size": 9}
    assert group_values(configs) == {"g": {"consumer.session.timeout.ms": 50_000}}


def test_every_broker_config_changes_a_setting() -> None:
    for name, config in BROKER_CONFIGS.items():
        values = {
            name: config.read("false" if name == "auto.create.topics.enable" else "12345" if "ms" in name else "77")
        }
        changed = GroupSettings().with_values(values), BrokerSettings().with_values(values)
        assert changed != (GroupSettings(), BrokerSettings()), name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("consumer.session.timeout.ms", "soon"),
        ("consumer.session.timeout.ms", "5"),
        ("consumer.heartbeat.interval.ms", "0"),
        ("consumer.sesion.timeout.ms", "50000"),
    ],
)
def test_group_config_is_rejected_when_its_name_or_value_is_invalid(name: str, text: str) -> None:
    with pytest.raises(Misconfigured, match=f"config '?{name}"):
        parsed(GROUP_CONFIGS, {name: text})


def test_session_must_be_longer_than_the_heartbeat_interval() -> None:
    check_intervals(6_001, 6_000, ("session", "heartbeat"))
    with pytest.raises(Misconfigured, match="config session: 6000 must be greater than heartbeat, which is 6000"):
        check_intervals(6_000, 6_000, ("session", "heartbeat"))
