"""Milliseconds of a training step of a stack of transformer blocks, by PyTorch's attention on cuDNN and by ferroflash.

    python tools/training_step.py > training-step.json

A block is a Llama's: hidden 2048, 16 heads of 128, an MLP of 8192, causal, bf16, 16 layers, batch 1: about 1.1 billion
parameters. A step is a forward and a backward pass, without an optimizer. Both attentions are timed by turns.
"""

from __future__ import annotations

import json
import statistics
from typing import Callable

import ferroflash
import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

HIDDEN, HEADS, HEAD_DIM, MLP, LAYERS = 2048, 16, 128, 8192, 16
ROUNDS, STEPS = 5, 4

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def by_cudnn(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
        first = (x.transpose(1, 2) for x in (q, k, v))
        return functional.scaled_dot_product_attention(*first, is_causal=True).transpose(1, 2)


def by_ferroflash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return ferroflash.flash_attn_func(q, k, v, causal=True)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.RMSNorm(HIDDEN) for _ in range(2))
        self.qkv = nn.Linear(HIDDEN, 3 * HEADS * HEAD_DIM, bias=False)
        self.out = nn.Linear(HEADS * HEAD_DIM, HIDDEN, bias=False)
        self.gate_up = nn.Linear(HIDDEN, 2 * MLP, bias=False)
        self.down = nn.Linear(MLP, HIDDEN, bias=False)

    def forward(self, x: Tensor, attention: Attention) -> Tensor:
        qkv = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, HEAD_DIM))
        x = x + self.out(attention(*qkv.unbind(2)).flatten(2))
        gate, up = self.gate_up(self.norms[1](x)).chunk(2, -1)
        return x + self.down(functional.silu(gate) * up)


def milliseconds(blocks: nn.ModuleList, x: Tensor, attention: Attention) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(STEPS):
        y = x
        for block in blocks:
            y = block(y, attention)
        y.backward(torch.ones_like(y))
        for parameter in blocks.parameters():
            parameter.grad = None
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / STEPS


def main() -> None:
    torch.manual_seed(0)
    with torch.device("cuda"):
        blocks = nn.ModuleList(Block() for _ in range(LAYERS)).bfloat16()
    report = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "steps": []}
    report["parameters"] = sum(parameter.numel() for parameter in blocks.parameters())
    for seq in (4096, 16384):
        x = torch.randn(1, seq, HIDDEN, device="cuda", dtype=torch.bfloat16)
        times: dict[str, list[float]] = {"cudnn": [], "ferroflash": []}
        attentions = {"cudnn": by_cudnn, "ferroflash": by_ferroflash}
        for attention in attentions.values():  # kernels are compiled and chosen
            milliseconds(blocks, x, attention)
        for _ in range(ROUNDS):
            for name, attention in attentions.items():
                times[name].append(round(milliseconds(blocks, x, attention), 2))
        medians = {name: statistics.median(each) for name, each in times.items()}
        report["steps"].append({"seq": seq, "milliseconds": times, "median": medians})
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
