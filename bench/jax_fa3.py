#!/usr/bin/env python3
"""Times FlashAttention-3 (flash-attn3-jax, head_dim 128) in a process of its own, and prints one line of JSON.

usage: jax_fa3.py CELL GPU      (JSON of side_by_side.py's Cell; the id of the GPU for nvidia-smi)

JAX queues calls and returns, but gives no event to put between two of them: only a clock around several calls can be
had, which is read once the last one is done. So the definitions of protocol.py are met this far:

sustained  Chunks are queued without a pause for SUSTAIN_S, and the time of a call is that of its chunk over its calls. The
           chunk's first quarter cannot be dropped. A chunk takes a tenth of a second, so what it costs to queue its
           first call and to notice the end of its last, some 50 us, is less than a thousandth. JAX itself stops a
           caller that is some 30 calls ahead of the GPU; those keep the queue filled.
burst      Cannot be had. What a clock sees of a short burst is mostly the queueing of its first call and the noticing of
           its end; the difference of two bursts of other lengths, which has neither, came out between 0.9 and 1.9 of the
           sustained rate on one GPU.
"""
import json
import os
import statistics
import sys
import time

import protocol

os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"  # beside PyTorch on one GPU
# What flash-attn3-jax calls a window without bounds.
NO_WINDOW = (-1, -1)


def jax_call(cell):
    """The call that runs `cell`, compiled, and what waits for its result."""
    import jax
    import jax.numpy as jnp
    from flash_attn3_jax.flash import _flash_mha_bwd, _flash_mha_fwd

    dtype = {"bf16": jnp.bfloat16, "f16": jnp.float16}[cell["dtype"]]
    shape = (cell["batch"], cell["seq"], cell["heads"], cell["d"])
    q, k, v, d_o = (jax.random.normal(key, shape, dtype) for key in jax.random.split(jax.random.key(0), 4))
    options = (float(cell["d"] ** -0.5), cell["causal"], NO_WINDOW)
    forward = jax.jit(lambda q, k, v: _flash_mha_fwd(q, k, v, *options))
    if cell["what"] == "fwd":
        return lambda: forward(q, k, v), jax.block_until_ready
    o, lse = forward(q, k, v)
    backward = jax.jit(lambda d_o, q, k, v, o, lse: _flash_mha_bwd(d_o, q, k, v, o, lse, *options))
    return lambda: backward(d_o, q, k, v, o, lse), jax.block_until_ready


def total_ms(call, wait, calls):
    """Milliseconds from before the first of `calls` is queued until the last is done."""
    begin = time.perf_counter()
    for _ in range(calls):
        result = call()
    wait(result)
    return (time.perf_counter() - begin) * 1e3


def times(call, wait, gpu):
    total_ms(call, wait, protocol.WARM_UP_CALLS)
    chunk = protocol.chunk_calls(total_ms(call, wait, protocol.WARM_UP_CALLS) / protocol.WARM_UP_CALLS)
    chunks = []
    with protocol.Gauge(gpu) as gauge:
        begin = time.perf_counter()
        while not chunks or time.perf_counter() - begin < protocol.SUSTAIN_S:
            chunks.append(total_ms(call, wait, chunk) / chunk)
    ms_sustained = statistics.median(protocol.second_half(chunks))
    return protocol.Times(ms_sustained, None, gauge.clock_mhz, gauge.watts)


if __name__ == "__main__":
    print(json.dumps(vars(times(*jax_call(json.loads(sys.argv[1])), sys.argv[2]))))
