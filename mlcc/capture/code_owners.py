"""Whose code a file holds: the user's, a package's, Python's, torch's or ours."""

from __future__ import annotations

import functools
import os
import sys
import sysconfig

import torch

OURS = os.path.dirname(os.path.dirname(__file__)) + os.sep
_TORCH = os.path.dirname(os.path.realpath(torch.__file__)) + os.sep
# Of torch, what is written for numbers like any library, not for symbols.
_FOR_NUMBERS = tuple(_TORCH + folder + os.sep for folder in ("nn", "distributions"))
_KNOW_SYMBOLS = ("sympy", "mpmath", "functorch", "torchgen")
# Packages may be installed outside of this environment: a user's, or those of the system beneath a venv.
_PACKAGE_FOLDERS = {"site-packages", "dist-packages"}


@functools.cache
def _folders() -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """(Python's own, those of packages that know symbols, those of packages)."""
    paths = sysconfig.get_paths()
    python = tuple(os.path.realpath(paths[name]) + os.sep for name in ("stdlib", "platstdlib"))
    packages = {os.path.realpath(paths[name]) for name in ("purelib", "platlib")}
    beside_torch = {*packages, os.path.dirname(_TORCH.rstrip(os.sep))}
    known = [os.path.join(one, name) + os.sep for one in beside_torch for name in _KNOW_SYMBOLS]
    ours = os.path.realpath(OURS) + os.sep
    return python, (*known, _TORCH, ours), (*(one + os.sep for one in packages), *_FOR_NUMBERS)


@functools.cache
def who_is(filename: str) -> str:
    """ "torch" for code that knows symbols, "python" for what runs for its caller, "package", or "user"."""
    if filename.startswith("<eval_with_key>"):
        return "torch"
    if filename.startswith("<frozen") or filename == "<string>":
        return "python"
    path = os.path.realpath(filename)
    python, known, packages = _folders()
    if path.startswith(known) and not path.startswith(_FOR_NUMBERS):
        return "torch"
    if path.startswith(packages) or not _PACKAGE_FOLDERS.isdisjoint(path.split(os.sep)):
        return "package"
    return "python" if path.startswith(python) else "user"


def is_user_module(name: str) -> bool:
    """Whether the user wrote the Python module of this name; what was typed in is the user's."""
    filename = getattr(sys.modules.get(name), "__file__", None)
    return filename is None or is_user_code(filename)


@functools.cache
def is_user_code(filename: str) -> bool:
    """Whether a file is neither Python's, an installed package's, nor ours; what was typed in is the user's."""
    if filename.startswith("<"):
        return not filename.startswith("<frozen")
    return who_is(filename) == "user"
