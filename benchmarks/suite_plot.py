"""The suite's table as a drawing: for each workload the share of the roofline that mlcc, eager and the peer reach."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.contenders import OWN
from benchmarks.loss_curves import COLORS

LABELS, PANEL, LINE, TOP = 160, 260, 15, 64
PEER = "#2f855a"
RADIUS = {"eager": 3.5, "peer": 4.5, "mlcc": 3.5}  # in the order of drawing


def plot(report: Sequence[dict[str, Any]]) -> str:
    """The report of `suite.py` as SVG: a line per workload, a panel per size."""
    names = list(dict.fromkeys(row["workload"] for row in report))
    sizes = list(dict.fromkeys(row["size"] for row in report))
    width, height = LABELS + PANEL * len(sizes) + 20, TOP + LINE * len(names) + 20
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="10">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{width / 2}" y="16" text-anchor="middle" font-size="12">Share of the roofline</text>',
        *_legend(),
    ]
    for number, name in enumerate(names):
        y = TOP + LINE * (number + 0.5)
        lines.append(f'<text x="{LABELS - 8}" y="{y + 3:.1f}" text-anchor="end">{name}</text>')
    for number, size in enumerate(sizes):
        lines += _frame(LABELS + PANEL * number, height - 20, size)
    for row in report:
        left = LABELS + PANEL * sizes.index(row["size"])
        lines += _marks(row, left, TOP + LINE * (names.index(row["workload"]) + 0.5))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend() -> list[str]:
    names = {"mlcc": COLORS["mlcc"], "eager": COLORS["eager"], "fastest peer": PEER}
    return [
        f'<circle cx="{LABELS + 90 * i}" cy="30" r="4" fill="{color}"/>'
        f'<text x="{LABELS + 8 + 90 * i}" y="33">{name}</text>'
        for i, (name, color) in enumerate(names.items())
    ]


def _x(left: float, share: float) -> float:
    """More than all stands at the border: the limits are measured too."""
    return left + min(share, 1.0) * (PANEL - 30)


def _frame(left: float, bottom: float, size: str) -> list[str]:
    lines = [
        f'<text x="{_x(left, 0.5):.1f}" y="{TOP - 18}" text-anchor="middle">{size} bytes</text>'
    ]
    for tenths in range(0, 11, 2):
        x = _x(left, tenths / 10)
        lines.append(
            f'<path d="M{x:.1f} {TOP}V{bottom}" stroke="#ddd"/>'
            f'<text x="{x:.1f}" y="{TOP - 5}" text-anchor="middle">{tenths / 10:.1f}</text>'
        )
    return lines


def _marks(row: dict[str, Any], left: float, y: float) -> list[str]:
    shares = dict(row["roofline"])
    peers = [name for name in row["against"] if name not in OWN]
    shares["peer"] = next((shares[name] for name in peers if name in shares), None)
    colors = {**COLORS, "peer": PEER}
    return [
        f'<circle cx="{_x(left, share):.1f}" cy="{y:.1f}" r="{radius}" fill="{colors[name]}">'
        f"<title>{row['workload']} {name} {share:.2f}</title></circle>"
        for name, radius in RADIUS.items()
        if (share := shares.get(name)) is not None
    ]
