"""Transactions: `machine.py` decides, purely; `coordinator.py` stores what was decided and does it; `patrol.py` looks
for those that nobody ends."""
