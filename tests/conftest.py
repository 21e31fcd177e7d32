"""For all tests."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("any", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("any"), derandomize=True)
settings.load_profile("repeatable" if os.environ.get("CI") else "any")
"""How busy the machine is says nothing about the code. And what is judged in CI must not be a matter of luck; at home
others are tried."""
