"""Command lines of long runs."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection


def names_among(choices: Collection[str]) -> Callable[[str], list[str]]:
    """A type for argparse: names divided by commas, each of them one of `choices`."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        for name in names:
            if name not in choices:
                raise argparse.ArgumentTypeError(
                    f"{name!r} is none of {', '.join(map(repr, choices))}"
                )
        return names

    return parse
