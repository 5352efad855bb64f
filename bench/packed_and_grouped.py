#!/usr/bin/env python3
"""Times grouped-query and packed problems beside dense ones of equal FLOPs, one after the other, and prints the ratios.

usage: packed_and_grouped.py FERROFLASH [--seeds 1,2,3,4,5] [--json FILE]

bf16, head_dim 128, no mask and causal. Every figure is the median of `ferroflash bench`, which checks the result first.
* 64 query heads on 8 heads of k and v, 8192 tokens, beside 64 on 64.
* 8 packed sequences of 2048 tokens, beside the same unpacked.
* 8 packed sequences of uneven lengths, 16384 tokens together, beside a dense batch of about as many tokens and FLOPs.
* Few queries on 8192 keys, 64 query heads on 8: nothing to compare with, printed alone.
"""
import argparse, datetime, json, subprocess, sys

TOKENS, BATCH, HEADS, DIM = 16384, 8, 16, 128
DENSE = ["--heads", HEADS]
GROUPED = ["--heads", 64, "--heads-kv", 8]
# Batch and queries of the last group of shapes.
FEW_QUERIES = [(32, 1), (32, 16), (32, 100), (8, 1000)]

def bench(binary, mask, shape):
    command = [binary, "bench", "--json", "--head-dim", DIM, "--dtype", "bf16", "--mask", mask, *shape]
    command = [str(part) for part in command]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{run.stderr}")
    report = json.loads(run.stdout)
    return dict(report, command=" ".join(command[1:]))

def square(batch, seq):
    return ["--batch", batch, "--seq-q", seq, "--seq-kv", seq]

def of_equal_flops(report):
    """The dense batch nearest to an unmasked `report` in tokens whose FLOPs, 4 * heads * dim * batch * seq^2, are the same."""
    sum_of_squares = report["tflops"] * report["ms_median"] * 1e9 / (4 * HEADS * DIM)
    batch = max(1, round(TOKENS * TOKENS / sum_of_squares))
    return batch, round((sum_of_squares / batch) ** 0.5)

def main():
    p = argparse.ArgumentParser()
    p.add_argument("binary")
    p.add_argument("--seeds", default="1,2,3,4,5")
    p.add_argument("--json")
    a = p.parse_args()
    rows = []

    def show(name, mask, report, dense=None):
        ratio = dense and report["tflops"] / dense["tflops"]
        rows.append(dict(name=name, mask=mask, ratio=ratio, report=report, dense=dense))
        beside = f" | {dense['tflops']:.0f} | {ratio:.3f}" if dense else " | – | –"
        print(f"| {name} | {mask} | {report['ms_median'] * 1e3:.1f} | {report['tflops']:.0f}{beside} |", flush=True)

    print("| shape | mask | µs | TFLOP/s | dense | ratio |\n|---|---|---|---|---|---|")
    even = [*DENSE, *square(BATCH, TOKENS // BATCH)]
    packed = [*DENSE, "--varlen", ",".join([str(TOKENS // BATCH)] * BATCH)]
    dense_of_seed = {}
    for mask in ["none", "causal"]:
        run = lambda shape: bench(a.binary, mask, shape)
        show("64 heads on 8, 8192", mask, run([*GROUPED, *square(1, 8192)]), run(["--heads", 64, *square(1, 8192)]))
        show(f"{BATCH} × {TOKENS // BATCH} packed", mask, run(packed), run(even))
        for seed in a.seeds.split(","):
            report = run([*even, "--varlen-seed", seed])
            batch, seq = dense_of_seed.setdefault(seed, of_equal_flops(report))
            show(f"uneven, seed {seed}, beside {batch} × {seq}", mask, report, run([*DENSE, *square(batch, seq)]))
    for batch, queries in FEW_QUERIES:
        report = bench(a.binary, "causal", [*GROUPED, "--batch", batch, "--seq-q", queries, "--seq-kv", 8192])
        show(f"{batch} × 64 heads on 8, {queries} queries on 8192 keys", "causal", report)
    compared = [row for row in rows if row["ratio"]]
    worst = min(compared, key=lambda row: row["ratio"])
    print(f"lowest ratio {worst['ratio']:.3f}: {worst['name']}, {worst['mask']}")
    if a.json:
        commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
        device, date = rows[0]["report"]["device"], str(datetime.date.today())
        head = dict(device=device, date=date, commit=commit, command=" ".join(sys.argv))
        with open(a.json, "w") as file:
            json.dump(dict(head, rows=rows), file, indent=1)

if __name__ == "__main__":
    main()
