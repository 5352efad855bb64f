"""Attention on operands given by address: the half that is written in Rust."""

from collections.abc import Callable, Sequence
from typing import Any

__version__: str

# Shape and strides.
View = tuple[tuple[int, ...], tuple[int, ...]]
# An address beside it.
Operand = tuple[int, View]
# Whether it is of e4m3; the address of kv_lens; that of a block table, its columns, and the elements from one row to the next; an
# address and a view of scales, of k and of v; the address of a tree's words, and whether each sequence has its own.
Cache = tuple[bool, int, "tuple[int, int, int] | None", "Sequence[Operand] | None", "tuple[int, bool] | None"]

class Options:
    """Everything but the tensors, of `Arguments`: made once, for any number of calls."""

    def __new__(cls, scalars: Any) -> Options: ...

class Call:
    """A call without its addresses: made and checked once, for any number of launches."""

    def __new__(
        cls, device: int, stream: int, dtype: int, options: Options, operands: Sequence[View], arrays: Any
    ) -> Call: ...
    def launch(
        self,
        stream: int,
        is_capturing: bool,
        allocate: Callable[[int, int], Any],
        operands: tuple[Any, ...],
        arrays: tuple[Any, ...],
        cache: Cache | None,
        gradients: tuple[Any, ...] | None,
    ) -> None: ...

def append(
    place: tuple[int, int],
    dtype: int,
    operands: Sequence[Operand],
    cache: Cache,
    rotary: tuple[Sequence[Operand], bool] | None,
    q: Sequence[Operand] | None,
    slots: tuple[int, int] | None,
) -> None: ...
def signature(tensors: tuple[Any, ...]) -> bytes | None: ...
def device_names() -> list[str]: ...
def xla_targets() -> list[tuple[str, str, Any]]: ...
