"""Files of caches: written whole or not at all, and read only where nobody else could have written them."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

TEMPORARY = ".tmp-"  # how names of unfinished files begin


def is_of_others(status: os.stat_result) -> bool:
    """Whether others than this user own a file or folder, or may write to it."""
    return status.st_uid != os.geteuid() or bool(status.st_mode & 0o022)


def write(path: Path, data: bytes, temporary: str = TEMPORARY) -> None:
    """Under another name beside it, which begins with `temporary`, then renamed: readers see all of it or nothing."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=temporary)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
