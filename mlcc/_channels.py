"""The log channels: name -> what it tells."""

CHANNELS: dict[str, str] = {
    "recompiles": "what was compiled again, why, and what to type to avoid it",
    "graph": "graphs as they were imported and after the graph passes",
    "fusion": "which nodes share a kernel, and why not the others",
    "kernels": "each kernel that was compiled",
    "cache": "hits, misses and refusals of the kernel caches",
    "fallback": "what runs through ATen, and why",
    "perf": "what compiling each graph took, and what it became",
}
