"""How topics are doing, and what a round did: kept by rounds.py, told by driver.py."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Standing:
    """How a topic is doing."""

    name: str
    stuck: str = ""
    """Why it is not moved; empty: it is."""
    tried_ms: int = 0
    trouble: str = ""
    """Why its last move came to nothing, although the next may succeed; empty: it did not."""
    trouble_ms: int = 0
    """Since when."""
    bad_round: int = 0
    """The last one in which it was stopped, or had trouble."""
    moved_ms: int = 0
    """When something was last committed."""
    lag_records: int = 0
    oldest_ms: int = 0
    """When the first record was appended that is not in the table; 0: all are."""
    files: int = 0
    records: int = 0
    bytes: int = 0
    typed: int = 0
    raw: int = 0
    misfit: str = ""
    """Why values had no columns, the last time that there were any."""
    unmet: str = ""
    """What its settings say of its table that cannot be had now, and why."""


@dataclass(slots=True)
class Round:
    """What a round did."""

    moves: int = 0
    records: int = 0
    bytes: int = 0
    files: int = 0
    tables: int = 0
    committed: set[str] = field(default_factory=set)
    """Topics, by id, whose tables were committed to."""
    stuck: list[str] = field(default_factory=list)
    left: bool = False
    """There is more to move at once."""
    lag_records: int = 0
    lag_ms: int = 0
    """Age of the oldest record that is not in its table."""
    seconds: dict[str, float] = field(default_factory=dict)
