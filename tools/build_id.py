#!/usr/bin/env python3
"""Write a C++ header with the build id: a hash over the names and bytes of all compiler sources.

usage: build_id.py <csrc> <header>. The header is left alone when nothing changed.
"""

import hashlib
import sys
from pathlib import Path

SUFFIXES = {".cpp", ".h", ".def", ".cuh"}


def build_id(root: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(p for p in root.rglob("*") if p.suffix in SUFFIXES and p.is_file()):
        name = path.relative_to(root).as_posix().encode()
        data = path.read_bytes()
        digest.update(b"%d %d " % (len(name), len(data)) + name + data)
    return digest.hexdigest()[:32]


def main() -> None:
    root, header = Path(sys.argv[1]), Path(sys.argv[2])
    text = (
        "#pragma once\n"
        "// Written by tools/build_id.py: a hash over csrc, part of every cache key.\n"
        f'#define MLCC_BUILD_ID "{build_id(root)}"\n'
    )
    if not header.exists() or header.read_text() != text:
        header.write_text(text)


if __name__ == "__main__":
    main()
