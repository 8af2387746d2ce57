"""Models of ONNX: `mlcc.onnx.load(path)` makes a torch.nn.Module of a file, `mlcc.onnx.Backend` runs onnx's tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mlcc.onnx.loading import load as load

if TYPE_CHECKING:
    from mlcc.onnx.backend import Backend as Backend

__all__ = ["Backend", "load"]


def __getattr__(name: str) -> Any:
    if name != "Backend":
        raise AttributeError(f"module 'mlcc.onnx' has no attribute {name!r}")
    from mlcc.onnx.loading import check_is_installed

    check_is_installed()
    from mlcc.onnx.backend import Backend

    return Backend
