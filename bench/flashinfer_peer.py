"""FlashInfer's decode of one query on a cache in pages, timed as `decode.py` times us.

Needs flashinfer-python and apache-tvm-ffi, which compile its kernels with nvcc at the first call of a head_dim.
"""
import runs


def decode_us(cell, page_size, calls, replays, rotated_bytes):
    """Microseconds of a call, in bf16 on shuffled pages of [page_size, heads_kv, head_dim], planned before: by the faster of its
    kernels with and without tensor cores, and which that is."""
    figures = {name: _us(cell, page_size, calls, replays, rotated_bytes, tensor) for name, tensor in
               (("cores", False), ("tensor cores", True))}
    fastest = min(figures, key=figures.get)
    return figures[fastest], fastest


def _us(cell, page_size, calls, replays, rotated_bytes, tensor_cores):
    import flashinfer
    import torch

    batch, keys, dim, heads, heads_kv = cell
    per_sequence = -(-keys // page_size)
    pages = batch * per_sequence
    copies = min(calls, max(1, -(-rotated_bytes // (4 * pages * page_size * heads_kv * dim))))
    make = dict(device="cuda", dtype=torch.bfloat16)
    caches = [tuple(torch.randn(pages, page_size, heads_kv, dim, **make) for _ in "kv") for _ in range(copies)]
    q, o = torch.randn(batch, heads, dim, **make), torch.empty(batch, heads, dim, **make)
    begins = torch.arange(batch + 1, device="cuda", dtype=torch.int32) * per_sequence
    table = torch.randperm(pages, device="cuda").int()
    last = torch.full((batch,), (keys - 1) % page_size + 1, device="cuda", dtype=torch.int32)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.zeros(256 << 20, device="cuda", dtype=torch.uint8), "NHD", use_cuda_graph=True, use_tensor_cores=tensor_cores,
        paged_kv_indptr_buffer=begins, paged_kv_indices_buffer=table, paged_kv_last_page_len_buffer=last)
    wrapper.plan(begins, table, last, heads, heads_kv, dim, page_size, q_data_type=torch.bfloat16, kv_data_type=torch.bfloat16)

    def all_calls():
        for call in range(calls):
            wrapper.run(q, caches[call % copies], out=o)

    all_calls()
    _check(q, o, caches[(calls - 1) % copies], table.view(batch, per_sequence), keys)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        all_calls()
    return runs.graph_us(graph, replays) / calls


def _check(q, o, cache, table, keys):
    """Of the first sequence, beside PyTorch: what is timed is the same problem."""
    import torch

    k, v = (x[table[0].long()].flatten(0, 1)[None, :keys].transpose(1, 2) for x in cache)
    expected = torch.nn.functional.scaled_dot_product_attention(q[:1, :, None], k, v, enable_gqa=True)
    torch.testing.assert_close(o[:1, :, None], expected, rtol=2e-2, atol=2e-2)
