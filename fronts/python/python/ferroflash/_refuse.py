"""Refusal of arguments that other libraries take and this one does not."""

from __future__ import annotations

from typing import Any


def refuse(**given: Any) -> None:
    """Raises NotImplementedError that names the first argument which is given and not supported.

    Each keyword is the name of an argument; None, False and the number 0 are values by which it is not given.
    """
    for name, value in given.items():
        if value is not None and not (isinstance(value, (int, float)) and value == 0):
            raise NotImplementedError(f"{name}: ferroflash does not support it yet; it must be left at its default")
