"""Called by `import torch`: tells it of mlcc's logs and cached frames; mlcc is the default backend under MLCC_AUTO=1.

Runs in every process that imports torch, so it costs microseconds, never loads the compiled core, and never raises.
"""

from __future__ import annotations

import logging

from mlcc import _environment
from mlcc._channels import CHANNELS
from mlcc.torch_private import artifacts, default_backend

_done = False


def autoload() -> None:
    """Register the log `mlcc` and the artifacts `mlcc_<channel>`; TORCH_LOGS is read by torch afterwards.

    `torch.compiler.load_cache_artifacts` knows frames. Under MLCC_AUTO=1 `torch.compile` without a backend takes mlcc.
    """
    global _done
    if _done:
        return
    _done = True
    try:
        from torch._logging import _internal

        _internal.register_log("mlcc", "mlcc")
        for channel, description in CHANNELS.items():
            artifact = f"mlcc_{channel}"
            _internal.register_artifact(artifact, description)
            logger = logging.getLogger(f"mlcc.{channel}")
            logger.artifact_name = artifact  # type: ignore[attr-defined]
            _internal.log_registry.register_artifact_log(logger.name)
    except Exception as error:  # a broken mlcc must not break `import torch`
        logging.getLogger("mlcc").warning("TORCH_LOGS does not know mlcc's channels: %r", error)
    try:
        artifacts.register()
    except Exception as error:
        logging.getLogger("mlcc").warning("torch's cache artifacts cannot hold frames: %r", error)
    is_auto, problem = _environment.auto()
    if problem:
        logging.getLogger("mlcc").warning("%s", problem)
    if is_auto:
        default_backend.make_default()
