#!/usr/bin/env python3
"""Times attention of one query to a cache beside PyTorch's cuDNN and FlashAttention-2, dense, and prints ours over the best.
With --flashinfer also on pages of 16 beside FlashInfer.

Everybody is timed as `ferroflash bench --graph` times us: a CUDA graph of CALLS calls, over so many copies of the cache that
together they exceed what a GPU's L2 holds twice over, replayed REPLAYS times; the median of the second half, over the calls.
bf16; 32 query heads on 8 unless a cell says otherwise; all have their tensors in the same layout. Ours checks its result first.
"""
import argparse

import flashinfer_peer
import runs

CALLS, REPLAYS, ROTATED_BYTES = 20, 30, 256 << 20
HEADS, HEADS_KV = 32, 8
PAGE = 16  # keys
# Batch, keys, head_dim, and query heads on heads of k and v.
CELLS = [
    (64, 8192, 128, HEADS, HEADS_KV), (16, 32768, 128, HEADS, HEADS_KV), (128, 2048, 128, HEADS, HEADS_KV),
    (256, 1024, 128, HEADS, HEADS_KV), (1, 131072, 128, HEADS, HEADS_KV), (8, 8192, 128, HEADS, HEADS_KV),
    (1, 32768, 128, HEADS, HEADS_KV), (1, 8192, 128, HEADS, HEADS_KV), (1, 1024, 128, HEADS, HEADS_KV),
    (64, 8192, 64, HEADS, HEADS_KV), (16, 8192, 256, HEADS, HEADS_KV), (64, 8192, 128, 64, 4),
]
PEERS = dict(cudnn="CUDNN_ATTENTION", fa2="FLASH_ATTENTION")


def ours(binary, cell, layout, *options):
    """Microseconds of a call by `binary`, and the report."""
    batch, keys, dim, heads, heads_kv = cell
    shape = ["--batch", batch, "--heads", heads, "--heads-kv", heads_kv, "--seq-q", 1, "--kv-len", keys, "--head-dim", dim,
             "--layout", layout]
    report = runs.ferroflash_bench(binary, *shape, "--dtype", "bf16", f"--graph={CALLS}", *options)
    return report["us_graph"], report


def peer_us(name, cell, layout):
    """Microseconds of a call of a peer; None where it refuses the cell."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    batch, keys, dim, heads, heads_kv = cell
    copies = min(CALLS, max(1, -(-ROTATED_BYTES // (4 * batch * keys * heads_kv * dim))))

    def random(heads, length):
        order = (heads, length) if layout == "bhsd" else (length, heads)
        tensor = torch.randn((batch, *order, dim), device="cuda", dtype=torch.bfloat16)
        return tensor if layout == "bhsd" else tensor.transpose(1, 2)

    q = random(heads, 1)
    caches = [(random(heads_kv, keys), random(heads_kv, keys)) for _ in range(copies)]

    def calls():
        for call in range(CALLS):
            k, v = caches[call % copies]
            scaled_dot_product_attention(q, k, v, enable_gqa=True)

    with torch.no_grad(), sdpa_kernel([getattr(SDPBackend, PEERS[name])]):
        try:
            calls()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                calls()
        except RuntimeError as error:
            print(f"{name}: {runs.last_line(str(error))}")
            return None
    return runs.graph_us(graph, REPLAYS) / CALLS


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="ferroflash, built with CUDA")
    parser.add_argument("--old", help="an older build, timed too")
    parser.add_argument("--json", help="file for all reports")
    parser.add_argument("--cells", help="numbers of the cells to time, from 0, with commas")
    parser.add_argument("--layouts", default="bshd,bhsd", help="those of q, o and the cache, ours and the peers', with commas")
    parser.add_argument("--flashinfer", action="store_true", help="FlashInfer on pages of 16, which ours has then too, in bshd")
    parser.add_argument("--others", action="store_true", help="pages of 16 and of 1, and an e4m3 cache, too")
    args = parser.parse_args()
    others = dict(
        pages16=["--page-size", PAGE], pages1=["--page-size", 1], e4m3=["--kv-dtype", "e4m3", "--kv-scale", "tensor"]
    ) if args.others else {}
    if args.flashinfer:
        others["pages16"] = ["--page-size", PAGE]
    columns = ["us", *(["old"] if args.old else []), *others, *(["flashinfer"] if args.flashinfer else []), *PEERS]
    print(f"| batch × keys, d, heads | layout | {' | '.join(columns)} | TB/s | over the best peer |")
    print("|---" * (len(columns) + 4) + "|", flush=True)
    numbers = [int(n) for n in args.cells.split(",")] if args.cells else range(len(CELLS))
    rows = []
    for cell, layout in ((CELLS[n], layout) for n in numbers for layout in args.layouts.split(",")):
        us, report = ours(args.binary, cell, layout)
        row = dict(us=us)
        if args.old:
            row["old"] = ours(args.old, cell, layout)[0]
        row |= {name: ours(args.binary, cell, layout, *options)[0] for name, options in others.items()}
        if args.flashinfer:
            row["flashinfer"], kernel = flashinfer_peer.decode_us(cell, PAGE, CALLS, REPLAYS, ROTATED_BYTES)
            row["flashinfer_kernel"] = kernel
        row |= {name: peer_us(name, cell, layout) for name in PEERS}
        again, _ = ours(args.binary, cell, layout)
        row["us"] = (us + again) / 2
        best = min((row[name] for name in PEERS if row[name]), default=None)
        rate = report["kv_gbs_graph"] * us / row["us"] / 1e3
        figures = " | ".join("–" if row[name] is None else f"{row[name]:.1f}" for name in columns)
        ratio = f"{best / row['us']:.2f}" if best else "–"
        batch, keys, dim, heads, heads_kv = cell
        print(f"| {batch} × {keys}, {dim}, {heads} on {heads_kv} | {layout} | {figures} | {rate:.2f} | {ratio} |", flush=True)
        rows.append(dict(cell=cell, layout=layout, us=row, again=again, report=report))
    if args.json:
        runs.write_json(args.json, **runs.head(rows[0]["report"]["device"], rows=rows))


if __name__ == "__main__":
    runs.exit_with(main)
