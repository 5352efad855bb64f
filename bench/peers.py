"""A call of each peer on a cell, ready to be timed.

cudnn, fa2, efficient   back ends of PyTorch's scaled_dot_product_attention
fa4                     PyPI's flash-attn-4, with nvidia-cutlass-dsl, its -libs-base, -libs-core and -libs-cu13, quack-kernels,
                        apache-tvm-ffi and torch-c-dlpack-ext
fa3                     PyPI's flash-attn3-jax: head_dim 128, f16 and bf16, in a process of its own (jax_fa3.py)
flex                    PyTorch's flex_attention, compiled: its causal mask as a BlockMask, a softcap as a score_mod

With a softcap fa4 and flex run: the others of PyTorch have none, and that of JAX is not asked.
"""
import json
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import protocol
import runs

SDPA_BACKENDS = dict(cudnn="CUDNN_ATTENTION", fa2="FLASH_ATTENTION", efficient="EFFICIENT_ATTENTION")
NAMES = [*SDPA_BACKENDS, "fa3", "fa4", "flex"]
WITH_SOFTCAP = ("fa4", "flex")
FA3_HEAD_DIM = 128


class NotMade(Exception):
    """A cell that a peer is not made for."""


def times(peer, cell):
    """protocol.Times of `peer` on `cell`. Whatever keeps it from running is raised."""
    if cell.softcap and peer not in WITH_SOFTCAP:
        raise NotMade
    if peer == "fa3":
        return fa3_times(cell)
    import torch

    forward, q, k, v = dict(fa4=fa4_forward, flex=flex_forward).get(peer, sdpa_forward)(cell)
    with sdpa_backend(peer):
        if cell.what == "bwd":
            o = forward()
            d_o = torch.randn_like(o)
            return timed(lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True))
        with torch.no_grad():
            return timed(forward)


def timed(call):
    return protocol.times(protocol.torch_queue(call), runs.gpu_id())


def sdpa_backend(peer):
    """Within it PyTorch's attention is that of `peer`, or fails."""
    if peer not in SDPA_BACKENDS:
        return nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([getattr(SDPBackend, SDPA_BACKENDS[peer])])


def sdpa_forward(cell):
    from torch.nn.functional import scaled_dot_product_attention

    q, k, v = operands(cell, (cell.batch, cell.heads, cell.seq, cell.d))
    return lambda: scaled_dot_product_attention(q, k, v, is_causal=cell.causal), q, k, v


def fa4_forward(cell):
    from flash_attn.cute import flash_attn_func

    q, k, v = operands(cell, (cell.batch, cell.seq, cell.heads, cell.d))

    def forward():
        o = flash_attn_func(q, k, v, causal=cell.causal, softcap=cell.softcap or 0.0)
        return o[0] if isinstance(o, tuple) else o

    return forward, q, k, v


def flex_forward(cell):
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = operands(cell, (cell.batch, cell.heads, cell.seq, cell.d))
    options = {}
    if cell.causal:
        options["block_mask"] = create_block_mask(lambda b, h, row, key: row >= key, None, None, cell.seq, cell.seq, device="cuda")
    if cell.softcap:
        options["score_mod"] = lambda score, b, h, row, key: cell.softcap * torch.tanh(score / cell.softcap)
    # Or else one compiled for too many shapes is run uncompiled.
    torch._dynamo.reset()
    compiled = torch.compile(flex_attention, dynamic=False)
    return lambda: compiled(q, k, v, **options), q, k, v


def operands(cell, shape):
    """q, k and v, N(0, 1)."""
    import torch

    dtype = dict(bf16=torch.bfloat16, f16=torch.float16, f32=torch.float32)[cell.dtype]
    return [torch.randn(shape, device="cuda", dtype=dtype, requires_grad=cell.what == "bwd") for _ in range(3)]


def fa3_times(cell):
    if cell.d != FA3_HEAD_DIM or cell.dtype == "f32":
        raise NotMade
    script = Path(__file__).with_name("jax_fa3.py")
    command = [sys.executable, str(script), json.dumps(vars(cell)), runs.gpu_id()]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(runs.last_line(run.stderr))
    return protocol.Times(**json.loads(runs.last_line(run.stdout)))
