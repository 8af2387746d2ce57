#!/usr/bin/env python3
"""Records what tools/gpu_check.py needs to know of torch, the device and NVIDIA's libraries; needs no mlcc."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import platform
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def library_path(name: str) -> str:
    """Where the loader finds a library, or why it does not."""
    try:
        ctypes.CDLL(name)
    except OSError as error:
        return f"not there ({error})"
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split()[-1]
        if path.rpartition("/")[2].startswith(name.split(".so")[0] + ".so"):
            return os.path.realpath(path)
    return name


def device_facts(torch: Any) -> dict[str, Any]:
    """What torch says of the current device."""
    if not torch.cuda.is_available():
        return {}
    p = torch.cuda.get_device_properties(0)
    return {
        "devices": torch.cuda.device_count(),
        "device": p.name,
        "architecture": f"sm_{p.major}{p.minor}",
        "multiprocessors": p.multi_processor_count,
        "memory GiB": round(p.total_memory / 2**30, 1),
        "L2 MiB": round(p.L2_cache_size / 2**20, 1),
    }


def main() -> None:
    import torch

    sys.path.insert(0, str(ROOT))
    from mlcc._load import nvrtc_folders

    headers = Path(sysconfig.get_paths()["include"]) / "Python.h"
    facts = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "Python.h": str(headers) if headers.exists() else "not there",
        "torch": torch.__version__,
        "torch's CUDA": torch.version.cuda or "none",
        "cuda is available": torch.cuda.is_available(),
        "DLPack exchange table": hasattr(torch.Tensor, "__dlpack_c_exchange_api__"),
        "libcuda": library_path("libcuda.so.1"),
        "NVRTC folders": ", ".join(map(str, nvrtc_folders())) or "none",
        **device_facts(torch),
    }
    print(json.dumps(facts))
    results = os.environ.get("MLCC_GPU_CHECK_RESULTS")
    if not results:
        return
    with open(results, "a") as file:
        for name, value in facts.items():
            file.write(
                json.dumps({"step": "facts", "kind": "fact", "name": name, "value": value}) + "\n"
            )


if __name__ == "__main__":
    main()
