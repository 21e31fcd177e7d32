"""The Kafka protocol. Start reading at network/server.py.

If hypothesis is installed, kio imports it, which takes a third of a broker's start time; here kio imports without it.
"""

import importlib
import sys

if "hypothesis" not in sys.modules:
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # kio then treats it as not installed
    try:
        importlib.import_module("kio.static._phantom")
    finally:
        del sys.modules["hypothesis"]
