"""Calls from several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def from_threads(call: Callable[[], T]) -> list[T]:
    """What 80 calls return, 20 from each of four threads."""
    results: list[T] = []

    def work() -> None:
        results.extend(call() for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
