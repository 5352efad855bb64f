"""Microseconds that a call keeps its caller, on a GPU: `python tools/host_time.py`.

Each call is queued behind work that holds the GPU up, so that no call waits for it, with the garbage collector off. Functions take
turns, as a machine's other work slows some rounds down by half: printed are the time that a tenth of the rounds did not exceed, and
the median. torch's own functions are timed beside.
"""

from __future__ import annotations

import gc
import statistics
import time
from typing import Any, Callable

import ferroflash
import torch
import torch.nn.functional as functional
from torch.nn.attention import SDPBackend, sdpa_kernel

CALLS, ROUNDS = 100, 40


def print_times(calls: dict[str, Callable[[], Any]]) -> None:
    """Of each call, the time on the host that a tenth of the rounds did not exceed, and the median."""
    rounds: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        for _ in range(20):
            call()
    for _ in range(ROUNDS):
        for name, call in calls.items():
            torch.cuda.synchronize()
            torch.cuda._sleep(20_000_000)
            begin = time.perf_counter()
            for _ in range(CALLS):
                call()
            rounds[name].append((time.perf_counter() - begin) / CALLS * 1e6)
    torch.cuda.synchronize()
    for name, times in rounds.items():
        print(f"{statistics.quantiles(times, n=10)[0]:7.1f} {statistics.median(times):7.1f} us  {name}")


def calls() -> dict[str, Callable[[], Any]]:
    """What is timed, by name: bf16, batch 1, 128 rows, 4 heads of 64; longer sequences are packed ones of about equal length, and
    mixed ones, whose tiles a kernel lists before."""
    q, k, v = (torch.randn(1, 128, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    first = [x.transpose(1, 2) for x in (q, k, v)]
    rows = [x[0] for x in (q, k, v)]
    sums = torch.tensor([0, 60, 128], device="cuda", dtype=torch.int32)
    long = [torch.randn(4096, 4, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
    equal = torch.arange(0, 4097, 1024, device="cuda", dtype=torch.int32)
    mixed = torch.tensor([0, *range(16, 2049, 16), 4096], device="cuda", dtype=torch.int32)
    with_grad = [x.clone().requires_grad_() for x in (q, k, v)]
    d_o = torch.randn_like(q)

    def training() -> None:
        torch.autograd.grad(ferroflash.flash_attn_func(*with_grad, causal=True), with_grad, d_o)

    return {
        "torch.empty_like": lambda: torch.empty_like(q),
        "flash_attn_func": lambda: ferroflash.flash_attn_func(q, k, v, causal=True),
        "flash_attn_varlen_func": lambda: ferroflash.flash_attn_varlen_func(*rows, sums, sums, 128, 128, causal=True),
        "flash_attn_varlen_func, longer": lambda: ferroflash.flash_attn_varlen_func(
            *long, equal, equal, 1024, 1024, causal=True
        ),
        "flash_attn_varlen_func, mixed": lambda: ferroflash.flash_attn_varlen_func(
            *long, mixed, mixed, 2048, 2048, causal=True
        ),
        "scaled_dot_product_attention": lambda: ferroflash.scaled_dot_product_attention(*first, is_causal=True),
        "flash_attn_func, autograd, forward": lambda: ferroflash.flash_attn_func(*with_grad, causal=True),
        "flash_attn_func, autograd, both passes": training,
    }


def main() -> None:
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    gc.disable()
    print_times(calls())
    q, k, v, d_o = (torch.randn(1, 4, 128, 64, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    with_grad = [x.clone().requires_grad_() for x in (q, k, v)]

    def sdpa() -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def both() -> None:
        o = functional.scaled_dot_product_attention(*with_grad, is_causal=True)
        torch.autograd.grad(o, with_grad, d_o)

    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        print_times({"torch's own, FlashAttention-2": sdpa, "torch's own, FlashAttention-2, both passes": both})
        ferroflash.activate()
        print_times({"torch's own, after activate()": sdpa, "torch's own, after activate(), both passes": both})
        ferroflash.restore()
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        print_times({"torch's own, cuDNN": sdpa})


if __name__ == "__main__":
    main()
