"""How a peer is timed: by the definitions that `ferroflash bench` has (cli/src/bench/protocol.rs), in
the same words and with the same numbers. bench/README.md says why.

sustained  Calls are queued without a pause for SUSTAIN_S, a chunk at a time, until the GPU has settled at its power
           limit. Of every chunk the first quarter does not count; of what counts, the median of the second half.
burst      The GPU idles for IDLE_S, then BURST_CALLS calls are queued, the first of which does not count. The median of
           the burst, and of BURSTS of them.

All calls of a chunk or a burst are queued before any is waited for, with a CUDA event between each two.
"""
import statistics
import subprocess
import time
from dataclasses import dataclass

SUSTAIN_S = 1.5
# A chunk has as many calls as take CHUNK_MS, within bounds; of them, one in CHUNK_DROPPED is dropped from the start.
CHUNK_MS, FEWEST_CALLS, MOST_CALLS, CHUNK_DROPPED = 100.0, 4, 64, 4
BURSTS, BURST_CALLS, BURST_DROPPED, IDLE_S = 9, 6, 1, 0.030
WARM_UP_CALLS = 3
# Milliseconds from one reading of clock and power to the next.
READING_MS = 40


@dataclass
class Times:
    """What a call took: milliseconds, and clock (MHz) and power (W) while calls were sustained, None where unknown."""

    ms_sustained: float
    ms_burst: float | None
    clock_mhz: float | None = None
    watts: float | None = None


def chunk_calls(one_ms):
    """Calls of a chunk, where one takes one_ms."""
    return max(FEWEST_CALLS, min(MOST_CALLS, int(CHUNK_MS / max(one_ms, 1e-6))))


def counted_of_chunk(ms):
    """The calls of a chunk that count."""
    return ms[len(ms) // CHUNK_DROPPED:]


def second_half(values):
    """What was measured once the GPU had settled."""
    return values[len(values) // 2:]


class Gauge:
    """Clock and power of a GPU inside a `with`, read by nvidia-smi: the medians of the second half of its readings.

    `gpu` is what nvidia-smi's --id takes: a UUID, a PCI bus id or a number.
    """

    def __init__(self, gpu):
        self.command = ["nvidia-smi", f"--id={gpu}", "--query-gpu=clocks.sm,power.draw.instant",
                        "--format=csv,noheader,nounits", f"--loop-ms={READING_MS}"]
        self.clock_mhz = self.watts = None

    def __enter__(self):
        try:
            self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        except FileNotFoundError:
            self.process = None
        return self

    def __exit__(self, *_):
        if self.process is None:
            return
        self.process.terminate()
        lines = self.process.communicate()[0].splitlines()
        late = second_half([reading for reading in map(reading_of, lines) if reading])
        if late:
            self.clock_mhz, self.watts = (statistics.median(column) for column in zip(*late))


def reading_of(line):
    """(MHz, W) of a line of nvidia-smi's; None of a line that is not whole or has no numbers."""
    try:
        clock_mhz, watts = map(float, line.split(","))
    except ValueError:
        return None
    return clock_mhz, watts


def times(queue, gpu):
    """Times of a call. `queue(n)` makes n calls, all queued before any is waited for, and returns the ms of each."""
    queue(WARM_UP_CALLS)
    chunk = chunk_calls(queue(WARM_UP_CALLS)[-1])
    counted = []
    with Gauge(gpu) as gauge:
        begin = time.perf_counter()
        while not counted or time.perf_counter() - begin < SUSTAIN_S:
            counted += counted_of_chunk(queue(chunk))
    bursts = []
    for _ in range(BURSTS):
        time.sleep(IDLE_S)
        bursts.append(statistics.median(queue(BURST_CALLS)[BURST_DROPPED:]))
    ms_sustained = statistics.median(second_half(counted))
    return Times(ms_sustained, statistics.median(bursts), gauge.clock_mhz, gauge.watts)


def torch_queue(call):
    """The `queue` of a PyTorch call."""
    import torch

    def queue(n):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
        marks[0].record()
        for mark in marks[1:]:
            call()
            mark.record()
        torch.cuda.synchronize()
        return [start.elapsed_time(stop) for start, stop in zip(marks, marks[1:])]

    return queue
