"""What a script finds out in a process of its own, with caches in a folder that the caller chooses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def record_of(script: str, arguments: Sequence[str], folder: str, timeout: float | None) -> Any:
    """The JSON in the last line that `script --child arguments` prints. Where it fails, so does this process.

    `timeout` in seconds; None: as long as it takes.
    """
    caches = {"MLCC_CACHE_DIR": f"{folder}/mlcc", "TORCHINDUCTOR_CACHE_DIR": f"{folder}/torch"}
    environment = os.environ | caches | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode
    done = subprocess.run(
        [sys.executable, script, "--child", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{' '.join(arguments)}:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
