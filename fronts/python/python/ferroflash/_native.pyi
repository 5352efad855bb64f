"""Attention on operands given by address: the half that is written in Rust."""

from collections.abc import Callable
from typing import Any

__version__: str

Operand = tuple[int, tuple[int, ...], tuple[int, ...]]

class Options:
    """Everything but the tensors, of `Arguments`: made once, for any number of calls."""

    def __new__(cls, scalars: Any) -> Options: ...

def launch(
    device: int,
    stream: int,
    dtype: int,
    options: Options,
    operands: tuple[Operand, ...],
    lse: int | None,
    arrays: Any,
    allocate: Callable[[int, int], Any],
    is_capturing: bool,
) -> None: ...
def device_names() -> list[str]: ...
