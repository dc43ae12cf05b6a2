"""The picture of a report: the program as boxes in boxes, the edges between them, and the user's lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import groupby

from jax_cocktail.report.code import flat, short
from jax_cocktail.report.values import SCHEMES, Captured, Contents, Flow, Left, Node, place
from jax_cocktail.utask.operators import PRODUCTS
from jax_cocktail_tools.report.text import runs_on
from jax_cocktail_tools.svg import FAINT, INK, LINE, PALE, Picture, fitting
from jax_cocktail_tools.words import brief, counted, size

MOST_NODES, MOST_FLOWS, MOST_LANES = 60, 40, 14  # of a custom call, as drawn
WIDTH, LEFT, BOXES = 1180.0, 24.0, 590.0
ROW, GAP, INSET, LANE = 24.0, 5.0, 12.0, 10.0
PRODUCT, STAGE, SHARED, BRANCH, BARRIER = "#4a8fdb", "#d9822b", "#8f8f2a", "#a05195", "#d9483b"
COLORS = {"local": "#3f9a5f", "regional": "#2a9fb5", "global": "#e0533d"}
TOLD = {
    "local": "edge in registers",
    "regional": "edge in memory of a unit",
    "global": "edge in memory that all units see",
}
_MORE = "more"  # the kind of what stands for nodes that are not drawn


def draw(report: Contents) -> str:
    """The picture of all custom calls, and of what stock XLA runs, as an SVG file."""
    picture = Picture(WIDTH, ground="")
    picture.title(report.function, fitting(runs_on(report), WIDTH - 48, 7.0))
    drawer = _Drawer(picture, dict(report.code))
    for number, region in enumerate(report.captured):
        drawer.region(number, region)
    for item, same in groupby(report.left):
        drawer.left(item, len(tuple(same)))
    drawer.key()
    return picture.svg()


def draw_region(report: Contents, number: int) -> str:
    """The picture of one custom call, for a page that has its own colours."""
    picture = Picture(WIDTH, ground="")
    drawer = _Drawer(picture, dict(report.code), top=20.0)
    drawer.region(number, report.captured[number])
    drawer.key()
    return picture.svg(inside=True)


def limited(nodes: Sequence[Node], most: int) -> tuple[Node, ...]:
    """The nodes that take most time, at most so many, in the order of the program. One in the place of all
    others of a node says how many they are."""
    chosen: set[int] = set()
    heap: list[tuple[float, int, float, Node]] = []

    def offer(inner: Iterable[Node], times: float) -> None:
        for node in inner:
            heappush(heap, (-node.seconds * (node.trips or 1) * times, node.number, times, node))

    offer(nodes, 1.0)
    while heap and len(chosen) < most:
        _, number, times, node = heappop(heap)
        chosen.add(number)
        offer(node.inner, times * (node.trips or 1))
    return _pruned(nodes, chosen)


def _pruned(nodes: Sequence[Node], chosen: set[int]) -> tuple[Node, ...]:
    kept = tuple(replace(n, inner=_pruned(n.inner, chosen)) for n in nodes if n.number in chosen)
    lost = [n for n in nodes if n.number not in chosen]
    count = sum(1 for _ in flat(tuple(lost)))
    return (*kept, Node(lost[0].number, _MORE, f"+ {counted(count, 'more part')}")) if lost else kept


def _owners(nodes: Sequence[Node], shown: set[int]) -> dict[int, int]:
    """For each node, the one that is drawn in its place: itself, or the innermost one around it."""
    found: dict[int, int] = {}

    def visit(inner: Sequence[Node], around: int) -> None:
        for node in inner:
            found[node.number] = node.number if node.number in shown else around
            visit(node.inner, found[node.number])

    visit(nodes, -1)
    return found


@dataclass(frozen=True, slots=True)
class _Anchor:
    """The right side of a node, where its edges begin and end."""

    x: float
    y: float


class _Drawer:
    """Draws from top to bottom. `code`: the user's line at each place."""

    def __init__(self, picture: Picture, code: Mapping[str, str], top: float = 84.0) -> None:
        self._picture, self._code = picture, code
        self._y = top
        self._anchors: dict[int, _Anchor] = {}
        self._inside: dict[int, dict[str, int]] = {}
        self._drawn: dict[str, str] = {}  # colours and what they mean, for the key
        self._beside: list[tuple[str, int, float]] = []  # a line, how many others, and how far down

    # -- a custom call -----------------------------------------------------------------------------------
    def region(self, number: int, region: Captured) -> None:
        units = counted(region.units, "unit")
        waits = f"{counted(round(region.waits), 'barrier')} a call" if region.waits else "no barrier"
        moved = f"loads {size(region.loaded_bytes)}, stores {size(region.stored_bytes)} a call (predicted)"
        self._picture.text(LEFT, self._y, f"custom call {number}", 14, style=' font-weight="bold"')
        self._picture.text(LEFT + 118, self._y, f"{units}, {waits}; {moved}", 12, FAINT)
        self._y += 12
        self._anchors = {}
        nodes = limited(region.tree, MOST_NODES)
        self._inside = _inside(region.flows)
        for node in nodes:
            self._node(node, LEFT, BOXES)
        lanes = self._flows(region, nodes)
        self._sources(BOXES + 30 + LANE * lanes)
        self._y += 34

    def _node(self, node: Node, left: float, right: float) -> None:
        y = self._y
        self._anchors[node.number] = _Anchor(right, y + ROW / 2)
        lines = {short(where) for where in node.others} - {short(node.where)}
        self._beside.append((node.where, len(lines), y))
        if node.kind in ("barrier", "exchange"):
            self._crossing(node, left, right)
        elif node.kind == _MORE:
            self._picture.text(left + 8, y + 16, node.what, 12, FAINT)
            self._y += ROW
        elif node.inner or node.kind != "stage":
            self._box(node, left, right)
        else:
            self._stage(node, left, right)
        self._y += GAP

    def _box(self, node: Node, left: float, right: float) -> None:
        top = self._y
        color = {"parts": SHARED, "branch": BRANCH}.get(node.kind, LINE if node.kind == "side" else FAINT)
        height = _height(node)
        self._picture.box(left, top, right - left, height, INK, 5, color, _summary(node), opacity=0.04)
        self._picture.text(left + 8, top + 16, _name(node), 12, INK, style=' font-weight="bold"')
        self._picture.text(right - 8, top + 16, _cost(node), 12, FAINT, "end")
        if node.kind == "parts":
            self._drawn[SHARED] = "loop whose trips the units share"
        if node.kind == "branch":
            self._drawn[BRANCH] = "branch"
        self._y = top + ROW + 2
        for inner in node.inner:
            self._node(inner, left + INSET, right - INSET)
        self._y = top + height

    def _stage(self, node: Node, left: float, right: float) -> None:
        is_product = not PRODUCTS.isdisjoint(node.what.split(", "))
        color, told = (PRODUCT, "matrix product") if is_product else (STAGE, "stage")
        self._drawn[color] = told
        self._picture.box(left, self._y, right - left, ROW, color, 4, color, _summary(node), opacity=0.25)
        cost = _cost(node)
        edges = self._inside.get(node.number, {})
        if edges:
            told = ", ".join(f"{edges[scheme]} {scheme}" for scheme in SCHEMES if scheme in edges)
            cost = f"{told} \u00b7 {cost}"
        if "local" in edges:
            self._drawn[COLORS["local"]] = TOLD["local"]
            self._picture.box(right - 3.5, self._y + 3, 3.5, ROW - 6, COLORS["local"], 1)
        self._picture.text(right - 8, self._y + 16, cost, 12, FAINT, "end")
        room = right - left - 24 - 6.6 * len(cost)
        self._picture.text(left + 8, self._y + 16, fitting(_name(node), room, 6.9), 12)
        self._y += ROW

    def _crossing(self, node: Node, left: float, right: float) -> None:
        self._drawn[BARRIER] = "units wait for each other"
        y = self._y + 8
        self._picture.line(left - INSET / 2, y, right + INSET / 2, y, BARRIER, 2.2)
        self._picture.text(left + 8, y + 13, node.what, 11, BARRIER)
        self._picture.text(right - 8, y + 13, brief(node.seconds), 11, FAINT, "end")
        self._y += ROW - 1

    def _sources(self, left: float) -> None:
        """The user's lines beside the nodes. One that is the same as above is not repeated."""
        before = "", 0
        for where, others, y in self._beside:
            if where and (short(where), others) != before:
                before = short(where), others
                at = fitting(short(where), 150, 6.7)
                self._picture.code(left, y + 16, at, 11, FAINT)
                x = left + 10 + 6.7 * len(at)
                more = f"+ {counted(others, 'line')}" if others else ""
                line = fitting(self._code.get(where, ""), WIDTH - 16 - x - 6.7 * (len(more) + 1), 6.7)
                self._picture.code(x, y + 16, line, 11)
                if more:
                    self._picture.code(x + 6.7 * (len(line) + 1), y + 16, more, 11, FAINT)
        self._beside = []

    # -- edges -------------------------------------------------------------------------------------------
    def _flows(self, region: Captured, nodes: Sequence[Node]) -> int:
        """The edges between nodes that are drawn. Returns how many lanes they take."""
        shown = {node.number for node in flat(tuple(nodes)) if node.kind != _MORE}
        owners = _owners(region.tree, shown)
        joined: dict[tuple[int, int, str], Flow] = {}
        for flow in region.flows:
            made, read = owners.get(flow.made, -1), owners.get(flow.read, -1)
            if made == read or made not in self._anchors or read not in self._anchors:
                continue
            key = made, read, flow.scheme
            known = joined.get(key, Flow(*key, bytes=0.0, times=0))
            joined[key] = replace(known, bytes=known.bytes + flow.bytes, times=known.times + flow.times)
        found = sorted(joined.values(), key=lambda f: (-f.bytes, f.made, f.read, f.scheme))
        lanes: list[list[tuple[float, float]]] = [[] for _ in range(MOST_LANES)]
        left_out = found[MOST_FLOWS:]
        for flow in sorted(found[:MOST_FLOWS], key=lambda f: (self._span(f), f.made, f.read, f.scheme)):
            if not self._flow(flow, lanes):
                left_out.append(flow)
        if left_out:
            count = sum(flow.times for flow in left_out)
            words = f"+ {counted(count, 'more edge')}: {size(sum(f.bytes for f in left_out))}"
            self._picture.text(BOXES + 12, self._y + 12, words, 11, FAINT)
        return sum(map(bool, lanes))

    def _span(self, flow: Flow) -> float:
        return abs(self._anchors[flow.made].y - self._anchors[flow.read].y)

    def _flow(self, flow: Flow, lanes: list[list[tuple[float, float]]]) -> bool:
        """Draws an edge in the first lane with room; False if there is none."""
        made, read = self._anchors[flow.made], self._anchors[flow.read]
        begin, end = made.y + 4, read.y - 4
        low, high = min(begin, end) - 3, max(begin, end) + 3
        lane = next((n for n, used in enumerate(lanes) if all(high < a or b < low for a, b in used)), None)
        if lane is None:
            return False
        lanes[lane].append((low, high))
        x, color = BOXES + 16 + LANE * lane, COLORS.get(flow.scheme, FAINT)
        self._drawn[color] = TOLD.get(flow.scheme, flow.scheme)
        told = f"{flow.scheme}: {counted(flow.times, 'edge')}, {size(flow.bytes)} a call"
        points = ((made.x, begin), (x, begin), (x, end), (read.x, end))
        self._picture.arrow(points, color, 1.6, told)
        return True

    # -- the rest ----------------------------------------------------------------------------------------
    def left(self, item: Left, times: int) -> None:
        """A loop that stock XLA runs."""
        self._picture.box(LEFT, self._y, BOXES - LEFT, 2 * ROW, PALE, 5, FAINT)
        words = f"left to stock XLA: {place(item.what, '', times)}"
        self._picture.text(LEFT + 8, self._y + 17, fitting(words, BOXES - LEFT - 16, 7.4), 12)
        self._picture.text(LEFT + 8, self._y + 38, fitting(item.reason, BOXES - LEFT - 16, 6.4), 11, FAINT)
        for row, where in enumerate(dict.fromkeys((item.where, item.culprit))):
            self._beside.append((where, 0, self._y + 21 * row))
        self._sources(BOXES + 30)
        self._y += 2 * ROW + 10

    def key(self) -> None:
        """Explains the colours that are drawn."""
        x, y = LEFT, self._y + 16
        order = (PRODUCT, STAGE, SHARED, BRANCH, BARRIER, *COLORS.values())
        for color in (color for color in order if color in self._drawn):
            words = self._drawn[color]
            if x + 46 + 6.6 * len(words) > WIDTH:
                x, y = LEFT, y + 22
            self._picture.key(x, y, [(color, words)])
            x += 46 + 6.6 * len(words)


