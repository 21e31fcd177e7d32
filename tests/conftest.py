"""For all tests."""

import os

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("repeatable")  # what is judged there must not be a matter of luck; at home others are tried
