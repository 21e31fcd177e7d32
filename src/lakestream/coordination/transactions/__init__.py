"""Transactions: their state machine, completion (markers and offsets) and expiration."""
