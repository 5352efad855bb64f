"""Refusal of arguments that other libraries take and this one does not."""

from __future__ import annotations

from typing import Any


def has_unknown(unknown: dict[str, Any]) -> bool:
    """Whether an argument that only some releases of torch have is given; a number of splits cannot change a result."""
    return any(value is not None for name, value in unknown.items() if name != "num_splits")


def refuse_alone(**pair: Any) -> None:
    """Raises ValueError that names the one of two arguments which is None where the other is given."""
    if len({value is None for value in pair.values()}) == 2:
        missing, given = sorted(pair, key=lambda name: pair[name] is not None)
        raise ValueError(f"{missing}: it is None; it must be given where {given} is")


def refuse(**given: Any) -> None:
    """Raises NotImplementedError that names the first argument which is given and not supported.

    Each keyword is the name of an argument; None, False and the number 0 are values by which it is not given.
    """
    for name, value in given.items():
        if value is not None and not (isinstance(value, (int, float)) and value == 0):
            raise NotImplementedError(f"{name}: ferroflash does not support it yet; it must be left at its default")
