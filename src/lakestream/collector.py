"""Python's collector of cyclic garbage, set for a broker. Called once, by whoever starts one.

What the log makes per batch (futures, claims, views of buffers) is freed by reference counts; the collector only ever
looks at it in vain. By default it looks after every 700 new objects, and at everything after a quarter more of them:
with 5,000 active partitions that was half of the broker's CPU.
"""

import gc
from typing import Final

YOUNG_OBJECTS: Final = 50_000
"""New objects between two looks at the young ones: about as many as are in flight at full load."""
LOOKS_PER_GENERATION: Final = 20


def settle() -> None:
    """What is there now (modules, classes) stays for good; look for cycles rarely. They are still found."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, LOOKS_PER_GENERATION, LOOKS_PER_GENERATION)
