"""Attention on operands given by address: the half that is written in Rust."""

from collections.abc import Callable
from typing import Any

__version__: str

_Operand = tuple[int, tuple[int, ...], tuple[int, ...]]

class Options:
    """Everything but the tensors: made once, for any number of calls."""

    def __new__(
        cls,
        *,
        softmax_scale: float | None = None,
        softcap: float | None = None,
        left: int | None = None,
        right: int | None = None,
        top_left: bool = False,
        heads_first: bool = False,
        deterministic: bool = False,
    ) -> Options: ...

def launch(
    device: int,
    stream: int,
    dtype: int,
    options: Options,
    q: _Operand,
    k: _Operand,
    v: _Operand,
    o: _Operand,
    lse: int | None,
    packed: tuple[int, int, int, int, int] | None,
    seqused_kv: int | None,
    alibi_slopes: tuple[int, bool] | None,
    allocate: Callable[[int, bool], Any],
    is_capturing: bool,
    gradients: tuple[_Operand, int | None, _Operand, _Operand, _Operand, int | None] | None = None,
) -> None: ...
def device_names() -> list[str]: ...
