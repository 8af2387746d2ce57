"""Frames among what `torch.compiler.save_cache_artifacts` gives and `load_cache_artifacts` takes.

torch reads an archive only where each type in it is known, so the type is registered by `import torch` (autoload.py),
before anything of mlcc is used.
"""

from __future__ import annotations

import importlib

from mlcc.torch_private import dynamo

TYPE = "mlcc_frame"

# Named and not imported: it loads what `import torch` must not wait for.
_FILES = "mlcc.capture.frame_files"


def register() -> None:
    """Make the type known to torch; nothing happens where it is known."""
    from torch.compiler._cache import CacheArtifact, CacheArtifactFactory

    if TYPE in CacheArtifactFactory._artifact_types:
        return

    class FrameArtifact(CacheArtifact):
        def populate_cache(self) -> None:
            importlib.import_module(_FILES).put_artifact(self.key, self.content)

        @staticmethod
        def type() -> str:
            return TYPE

    CacheArtifactFactory.register(FrameArtifact)


def record(key: str, body: bytes) -> None:
    """This process made or used a frame, which `save_cache_artifacts` then gives; nothing in a torch without it."""
    try:
        from torch.compiler._cache import CacheArtifactManager

        register()
    except (ImportError, AttributeError):
        return
    with dynamo.no_other_trace():
        CacheArtifactManager.record_artifact(TYPE, key, body)
