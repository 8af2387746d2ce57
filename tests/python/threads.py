"""Several threads that begin at the same moment."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


def at_once(*functions: Callable[[], Any]) -> list[Any]:
    """Each function's result; all begin at the same moment, and the first error is raised."""
    barrier = threading.Barrier(len(functions))
    results: list[Any] = [None] * len(functions)
    errors: list[BaseException] = []

    def work(place: int) -> None:
        barrier.wait()
        try:
            results[place] = functions[place]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]
    return results
