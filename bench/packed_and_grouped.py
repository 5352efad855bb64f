#!/usr/bin/env python3
"""Times grouped-query and packed problems beside dense ones of equal FLOPs, one after the other, and prints the ratios.

bf16, head_dim 128, no mask and causal. Every figure is the sustained one of `ferroflash bench`, which checks the result first.
* 64 query heads on 8 heads of k and v, 8192 tokens, beside 64 on 64.
* 8 packed sequences of 2048 tokens, beside the same unpacked.
* 8 packed sequences of uneven lengths, 16384 tokens together, beside a dense batch of about as many tokens and FLOPs.
* Few queries on 8192 keys, 64 query heads on 8: nothing to compare with, printed alone.
"""
import argparse

import runs

TOKENS, BATCH, HEADS, DIM = 16384, 8, 16, 128
DENSE = ["--heads", HEADS]
GROUPED_HEADS = 64
GROUPED = ["--heads", GROUPED_HEADS, "--heads-kv", 8]
LONG = 8192
# Batch and queries of the last group of shapes.
FEW_QUERIES = [(32, 1), (32, 16), (32, 100), (8, 1000)]


def square(batch, seq):
    return ["--batch", batch, "--seq-q", seq, "--seq-kv", seq]


EVEN = [*DENSE, *square(BATCH, TOKENS // BATCH)]
PACKED = [*DENSE, "--varlen", ",".join([str(TOKENS // BATCH)] * BATCH)]


class Table:
    """What was timed so far, printed as it comes."""

    def __init__(self, binary):
        self.binary = binary
        self.rows = []
        print("| shape | mask | µs | TFLOP/s | dense | ratio |\n|---|---|---|---|---|---|", flush=True)

    def bench(self, mask, shape):
        arguments = ["--head-dim", DIM, "--dtype", "bf16", "--mask", mask, *shape]
        report = runs.ferroflash_bench(self.binary, *arguments)
        return dict(report, command=" ".join(map(str, ["bench", *arguments])))

    def add(self, name, mask, report, dense=None):
        ratio = dense and report["tflops"] / dense["tflops"]
        self.rows.append(dict(name=name, mask=mask, ratio=ratio, report=report, dense=dense))
        beside = f"{dense['tflops']:.0f} | {ratio:.3f}" if dense else "– | –"
        print(f"| {name} | {mask} | {report['ms_sustained'] * 1e3:.1f} | {report['tflops']:.0f} | {beside} |", flush=True)


def of_equal_flops(report):
    """Batch and length of the dense problem nearest to an unmasked `report` in tokens that has as many FLOPs,
    4 * heads * dim * batch * seq^2."""
    sum_of_squares = report["tflops"] * report["ms_sustained"] * 1e9 / (4 * HEADS * DIM)
    batch = max(1, round(TOKENS * TOKENS / sum_of_squares))
    return batch, round((sum_of_squares / batch) ** 0.5)


def time_beside_dense(table, seeds):
    dense_of_seed = {}
    for mask in ("none", "causal"):
        grouped = table.bench(mask, [*GROUPED, *square(1, LONG)])
        ungrouped = table.bench(mask, ["--heads", GROUPED_HEADS, *square(1, LONG)])
        table.add(f"{GROUPED_HEADS} heads on 8, {LONG}", mask, grouped, ungrouped)
        table.add(f"{BATCH} × {TOKENS // BATCH} packed", mask, table.bench(mask, PACKED), table.bench(mask, EVEN))
        for seed in seeds:
            uneven = table.bench(mask, [*EVEN, "--varlen-seed", seed])
            # Found without a mask, which is timed first.
            batch, seq = dense_of_seed.setdefault(seed, of_equal_flops(uneven))
            dense = table.bench(mask, [*DENSE, *square(batch, seq)])
            table.add(f"uneven, seed {seed}, beside {batch} × {seq}", mask, uneven, dense)


def time_few_queries(table):
    for batch, queries in FEW_QUERIES:
        report = table.bench("causal", [*GROUPED, "--batch", batch, "--seq-q", queries, "--seq-kv", LONG])
        table.add(f"{batch} × {GROUPED_HEADS} heads on 8, {queries} queries on {LONG} keys", "causal", report)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", metavar="FERROFLASH")
    parser.add_argument("--seeds", default="1,2,3,4,5", metavar="N,…", help="of the uneven lengths (%(default)s)")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    table = Table(args.binary)
    time_beside_dense(table, args.seeds.split(","))
    time_few_queries(table)
    worst = min((row for row in table.rows if row["ratio"]), key=lambda row: row["ratio"])
    print(f"lowest ratio {worst['ratio']:.3f}: {worst['name']}, {worst['mask']}")
    if args.json:
        runs.write_json(args.json, **runs.head(worst["report"]["device"]), rows=table.rows)


if __name__ == "__main__":
    runs.exit_with(main)
