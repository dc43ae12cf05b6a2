"""SVG images, written by hand."""

from __future__ import annotations

from collections.abc import Iterable
from xml.sax.saxutils import escape

INK, FAINT, LINE = "#1f2933", "#616e7c", "#cbd2d9"
FONT, CODE = "DejaVu Sans, Verdana, Arial, sans-serif", "DejaVu Sans Mono, Menlo, Consolas, monospace"


class Picture:
    """An SVG image, written by hand."""

    def __init__(self, width: float) -> None:
        self.width, self.height = width, 0.0
        self.parts: list[str] = []

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
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{fill}" text-anchor="{anchor}"{style}>'
            f"{escape(words)}</text>"
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
    ) -> None:
        self.height = max(self.height, y + height)
        self.parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.2f}" height="{height:.1f}" rx="{round_:g}"'
            f' fill="{fill}" stroke="{edge}"/>'
        )

    def line(
        self, x: float, y: float, x2: float, y2: float, color: str = LINE, width: float = 1, dash: str = ""
    ) -> None:
        dashes = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(
            f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"'
            f' stroke-width="{width:g}"{dashes}/>'
        )

    def key(self, x: float, y: float, entries: Iterable[tuple[str, str]]) -> None:
        """What colours mean, in one row."""
        for color, words in entries:
            self.box(x, y - 11, 14, 14, color, 2)
            self.text(x + 20, y, words, 12)
            x += 42 + 6.6 * len(words)

    def svg(self) -> str:
        height = self.height + 20
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width:g} {height:g}"'
            f' width="{self.width:g}" height="{height:g}" font-family="{FONT}">'
        )
        ground = f'<rect width="{self.width:g}" height="{height:g}" fill="white"/>'
        return "\n".join([head, ground, *self.parts, "</svg>\n"])


def amount(size: int) -> str:
    """Bytes for people."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size} B"
