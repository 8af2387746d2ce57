"""Variables of the environment that begin with MLCC_: of those that nothing reads users are told."""

from __future__ import annotations

import difflib
import os
import sys
import warnings
from collections.abc import Iterable

# Read by the package beside the options.
PROGRESS = "MLCC_PROGRESS"
AUTO = "MLCC_AUTO"

# What each of them does, as `python -m mlcc info` tells it.
BESIDE_OPTIONS = {
    PROGRESS: "0: no line about compilations that take long",
    AUTO: "1: torch.compile without a backend takes mlcc, from `import torch` on",
}

TRUE = frozenset({"1", "true", "on", "yes"})
FALSE = frozenset({"0", "false", "off", "no", ""})

# Read by what builds, tests, measures and fuzzes the project, never by the package.
_ELSEWHERE = frozenset(
    {
        "MLCC_AARCH64_RUNNER",
        "MLCC_BUILD_ID",
        "MLCC_CCACHE",
        "MLCC_CI",
        "MLCC_CMAKE_ARGS",
        "MLCC_FUZZ_RUNS",
        "MLCC_LLD",
        "MLCC_LLVM_LIBRARY",
        "MLCC_LLVM_TARGETS",
        "MLCC_NVRTC_FOLDERS",
        "MLCC_MATH_STRIDE",
        "MLCC_PREBUILT",
        "MLCC_SANITIZE",
        "MLCC_VERSION",
        "MLCC_WERROR",
    }
)
_PREFIXES_ELSEWHERE = (
    "MLCC_EMULATOR_",
    "MLCC_FAKE_",
    "MLCC_GPU_CHECK_",
    "MLCC_TEST_",
    "MLCC_TESTS_",
    "MLCC_WITH_",
)

_warned: set[str] = set()


def auto() -> tuple[bool, str]:
    """Whether MLCC_AUTO makes mlcc the default backend, and what is wrong with its value; '' where nothing is."""
    text = os.environ.get(AUTO, "")
    if text.lower() in TRUE | FALSE:
        return text.lower() in TRUE, ""
    expected = "expected 0 or 1 (false or true, off or on, no or yes)"
    return False, f"{AUTO}: {expected}, found {text!r}; torch.compile keeps its default backend"


def unknown(names: Iterable[str], options: Iterable[str]) -> dict[str, str]:
    """Those of `names` that nothing reads, with the closest known one; `options` are the variables of the options."""
    known = {*options, *BESIDE_OPTIONS}
    found = {}
    for name in names:
        if not name.startswith("MLCC_") or name in known or name in _ELSEWHERE:
            continue
        if not name.startswith(_PREFIXES_ELSEWHERE):
            words = [one.removeprefix("MLCC_") for one in sorted(known)]
            near = difflib.get_close_matches(name.removeprefix("MLCC_"), words, n=1, cutoff=0.6)
            found[name] = f"MLCC_{near[0]}" if near else ""
    return found


def _calling_line() -> tuple[str, int]:
    """File and line of the innermost frame that is neither mlcc's nor torch's nor Python's own."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        root = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if root not in ("mlcc", "torch", "contextlib", "functools", "importlib", "threading"):
            break
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def warn_of_unknown(options: Iterable[str]) -> None:
    """Warn once of each variable of this process that looks like one of mlcc's and is none."""
    for name, nearest in unknown(os.environ, options).items():
        if name in _warned:
            continue
        _warned.add(name)
        hint = f"did you mean {nearest}?" if nearest else "`python -m mlcc info` lists all of them"
        text = f"the environment variable {name} is unknown to mlcc and changes nothing; {hint}"
        warnings.warn_explicit(text, UserWarning, *_calling_line())
