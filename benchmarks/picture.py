"""The picture of README.md: speed and first call beside the peers, drawn as docs/picture.svg from picture.json.

usage: picture.py [--check]; with --check nothing is written, and the exit status tells whether the picture is in step.

`benchmarks/contraction_models.py` and `benchmarks/training_steps.py` measure such rows again; docs/performance.md tells
where these come from.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "benchmarks/picture.json"
PICTURE = ROOT / "docs/picture.svg"

COLORS = {
    "Inductor": "#9aa5b1",
    "ONNX Runtime": "#c3b091",
    "OpenVINO": "#8fb8a8",
    "mlcc": "#d1495b",
    "of it mlcc's own": "#e9a3ad",
    "torch's tracing alone (aot_eager)": "#d7dce1",
}
WIDTH = 860
LABELS = 190  # pixels for names at the left
BAR = 10
GAP = 12  # between groups


class Drawing:
    """Lines of an SVG, from top to bottom."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.y = 26

    def text(self, x: float, y: float, words: str, more: str = "") -> None:
        """Words whose baseline begins at (x, y)."""
        self.lines.append(f'<text x="{x:.0f}" y="{y:.0f}" {more}>{escape(words)}</text>')

    def box(self, x: float, y: float, width: float, height: float, color: str) -> None:
        """A filled rectangle."""
        self.lines.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height}" fill="{color}"/>'
        )

    def title(self, words: str) -> None:
        """A heading, and room below it."""
        self.text(12, self.y, words, 'font-weight="bold" font-size="15"')
        self.y += 14

    def bars(self, groups: Mapping[str, Mapping[str, float]], scale: float, unit: str) -> None:
        """A bar for each number of each group, `scale` pixels long for 1."""
        for name, numbers in groups.items():
            height = BAR * len(numbers)
            self.text(LABELS - 8, self.y + height / 2 + 4, name, 'text-anchor="end"')
            for contender, number in numbers.items():
                self.box(LABELS, self.y, number * scale, BAR - 1, COLORS[contender])
                weight = ' font-weight="bold"' if contender == "mlcc" else ""
                self.text(
                    LABELS + number * scale + 4,
                    self.y + BAR - 2,
                    f"{number:.2f}{unit}",
                    f'font-size="9"{weight}',
                )
                self.y += BAR
            self.y += GAP

    def legend(self, names: list[str]) -> None:
        """What the colors mean."""
        x: float = LABELS
        for name in names:
            self.box(x, self.y, 10, 10, COLORS[name])
            self.text(x + 14, self.y + 9, name, 'font-size="11"')
            x += 28 + 6.3 * len(name)
        self.y += 24


def speeds(milliseconds: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """Times as speed over eager."""
    return {
        name: {who: times["eager"] / time for who, time in times.items() if who != "eager"}
        for name, times in milliseconds.items()
    }


def picture(data: Mapping[str, Any]) -> str:
    """The SVG's text."""
    drawing = Drawing()
    over_eager = speeds(data["milliseconds"])
    drawing.title("Speed over eager (longer is better; the line is eager)")
    drawing.legend([name for name in COLORS if name in over_eager["ResNet-50"]])
    top = drawing.y - 4
    largest = max(max(numbers.values()) for numbers in over_eager.values())
    scale = (WIDTH - LABELS - 60) / largest
    drawing.bars(over_eager, scale, "")
    x = LABELS + scale
    drawing.lines.append(
        f'<line x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{drawing.y - GAP}" stroke="#333" stroke-dasharray="3,3"/>'
    )
    drawing.y += 22
    first = data["first_call_seconds"]
    drawing.title("First call with empty caches, seconds (shorter is better)")
    drawing.legend(list(COLORS))
    largest = max(max(numbers.values()) for numbers in first.values())
    drawing.bars(first, (WIDTH - LABELS - 60) / largest, " s")
    drawing.y += 8
    for words in (data["machine"], data["versions"], *data["source"].split(". ")):
        drawing.text(12, drawing.y, words, 'font-size="10" fill="#555"')
        drawing.y += 14
    height = drawing.y
    body = "\n".join(drawing.lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        'font-family="Helvetica, Arial, sans-serif" font-size="12">\n'
        "<title>Speed over eager and time of the first call: mlcc beside Inductor, ONNX Runtime and OpenVINO</title>\n"
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>\n{body}\n</svg>\n'
    )


def main(arguments: list[str]) -> int:
    """Draw or check the picture."""
    new = picture(json.loads(DATA.read_text()))
    if arguments == ["--check"]:
        return int(not PICTURE.exists() or PICTURE.read_text() != new)
    PICTURE.write_text(new)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
