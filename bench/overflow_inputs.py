#!/usr/bin/env python3
"""Times inputs that drive kernels off their fast path beside inputs that do not, and prints what the slow path costs.

The kernels for 16-bit inputs keep a row's maximum for as long as no exponential can overflow, and compute a tile again where one
did (docs/how-it-works.md). Here q, k and v hold what makes that happen: scores of large size, an attention sink, scores that grow or
fall along the keys. No mask. Every figure is the sustained one of `ferroflash bench`, which checks the result first; the last
column is time over the time of N(0, 1).
"""
import argparse

import runs

BATCH, HEADS, SEQ = 2, 16, 8192
RANDOM = "random"
OTHERS = ("large", "sink-first", "growing-fast", "falling", "falling-fast")
# f16 leaves its fast path sooner than bf16: its probabilities overflow above 65504.
CELLS = [("bf16", 64), ("bf16", 128), ("bf16", 256), ("f16", 128)]


def bench(binary, dtype, dim, inputs):
    shape = ["--batch", BATCH, "--heads", HEADS, "--seq-q", SEQ, "--seq-kv", SEQ, "--head-dim", dim]
    arguments = [*shape, "--dtype", dtype, "--mask", "none", "--input", inputs]
    report = runs.ferroflash_bench(binary, *arguments)
    return dict(report, command=" ".join(map(str, ["bench", *arguments])))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", metavar="FERROFLASH")
    parser.add_argument("--json", metavar="FILE", help="write the figures there")
    args = parser.parse_args()
    rows = []
    print("| dtype | d | input | µs | over N(0, 1) |\n|---|---|---|---|---|", flush=True)
    for dtype, dim in CELLS:
        for inputs in (RANDOM, *OTHERS):
            report = bench(args.binary, dtype, dim, inputs)
            if inputs == RANDOM:
                random_ms = report["ms_sustained"]
            ratio = report["ms_sustained"] / random_ms
            rows.append(dict(dtype=dtype, head_dim=dim, input=inputs, ratio=ratio, report=report))
            print(f"| {dtype} | {dim} | {inputs} | {report['ms_sustained'] * 1e3:.0f} | {ratio:.2f} |", flush=True)
    worst = max(rows, key=lambda row: row["ratio"])
    print(f"highest {worst['ratio']:.2f}: {worst['dtype']}, {worst['head_dim']}, {worst['input']}")
    if args.json:
        runs.write_json(args.json, **runs.head(worst["report"]["device"]), rows=rows)


if __name__ == "__main__":
    runs.exit_with(main)
