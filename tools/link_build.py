#!/usr/bin/env python3
"""Make the libraries of a build folder reachable in the source tree: links mlcc/*.so and mlcc/_build_info.py.

usage: link_build.py <build folder> [<package>]: into that copy of mlcc/ instead
"""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = (
    "_C*.so",
    "libmlcc_llvm.so",
    "libmlcc_runtime.so",
    "libmlcc_emulator.so",
    "_build_info.py",
)


def main() -> None:
    source = Path(sys.argv[1]).resolve() / "mlcc"
    package = Path(sys.argv[2]) if len(sys.argv) > 2 else ROOT / "mlcc"
    for pattern in PATTERNS:
        built = sorted(source.glob(pattern))
        wanted = {path.name: path for path in built}
        for link in package.glob(pattern):
            if (
                link.name not in wanted
                or not link.is_symlink()
                or link.resolve() != wanted[link.name]
            ):
                link.unlink()
        for name, path in wanted.items():
            if not (package / name).exists():
                (package / name).unlink(missing_ok=True)  # a link to a build that is gone
                (package / name).symlink_to(path)


if __name__ == "__main__":
    main()
