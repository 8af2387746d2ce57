"""Inductor's options, of which programs that were written for it may give some."""

from __future__ import annotations

import functools


@functools.cache
def option_names() -> frozenset[str]:
    """What `torch.compile(options=...)` takes for Inductor; nothing where torch does not tell."""
    try:
        import torch._inductor

        return frozenset(torch._inductor.list_options())
    except (ImportError, AttributeError):
        return frozenset()


def is_option(name: str) -> bool:
    """Whether Inductor has this option; it takes "-" for "_"."""
    return name.replace("-", "_") in option_names()