def _inside(flows: Sequence[Flow]) -> dict[int, dict[str, int]]:
    """For each node, how many edges of each scheme begin and end in it."""
    found: dict[int, dict[str, int]] = {}
    for flow in flows:
        if flow.made == flow.read:
            schemes = found.setdefault(flow.made, {})
            schemes[flow.scheme] = schemes.get(flow.scheme, 0) + flow.times
    return found


def _height(node: Node) -> float:
    """The height of a node, without the gap after it."""
    if node.kind in ("barrier", "exchange"):
        return ROW - 1
    return ROW + 2 + sum(_height(n) + GAP for n in node.inner) + 3 if node.inner else ROW


def _name(node: Node) -> str:
    if node.kind in ("loop", "parts"):
        count = counted(node.trips, "trip") if node.trips is not None else "unknown number of trips"
        return f"{node.what}, {count}"
    return node.what


def _cost(node: Node) -> str:
    """The predicted time; of a loop, with what it is the time of."""
    if node.kind == "loop":
        waits = f"{counted(node.barriers, 'barrier')}, " if node.barriers else ""
        return f"{waits}{brief(node.seconds)} per iteration"
    return brief(node.seconds)


def _summary(node: Node) -> str:
    """The text for a reader who points at a node."""
    return f"{place(_name(node), node.where)}: {_cost(node)} (predicted)"
