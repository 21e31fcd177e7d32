"""Registration of a broker whose record the test writes."""

from lakestream.coordination.broker_registration import BrokerRegistration
from lakestream.metadata.brokers import Broker


class FixedRegistration(BrokerRegistration):
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.registered = True

    @property
    def broker(self) -> Broker:
        return self._broker

    @property
    def is_registered(self) -> bool:
        return self.registered
