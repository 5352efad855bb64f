"""Exact fused attention (FlashAttention) with GPU kernels written in Rust.

At the top are FlashAttention 2's functions, `scaled_dot_product_attention`, and `activate` / `restore`, by which torch's own
attention runs on ferroflash. The functions of FlashAttention 3 and 4 are in `ferroflash.fa3` and `ferroflash.fa4`, one
function with every option in `ferroflash.torch`, caches of keys and values, in pages too, in `ferroflash.cache`, the models of
transformers in `ferroflash.transformers`, and a function for arrays of JAX in `ferroflash.jax`.

Importing this package imports neither torch nor transformers nor jax; the first use of a name does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._native import __version__, device_names

if TYPE_CHECKING:
    from . import cache, fa3, fa4, torch, transformers
    from . import jax as jax  # not among all names: who imports those need not have JAX
    from .fa2 import (
        flash_attn_func,
        flash_attn_kvpacked_func,
        flash_attn_qkvpacked_func,
        flash_attn_varlen_func,
        flash_attn_varlen_kvpacked_func,
        flash_attn_varlen_qkvpacked_func,
        flash_attn_with_kvcache,
    )
    from .registry import activate, restore
    from .sdpa import scaled_dot_product_attention

__all__ = [
    "__version__",
    "activate",
    "cache",
    "device_names",
    "fa3",
    "fa4",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "restore",
    "scaled_dot_product_attention",
    "torch",
    "transformers",
]

_SUBMODULES = ("cache", "fa2", "fa3", "fa4", "jax", "registry", "sdpa", "torch", "transformers")
_HOMES = {"activate": "registry", "restore": "registry", "scaled_dot_product_attention": "sdpa"}


def __getattr__(name: str) -> Any:
    """Imports a submodule, or what a name at the top stands for, at its first use (PEP 562)."""
    if name in _SUBMODULES:
        return importlib.import_module(f".{name}", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES.get(name, 'fa2')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
