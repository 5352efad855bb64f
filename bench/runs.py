"""What the scripts of this folder share: running `ferroflash bench`, and what a file of results says about its run."""
import datetime
import functools
import importlib.metadata
import json
import statistics
import subprocess
import sys
from pathlib import Path

# Distributions whose versions a file of results names, where they are installed.
PACKAGES = ("torch", "flash-attn-4", "flash-attn3-jax", "jax", "flashinfer-python")


class Incomparable(Exception):
    """A binary whose figures are by another protocol."""


def ferroflash_bench(binary, *arguments):
    """The report of `binary bench --json` with `arguments`."""
    command = [str(part) for part in (binary, "bench", "--json", *arguments)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"{' '.join(command)}: {last_line(run.stderr)}")
    report = json.loads(last_line(run.stdout))
    if "ms_sustained" not in report:
        raise Incomparable(f"{binary} prints no ms_sustained: it was built before `bench` had this protocol, and its figures "
                           "cannot be compared. Cherry-pick the commit that added host/src/bin/ferroflash/bench_protocol.rs "
                           "onto the commit to compare, and build that")
    return report


def graph_us(graph, replays):
    """Microseconds of a CUDA graph of torch: the median of the second half of `replays`."""
    import torch

    times = []
    for _ in range(replays):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return statistics.median(times[len(times) // 2:])


def call_us(call, calls, replays):
    """Microseconds of a call in a graph of `calls`."""
    import torch

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph_us(graph, replays) / calls


def exit_with(main):
    """Runs a script; where a binary fails or cannot be compared, says why in a line and exits with a status that tells."""
    try:
        main()
    except (Incomparable, RuntimeError) as error:
        sys.exit(str(error))


def last_line(text):
    return (text.strip().splitlines() or ["no message"])[-1]


def head(device, **more):
    """What a file of results begins with: where and when it was measured, of what, and by which command."""
    cudnn = torch_fact(lambda torch: torch.backends.cudnn.version())
    return dict(
        device=device,
        driver=output("nvidia-smi", f"--id={gpu_id()}", "--query-gpu=driver_version", "--format=csv,noheader"),
        versions={**{package: version(package) for package in PACKAGES}, "cudnn": cudnn},
        date=str(datetime.date.today()),
        commit=commit(),
        command=" ".join(sys.argv),
        **more,
    )


def write_json(path, **content):
    with open(path, "w") as file:
        json.dump(content, file, indent=1, allow_nan=False)
        file.write("\n")


def commit():
    """The commit of this checkout, marked where files differ from it; None outside of one."""
    return output("git", "-C", Path(__file__).parent, "describe", "--always", "--dirty")


@functools.cache
def gpu_id():
    """The id, for nvidia-smi, of the GPU that CUDA numbers 0 here: its UUID, where PyTorch tells."""
    uuid = torch_fact(lambda torch: torch.cuda.get_device_properties(0).uuid)
    by_uuid = f"GPU-{uuid}"
    return by_uuid if output("nvidia-smi", f"--id={by_uuid}", "--query-gpu=uuid", "--format=csv,noheader") else "0"


def torch_fact(fact):
    """What `fact` finds in PyTorch; None where that is not installed, finds no GPU or does not know."""
    try:
        import torch

        return fact(torch)
    except (ImportError, AttributeError, RuntimeError, AssertionError):
        return None


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def output(*command):
    """What a command prints; None where it is not there or fails."""
    try:
        run = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return run.stdout.strip() if run.returncode == 0 else None
