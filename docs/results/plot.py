#!/usr/bin/env python3
"""Draws the bar charts of docs/results from the CSV files beside them.

    docs/results/plot.py [--check]

Each CSV has a label, one column a series, and the unit in its last column. `--check` fails where an
SVG is not what its CSV would draw.
"""

import csv
import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).resolve().parent
COLORS = ["#2f6f9f", "#d08a2e", "#6a9a5b", "#8a6fa8"]
LABEL_PX, BAR_PX, WIDTH_PX, BAR_HEIGHT_PX = 230, 400, 760, 16


def main() -> int:
    stale = []
    for file in sorted(HERE.glob("*.csv")):
        drawn = chart(list(csv.reader(file.open(newline=""))))
        svg = file.with_suffix(".svg")
        if "--check" not in sys.argv[1:]:
            svg.write_text(drawn)
        elif not svg.exists() or svg.read_text() != drawn:
            stale.append(svg.name)
    if stale:
        print(f"docs/results: {', '.join(stale)} differ from their CSV; run docs/results/plot.py")
    return 1 if stale else 0


def chart(rows: list[list[str]]) -> str:
    """Horizontal bars, one group a row, scaled to the largest magnitude."""
    (_, *series, _), *rows = rows
    unit = rows[0][-1]
    largest = max(abs(float(value)) for row in rows for value in row[1:-1])
    group_px = len(series) * BAR_HEIGHT_PX + 10
    head_px = 28 if len(series) == 1 else 48
    height = head_px + len(rows) * group_px + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH_PX} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH_PX}" height="{height}" fill="#ffffff"/>',
        f'<text x="{LABEL_PX}" y="18" fill="#555555">{escape(unit)}</text>',
    ]
    if len(series) > 1:
        for number, name in enumerate(series):
            x = LABEL_PX + number * 170
            parts.append(f'<rect x="{x}" y="28" width="10" height="10" fill="{COLORS[number]}"/>')
            parts.append(f'<text x="{x + 15}" y="37">{escape(name)}</text>')
    for number, (label, *values, _) in enumerate(rows):
        top = head_px + number * group_px
        middle = top + len(series) * BAR_HEIGHT_PX / 2 + 4
        parts.append(f'<text x="{LABEL_PX - 8}" y="{middle:.0f}" text-anchor="end">{escape(label)}</text>')
        for which, value in enumerate(values):
            y = top + which * BAR_HEIGHT_PX
            width = max(1.0, abs(float(value)) / largest * BAR_PX)
            parts.append(f'<rect x="{LABEL_PX}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT_PX - 3}" fill="{COLORS[which]}"/>')
            parts.append(f'<text x="{LABEL_PX + width + 6:.1f}" y="{y + 11}" fill="#333333">{shown(value)}</text>')
    return "\n".join([*parts, "</svg>", ""])


def shown(value: str) -> str:
    return f"{int(value):,}" if value.lstrip("-").isdigit() else value


if __name__ == "__main__":
    sys.exit(main())
