"""lit configuration. Parameter `build`: the build folder, by default build/release."""

import os
import re
from pathlib import Path

import lit.formats

ROOT = Path(__file__).resolve().parent.parent.parent
LLVM_BIN = Path("/usr/lib/llvm-19/bin")
build = Path(lit_config.params.get("build", ROOT / "build" / "release")).resolve()

config.name = "mlcc"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlcc", ".test"]
config.test_source_root = str(ROOT / "tests" / "lit")
config.test_exec_root = str(build / "lit")

for tool in ("FileCheck", "not"):
    if not (LLVM_BIN / tool).exists():
        lit_config.fatal(f"{LLVM_BIN / tool} not found; install llvm-19-tools")
path = [str(build / "bin"), str(LLVM_BIN), os.environ["PATH"]]
config.environment["PATH"] = os.pathsep.join(path)
config.environment["MLCC_STRICT"] = "1"
# Where mlcc-run finds the CPU code generator, and the emulator beside it; %llvm_library in a RUN line.
library = build / "mlcc" / "libmlcc_llvm.so"
config.environment["MLCC_LLVM_LIBRARY"] = str(library)
config.substitutions.append(("%llvm_library", str(library)))

# What a test may name after REQUIRES.
if library.exists():
    config.available_features.add("llvm")
if re.search(r"^MLCC_LLVM_TARGETS:.*AArch64", (build / "CMakeCache.txt").read_text(), re.M):
    config.available_features.add("aarch64")
if (build / "mlcc" / "libmlcc_emulator.so").exists():
    config.available_features.add("emulator")
for line in Path("/proc/cpuinfo").read_text().splitlines():
    if line.startswith("flags"):
        flags = set(line.split())
        for flag in ("avx2", "fma", "avx512f", "avx512vl", "avx512_bf16", "avx512_vnni"):
            if flag in flags:
                config.available_features.add(flag)
        break
