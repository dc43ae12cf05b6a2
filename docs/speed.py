"""The picture of measured speeds, from the records in benchmarks/results, for light and for dark pages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import log2

from benchmarks.results_table import SHOWN, best, host_times, hosts, runs, timed
from jax_cocktail_tools.svg import FAINT, INK, LINE, Picture

FASTER, SLOWER = "#2f6db5", "#d9822b"
DARK = {
    "white": "#161b22",
    INK: "#e6edf3",
    FAINT: "#9da7b3",
    LINE: "#3d444d",
    FASTER: "#5b9bea",
    SLOWER: "#e69a4c",
}
LEAST, MOST = 0.4, 40.0  # ratios at the ends of the axis
LEFT, WIDTH, ROW, TOP = 196.0, 286.0, 21.0, 118.0


@dataclass(frozen=True)
class Bar:
    """Seconds of a call under stock XLA and of ours."""

    name: str
    stock: float
    ours: float

    @property
    def ratio(self) -> float:
        return self.stock / self.ours


@cache
def panels() -> tuple[tuple[str, str, Sequence[Bar]], ...]:
    """The name of each machine, its versions, and bars."""
    host, card = hosts()[0], runs()[0]
    times = host_times(host).items()
    bars = [Bar(name, *both) for name, both in times if name.partition("/")[0] in SHOWN]
    machine = f"{host.machine.processor}, {host.machine.cores} cores"
    found = [(machine, f"jax {host.versions['jax']}, {host.made[:10]}", bars)]
    version = card.versions["packages"]["jax"]
    both = ((name, best(card, name), card.seconds(name, "ours")) for name in timed(card))
    cards = [Bar(name, stock, ours) for name, stock, ours in both if stock and ours]
    found.append((card.card, f"jax {version}", cards))
    return tuple(found)


def draw_speed() -> str:
    """Draws how many times as fast as stock XLA each program is, on an axis of powers of two."""
    picture = Picture(1080)
    picture.title(
        "How many times as fast as stock XLA: our program forced, model / batch",
        "Bars to the left of 1x are slower. Left alone, jit measures both, and uses the one that is faster.",
    )
    for number, (machine, versions, bars) in enumerate(panels()):
        draw_panel(picture, 24 + number * 532.0, machine, versions, bars)
    picture.key(24, picture.height + 26, ((FASTER, "faster than stock XLA"), (SLOWER, "slower")))
    return picture.svg()


def draw_panel(picture: Picture, at: float, machine: str, versions: str, bars: Sequence[Bar]) -> None:
    left = at + LEFT - 24
    picture.text(at, 86, machine, 14, style=' font-weight="bold"')
    picture.text(at, 104, versions, 12, FAINT)
    bottom = TOP + ROW * len(bars)
    for ratio in (0.5, 1, 2, 4, 8, 16, 32):
        x = left + place(ratio)
        picture.line(x, TOP, x, bottom + 4, FAINT if ratio == 1 else LINE, 1.4 if ratio == 1 else 1)
        picture.text(x, bottom + 18, f"{ratio:g}x", 11, FAINT, "middle")
    for number, bar in enumerate(bars):
        y = TOP + ROW * number + 3
        begin, end = sorted((place(1.0), place(bar.ratio)))
        picture.box(left + begin, y, max(end - begin, 1.0), ROW - 6, FASTER if bar.ratio >= 1 else SLOWER, 2)
        picture.text(left - 8, y + 12, bar.name, 12, anchor="end")
        room = left + max(end, place(1.0)) + 6
        picture.text(room, y + 12, f"{bar.ratio:.2g}x", 12)


def place(ratio: float) -> float:
    """The place of a ratio on the axis."""
    return WIDTH * (log2(ratio) - log2(LEAST)) / (log2(MOST) - log2(LEAST))


def draw_speed_dark() -> str:
    """The same in the colours of dark pages."""
    text = draw_speed()
    for light, dark in DARK.items():
        text = text.replace(f'"{light}"', f'"{dark}"')
    return text
