"""kafka-python and aiokafka log every broker that is away, and hold on to what they log."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_clients() -> Iterator[None]:
    names = [name for name in logging.root.manager.loggerDict if name.partition(".")[0] in ("kafka", "aiokafka")]
    for name in ("kafka", "aiokafka", *names):
        logging.getLogger(name).disabled = True
    yield
    gc.collect()
