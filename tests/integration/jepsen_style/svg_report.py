"""Diagram of a history in SVG: latency of calls, throughput per second, and injected faults, with one time axis.

Red points are calls with an unknown outcome.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple
from xml.sax.saxutils import escape

from tests.integration.jepsen_style.history import Commit, Fault, HistoryEvent, Outcome, Poll, Send, Transaction

WIDTH: Final = 1200
LEFT, RIGHT = 130, 1180
LATENCY_TOP, LATENCY_HEIGHT = 40, 260
RATE_HEIGHT: Final = 90
FAULT_HEIGHT: Final = 18
GAP: Final = 46
POINTS_MAX: Final = 6_000
"""Points of each kind: more would make the file large and the diagram not clearer."""

INK, FAINT, UNKNOWN_COLOUR = "#222", "#ccc", "#d62728"
FAULT_COLOURS: Final = {"killed": "#222", "paused": "#9467bd", "cut": "#ff7f0e", "unanswered": "#e0b000"} | {
    "stopped": "#1f77b4",
    "started": "#2ca02c",
}


class Kind(NamedTuple):
    name: str
    colour: str
    matches: Callable[[HistoryEvent], bool]
    amount: Callable[[HistoryEvent], int]


KINDS: Final = (
    Kind("sends", "#1f77b4", lambda event: isinstance(event, Send), lambda _: 1),
    Kind("transactions", "#2ca02c", lambda event: isinstance(event, Transaction), lambda _: 1),
    Kind("offset commits", "#8c564b", lambda event: isinstance(event, Commit), lambda _: 1),
    Kind(
        "records polled",
        "#17becf",
        lambda event: isinstance(event, Poll),
        lambda event: len(event.records) if isinstance(event, Poll) else 0,
    ),
)
CALLS: Final = KINDS[:3]


def draw(events: Sequence[HistoryEvent]) -> str:
    end_s = max((event.end_s for event in events), default=1.0)
    faults = [event for event in events if isinstance(event, Fault)]
    rate_top = LATENCY_TOP + LATENCY_HEIGHT + GAP
    fault_top = rate_top + len(KINDS) * (RATE_HEIGHT + 22) + GAP - 22
    rows = sorted({fault.client for fault in faults})
    height = fault_top + FAULT_HEIGHT * max(1, len(rows)) + 50
    scene = _Scene(end_s)
    body = [
        *scene.shades(faults, LATENCY_TOP, height - 50),
        *scene.latencies(events),
        *(line for number, kind in enumerate(KINDS) for line in scene.rate(events, kind, rate_top, number)),
        *scene.rows(faults, rows, fault_top),
        *scene.time_axis(height - 50),
    ]
    size = f'width="{WIDTH}" height="{height}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">'
    return "\n".join([head, f'<rect {size} fill="white"/>', *body, "</svg>"])


class _Scene:
    def __init__(self, end_s: float) -> None:
        self._end_s = end_s

    def x(self, second: float) -> float:
        return LEFT + (RIGHT - LEFT) * second / self._end_s

    def shades(self, faults: Sequence[Fault], top: float, bottom: float) -> Iterator[str]:
        for fault in faults:
            x, width = self.x(fault.start_s), self.x(fault.end_s) - self.x(fault.start_s)
            yield _box(x, top, width, bottom - top, "#f2c0c0", 0.35)

    def latencies(self, events: Sequence[HistoryEvent]) -> Iterator[str]:
        top, bottom = LATENCY_TOP, LATENCY_TOP + LATENCY_HEIGHT
        yield _text(LEFT, top - 14, "latency of calls; red: unknown outcome", INK, bold=True)
        for exponent in range(5):  # from one millisecond to ten seconds
            y = bottom - LATENCY_HEIGHT * exponent / 4.5
            yield _line(LEFT, y, RIGHT, y, FAINT)
            yield _text(LEFT - 8, y + 4, ("1 ms", "10 ms", "100 ms", "1 s", "10 s")[exponent], INK, anchor="end")
        for kind in CALLS:
            calls = [event for event in events if kind.matches(event)]
            for event in calls[:: 1 + len(calls) // POINTS_MAX]:
                share = math.log10(max(1.0, 1000 * (event.end_s - event.start_s))) / 4.5
                is_unknown = getattr(event, "outcome", None) is Outcome.UNKNOWN
                y = max(top, bottom - LATENCY_HEIGHT * share)
                yield _dot(
                    self.x(event.start_s), y, UNKNOWN_COLOUR if is_unknown else kind.colour, 2.4 if is_unknown else 1.5
                )
        for number, kind in enumerate(CALLS):
            yield _dot(RIGHT - 330 + 110 * number, top - 18, kind.colour, 4)
            yield _text(RIGHT - 322 + 110 * number, top - 14, kind.name, INK)

    def rate(self, events: Sequence[HistoryEvent], kind: Kind, first_top: float, number: int) -> Iterator[str]:
        counts: Counter[int] = Counter()
        for event in events:
            if kind.matches(event) and getattr(event, "outcome", Outcome.DONE) is Outcome.DONE:
                counts[int(event.end_s)] += kind.amount(event)
        most = max(counts.values(), default=1)
        top = first_top + number * (RATE_HEIGHT + 22)
        bottom = top + RATE_HEIGHT
        yield _text(LEFT, top - 6, f"{kind.name} per second, {sum(counts.values()):,} in total", INK, bold=True)
        yield _line(LEFT, bottom, RIGHT, bottom, FAINT)
        yield _text(LEFT - 8, top + 10, f"{most:,}", INK, anchor="end")
        yield _text(LEFT - 8, bottom + 4, "0", INK, anchor="end")
        points = [
            (self.x(min(second + 0.5, self._end_s)), bottom - RATE_HEIGHT * counts[second] / most)
            for second in range(math.ceil(self._end_s))
        ]
        yield _area([(points[0][0], bottom), *points, (points[-1][0], bottom)], kind.colour)

    def rows(self, faults: Sequence[Fault], rows: Sequence[str], top: float) -> Iterator[str]:
        yield _text(LEFT, top - 10, "faults", INK, bold=True)
        for number, (what, colour) in enumerate(FAULT_COLOURS.items()):
            yield _box(LEFT + 130 + 110 * number, top - 20, 12, 12, colour)
            yield _text(LEFT + 147 + 110 * number, top - 10, what, INK)
        for number, target in enumerate(rows):
            y = top + FAULT_HEIGHT * number
            yield _text(LEFT - 8, y + 13, target, INK, anchor="end")
            for fault in faults:
                if fault.client == target:
                    x, width = self.x(fault.start_s), self.x(fault.end_s) - self.x(fault.start_s)
                    yield _box(x, y + 3, width, FAULT_HEIGHT - 5, FAULT_COLOURS.get(fault.what, INK))

    def time_axis(self, y: float) -> Iterator[str]:
        yield _line(LEFT, y, RIGHT, y, INK)
        step = next(step for step in (1, 5, 10, 30, 60, 120, 600, 3600) if self._end_s / step <= 15 or step == 3600)
        for second in range(0, int(self._end_s) + 1, step):
            yield _line(self.x(second), y, self.x(second), y + 5, INK)
            yield _text(self.x(second), y + 19, f"{second} s", INK, anchor="middle")


def _box(x: float, y: float, width: float, height: float, colour: str, opacity: float = 1.0) -> str:
    size = f'width="{max(width, 1):.1f}" height="{height:.1f}"'
    return f'<rect x="{x:.1f}" y="{y:.1f}" {size} fill="{colour}" fill-opacity="{opacity}"/>'


def _line(x: float, y: float, to_x: float, to_y: float, colour: str) -> str:
    return f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}"/>'


def _dot(x: float, y: float, colour: str, radius: float) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>'


def _area(points: Sequence[tuple[float, float]], colour: str) -> str:
    corners = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    return f'<polygon points="{corners}" fill="{colour}" fill-opacity="0.5" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, colour: str, *, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'
