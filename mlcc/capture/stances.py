"""What a program asked for instead of compiled calls: option `disable` and `torch.compiler.set_stance`."""

from __future__ import annotations

import os
from collections.abc import Container

from mlcc import config
from mlcc.torch_private import stance

# Where option `disable` may stand, for calls to look at: `config` and os.environ themselves would take longer than all
# else of a call. The stance is a guard of what the core calls (`stance.as_global`).
ENVIRONMENT: Container[object] = getattr(os.environ, "_data", os.environ)
IN_ENVIRONMENT: object = (
    "MLCC_DISABLE" if ENVIRONMENT is os.environ or os.name != "posix" else b"MLCC_DISABLE"
)
ASSIGNED = config._assigned
patched = config._patched.get


def is_asked() -> bool:
    """Whether something was asked for, which `current` tells."""
    return stance.current() != "default" or is_option_given()


def is_option_given() -> bool:
    """Whether option `disable` stands anywhere, true or false."""
    return IN_ENVIRONMENT in ENVIRONMENT or "disable" in ASSIGNED or "disable" in patched()


def current() -> str:
    """force_eager, also under option `disable`, eager_on_recompile, fail_on_recompile or default.

    The stances that compile at the second call are the default: sizes are symbols from the first trace on.
    """
    if config.disable:
        return "force_eager"
    asked = stance.current()
    return asked if asked in _HEEDED else "default"


_HEEDED = ("force_eager", "eager_on_recompile", "fail_on_recompile")
