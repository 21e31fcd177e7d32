"""The Kafka protocol. Start reading at server.py.

kio loads hypothesis wherever it is installed, for tests of its own: a third of a broker's start. Here it does without.
"""

import importlib
import sys

if "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # as if it were not installed
    try:
        importlib.import_module("kio.static._phantom")
    finally:
        del sys.modules["hypothesis"]
