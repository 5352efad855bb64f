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

    def forward(
        self,
        stream: int,
        inputs: tuple[Any, ...],
        o: Any | None,
        arrays: tuple[Any, ...],
        cache: Cache | None,
        needs_lse: bool,
    ) -> tuple[Any, Any | None]: ...
    def backward(
        self, stream: int, operands: tuple[Any, ...], arrays: tuple[Any, ...], gradients: tuple[Any, ...]
    ) -> None: ...

class Calls:
    """Forward passes of the same scalars that have no tensor but q, k, v and those of lengths, by how these lie."""

    def __new__(cls, most: int) -> Calls: ...
    def __len__(self) -> int: ...
    def keep(self, q: Any, k: Any, v: Any, lengths: tuple[Any, Any, int, int], call: Call) -> None: ...
    def forward(
        self, q: Any, k: Any, v: Any, lengths: tuple[Any, Any, int, int], needs_lse: bool
    ) -> tuple[Any, Any | None] | None: ...

def checked(
    place: tuple[int, int],
    dtype: int,
    options: Options,
    operands: Sequence[View],
    arrays: Any,
    allocate: Callable[[int, int], Any] | None,
    results: tuple[Callable[[], Any], Callable[[], Any]] | None,
) -> Call: ...
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
