"""Draws plots as SVG: bars for the race, lines for growth. Both use logarithmic scales and suit light and dark mode."""

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

STYLE = """
.page { fill: #ffffff }
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600; font-size: 14px }
.quiet { fill: #59636e }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.c0 { fill: #0b6e4f; stroke: #0b6e4f } .c1 { fill: #2f9e6e; stroke: #2f9e6e } .c2 { fill: #b4690e; stroke: #b4690e }
.c3 { fill: #8250df; stroke: #8250df } .c4 { fill: #818b98; stroke: #818b98 } .c5 { fill: #0969da; stroke: #0969da }
text { stroke: none !important }
polyline { fill: none !important; stroke-width: 2 }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117 } text { fill: #f0f6fc } .quiet { fill: #9198a1 } .grid { stroke: #3d444d }
}
"""
COLOURS = 6
LABELS, PLOT, VALUES = 110, 480, 210  # the widths of the row names, the plot, and the values to its right


def bars(
    file: Path,
    title: str,
    rows: Mapping[str, Mapping[str, float]],
    labels: Mapping[str, Mapping[str, str]],
    notes: Mapping[str, str],
) -> None:
    """Draws a group of labelled bars for each row. Below the bars, `notes` explain the names."""
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    everything = [value for row in rows.values() for value in row.values()]
    low, high = math.floor(math.log10(min(everything))), math.ceil(math.log10(max(everything)))
    parts, y = [_text(0, 16, title, "title")], 34
    top = y
    for row, values in rows.items():
        parts.append(_text(LABELS - 12, y + 9 + 8 * (len(values) - 1), row, anchor="end"))
        for name, value in values.items():
            width = PLOT * (math.log10(value) - low) / (high - low)
            colour = f"c{names.index(name) % COLOURS}"
            parts.append(f'<rect class="{colour}" x="{LABELS}" y="{y}" width="{width:.1f}" height="12"/>')
            parts.append(_text(LABELS + width + 6, y + 10, labels[row][name], "quiet"))
            y += 16
        y += 12
    for power in range(low, high + 1):
        x = LABELS + PLOT * (power - low) / (high - low)
        parts.insert(0, f'<line class="grid" x1="{x:.1f}" y1="{top - 6}" x2="{x:.1f}" y2="{y - 6}"/>')
        parts.append(_text(x, y + 8, f"{10**power:,}", "quiet", anchor="middle"))
    y += 30
    for name, note in notes.items():
        parts.append(_text(LABELS, y, f"{name}: {note}", "quiet"))
        y += 16
    _write(file, LABELS + PLOT + VALUES, y, parts)


def lines(file: Path, title: str, x_title: str, series: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    """Draws one line for each series of points."""
    points = [point for line in series.values() for point in line]
    left, right = (f(math.log10(x) for x, _ in points) for f in (min, max))
    low, high = math.floor(math.log10(min(y for _, y in points))), math.ceil(math.log10(max(y for _, y in points)))
    height, top = 260, 34

    def place(x: float, y: float) -> tuple[float, float]:
        return (LABELS + PLOT * (math.log10(x) - left) / (right - left),
                top + height * (1 - (math.log10(y) - low) / (high - low)))  # fmt: skip

    parts = [_text(0, 16, title, "title")]
    for power in range(low, high + 1):
        _, y = place(10**left, 10**power)
        parts.append(f'<line class="grid" x1="{LABELS}" y1="{y:.1f}" x2="{LABELS + PLOT}" y2="{y:.1f}"/>')
        parts.append(_text(LABELS - 12, y + 4, f"{10**power:,}/s", "quiet", anchor="end"))
    ticks = [(place(x, 10**low)[0], f"{x:,.0f}") for x in sorted({x for x, _ in points})]
    parts += [_text(x, top + height + 18, text, "quiet", anchor="middle") for x, text in ticks]
    parts.append(_text(LABELS + PLOT / 2, top + height + 38, x_title, "quiet", anchor="middle"))
    taken: list[float] = []
    for number, (name, line) in enumerate(series.items()):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in line))
        parts.append(f'<polyline class="c{number % COLOURS}" points="{path}"/>')
        y = place(*line[-1])[1] + 4
        while any(abs(y - other) < 14 for other in taken):  # avoid overlapping names
            y += 2
        taken.append(y)
        parts.append(_text(LABELS + PLOT + 8, y, name, f"c{number % COLOURS}"))
    _write(file, LABELS + PLOT + VALUES, top + height + 50, parts)


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{style}" text-anchor="{anchor}">{escape(text)}</text>'


def _write(file: Path, width: float, height: float, parts: Iterable[str]) -> None:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img">'
    # A site's dark mode can differ from the browser's, so the plot cannot rely on the colour behind it.
    page = f'<rect class="page" width="{width:.0f}" height="{height:.0f}"/>'
    file.write_text("\n".join([head, f"<style>{STYLE}</style>", page, *parts, "</svg>"]) + "\n")
