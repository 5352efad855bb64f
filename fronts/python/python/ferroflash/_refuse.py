"""Refusal of arguments that other libraries take and this one does not."""

from __future__ import annotations


def refuse(**given: bool) -> None:
    """Raises NotImplementedError that names the first argument which is given and not supported.

    Each keyword is the name of an argument, its value whether the caller gave it another value than one that changes nothing.
    """
    for name, is_given in given.items():
        if is_given:
            raise NotImplementedError(f"{name}: ferroflash does not support it yet; it must be left at its default")
