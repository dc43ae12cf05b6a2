"""SVG images, written by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

INK, FAINT, LINE, PALE = "#1f2933", "#616e7c", "#cbd2d9", "#eceff2"
# What these are without a ground: the colour of the text around the picture, so more or less of it.
_SHARES = {INK: 1.0, FAINT: 0.7, LINE: 0.3, PALE: 0.12}
_SCHEMES = (
    "<style>:root{color-scheme:light dark;color:#1f2933}.ground{fill:#ffffff}"
    "@media(prefers-color-scheme:dark){:root{color:#e4e7eb}.ground{fill:#14181c}}</style>"
)
FONT, CODE = "DejaVu Sans, Verdana, Arial, sans-serif", "DejaVu Sans Mono, Menlo, Consolas, monospace"


class Picture:
    """An SVG image, written by hand. `ground`: its colour; "": light or dark, and what is grey on a white
    ground takes the colour of the text around it."""

    def __init__(self, width: float, ground: str = "white") -> None:
        self.width, self.height, self.ground = width, 0.0, ground
        self.parts: list[str] = []

    def _paint(self, attribute: str, color: str) -> str:
        """A colour as an attribute, with its opacity."""
        if self.ground or color not in _SHARES:
            return f'{attribute}="{color}"'
        share = _SHARES[color]
        opacity = f' {attribute}-opacity="{share:g}"' if share < 1 else ""
        return f'{attribute}="currentColor"{opacity}'

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 13,
        fill: str = INK,
        anchor: str = "start",
        style: str = "",
    ) -> None:
        self.height = max(self.height, y + 8)
        self.parts.append(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" {self._paint("fill", fill)}'
            f' text-anchor="{anchor}"{style}>'
            f"{written(words)}</text>"
        )

    def code(
        self, x: float, y: float, words: str, size: float = 12, fill: str = INK, anchor: str = "start"
    ) -> None:
        self.text(x, y, words, size, fill, anchor, f' font-family="{CODE}"')

    def title(self, words: str, below: str) -> None:
        self.text(24, 34, words, 18, style=' font-weight="bold"')
        self.text(24, 56, below, 13, FAINT)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        round_: float = 0,
        edge: str = "none",
        tooltip: str = "",
        opacity: float = 1,
    ) -> None:
        """A rectangle. `tooltip`: the text at the pointer."""
        self.height = max(self.height, y + height)
        share = f' fill-opacity="{opacity:g}"' if opacity < 1 else ""
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" rx="{round_:g}"'
            f" {self._paint('fill', fill)}{share} {self._paint('stroke', edge)}{_closed('rect', tooltip)}"
        )

    def line(
        self, x: float, y: float, x2: float, y2: float, color: str = LINE, width: float = 1, dash: str = ""
    ) -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {self._paint("stroke", color)}'
            f' stroke-width="{width:g}"{dashes}/>'
        )

    def arrow(
        self, points: Sequence[tuple[float, float]], color: str = LINE, width: float = 1, tooltip: str = ""
    ) -> None:
        """A line through points, which ends in an arrow to the left."""
        drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(
            f'<polyline points="{drawn}" fill="none" {self._paint("stroke", color)} stroke-width="{width:g}"'
            f"{_closed('polyline', tooltip)}"
        )
        x, y = points[-1]
        self.parts.append(f'<path d="M{x:.1f},{y:.1f} l6,-3.2 v6.4 z" {self._paint("fill", color)}/>')

    def key(self, x: float, y: float, entries: Iterable[tuple[str, str]]) -> None:
        """Explains colours, in one row."""
        for color, words in entries:
            self.box(x, y - 11, 14, 14, color, 2)
            self.text(x + 20, y, words, 12)
            x += 42 + 6.6 * len(words)

    def svg(self, inside: bool = False) -> str:
        """The image. Without a colour for its ground, it follows the reader's choice of light or dark.
        `inside`: it is part of a page, whose ground and colour of text it takes."""
        height = self.height + 20
        narrow = "" if self.ground else ' style="max-width:100%;height:auto"'
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {height:g}"'
            f' width="{self.width:g}" height="{height:g}" font-family="{FONT}"{narrow}>'
        )
        place = f'<rect width="{self.width:g}" height="{height:g}"'
        both = [_SCHEMES, f'{place} class="ground"/>']  # a page around an image may not follow that choice
        first = [f'{place} fill="{self.ground}"/>'] if self.ground else [] if inside else both
        return "\n".join([head, *first, *self.parts, "</svg>\n"])


def written(words: str) -> str:
    """Words as text of XML or HTML, or as the value of an attribute. There are no control characters."""
    shown = "".join(c if c.isprintable() else " " for c in words)
    return escape(shown, quote=False).replace('"', "&quot;")


def _closed(name: str, tooltip: str) -> str:
    return f"><title>{written(tooltip)}</title></{name}>" if tooltip else "/>"


def fitting(words: str, width: float, each: float) -> str:
    """The words, cut to a width. `each`: the width of a letter."""
    most = max(int(width / each), 1)
    return words if len(words) <= most else words[: max(most - 1, 0)] + "\u2026"
