"""What stored traces depend on beside what they are of, and where they stand. Imports nothing of Dynamo by itself."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import torch

from mlcc.torch_private import fingerprints


def of_traces() -> tuple[Any, ...]:
    """What a trace by AOTAutograd depends on beside what it is given.

    NoFingerprintError where that cannot be told to another process.
    """
    import torch._functorch.config as functorch_config

    return (
        _of_config(functorch_config),
        sys.version_info[:3],
        str(torch.get_default_device()),
        torch.compiler.config.cache_key_tag,
        torch.is_inference_mode_enabled(),
    )


def of_frames() -> tuple[Any, ...]:
    """What a trace of Dynamo's depends on beside the frame and its guards; NoFingerprintError as well."""
    return _of_config(torch._dynamo.config), *of_traces()


def _of_config(config: Any) -> str:
    return fingerprints.of_value(config.save_config_portable(ignore_private_configs=False))


def unstorable_process() -> str:
    """Why this process neither stores nor loads frames; empty where it may.

    Dynamo takes the place among several processes for a constant that no guard looks at.
    """
    distributed = torch.distributed
    if "RANK" in os.environ or "WORLD_SIZE" in os.environ:
        return "one of several processes"
    if distributed.is_available() and distributed.is_initialized():
        return "one of several processes"
    return ""


def cache_folder() -> str:
    """Where torch's caches stand: TORCHINDUCTOR_CACHE_DIR, or a folder of the user's among temporary files."""
    folder: str = _cache_dir_utils().cache_dir()
    return folder


@functools.cache
def _cache_dir_utils() -> Any:
    """torch's module, which needs nothing of the package that it stands in and that takes a second to import."""
    name = "torch._inductor.runtime.cache_dir_utils"
    if name in sys.modules:
        return sys.modules[name]
    path = Path(torch.__file__).parent / "_inductor/runtime/cache_dir_utils.py"
    spec = importlib.util.spec_from_file_location("mlcc_cache_dir_utils", path)
    try:
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.cache_dir  # noqa: B018 (whether it is there)
    except (AssertionError, AttributeError, ImportError, OSError):  # another torch
        return importlib.import_module(name)
    return module
