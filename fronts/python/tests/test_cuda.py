"""What only a GPU has: streams, graphs, lengths that stay on the device, and shapes of a size that fills it."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import warnings
from typing import Any

import ferroflash
import pytest
import reference
import torch
import torch.nn.functional as functional
from ferroflash import _eager
from ferroflash.torch import attention
from torch.nn.attention import SDPBackend, sdpa_kernel

pytestmark = pytest.mark.cuda

# Those of flash-attn's own tests.
HEAD_DIMS = [32, 40, 59, 64, 96, 111, 128, 160, 192, 224, 256]
LENGTHS = [
    (113, 203),
    (128, 217),
    (113, 211),
    (108, 256),
    (256, 512),
    (512, 256),
    (1024, 1024),
    (1023, 1024),
    (2048, 2048),
]


def randn(*shape: int, dtype: torch.dtype = torch.bfloat16, grad: bool = False) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=dtype, requires_grad=grad)


def problems() -> list[Any]:
    """Head dimensions, lengths, dtypes, masks and heads that share keys, so that each meets each other kind once or twice."""
    dtypes = itertools.cycle([torch.bfloat16, torch.float16])
    masks = itertools.cycle([{}, {"causal": True}, {"window_size": (50, 20)}, {"causal": True, "softcap": 15.0}])
    heads = itertools.cycle([(6, 6), (6, 1), (6, 2)])
    pairs = [*zip(HEAD_DIMS, itertools.cycle(LENGTHS)), *zip(itertools.cycle([64, 128]), LENGTHS)]
    return [
        pytest.param(dim, *lengths, *next(heads), next(dtypes), mask, id=f"{dim}-{lengths[0]}x{lengths[1]}-{mask}")
        for (dim, lengths), mask in zip(pairs, masks)
    ]


@pytest.mark.parametrize(("dim", "seq_q", "seq_k", "heads", "heads_k", "dtype", "mask"), problems())
def test_shapes_of_flash_attn(
    dim: int, seq_q: int, seq_k: int, heads: int, heads_k: int, dtype: torch.dtype, mask: dict[str, Any]
) -> None:
    q = randn(3, seq_q, heads, dim, dtype=dtype, grad=True)
    k, v = (randn(3, seq_k, heads_k, dim, dtype=dtype, grad=True) for _ in range(2))
    slopes = torch.rand(3, heads, device="cuda") * 0.3 if dim in (40, 128, 256) else None
    options = {**mask, "alibi_slopes": slopes}
    o, lse = attention(q, k, v, **options, return_lse=True)
    expected_o, expected_lse = reference.attention(q, k, v, **options)
    reference.check("o", o, expected_o, reference.TOLERANCE[dtype])
    reference.check("lse", lse, expected_lse, 1e-3)
    d_o = torch.randn_like(o)
    actual = torch.autograd.grad(o, [q, k, v], d_o)
    # The formula's own derivative is NaN in rows without a key.
    if expected_lse.isfinite().all():
        expected = reference.gradients(lambda *x: reference.attention(*x, **options), [q, k, v], d_o)
        for name, gradient, exact in zip(("dq", "dk", "dv"), actual, expected):
            reference.check(name, gradient, exact, 2 * reference.TOLERANCE[dtype])


def test_lengths_stay_on_the_device() -> None:
    """Neither pass waits for the device, which torch's own debug mode would make an error of."""
    lengths = [300, 17, 0, 511]
    qkv = randn(sum(lengths), 3, 4, 64, grad=True)
    sums = reference.cu_seqlens(lengths, torch.device("cuda"))

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        o = ferroflash.flash_attn_varlen_qkvpacked_func(qkv, sums, 511, causal=True)
        (gradient,) = torch.autograd.grad(o, qkv, o.detach())
        return o, gradient

    both()  # kernels are compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        # Held up, so that a launch which waited for its lengths would wait long.
        torch.cuda._sleep(400_000_000)
        begun = torch.cuda.Event()
        begun.record()
        o, gradient = both()
        assert not begun.query(), "the call came back before the device had begun"
    finally:
        torch.cuda.set_sync_debug_mode("default")

    def exact(qkv: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return reference.packed(*qkv.unbind(1), lengths, lengths, causal=True)

    reference.check("o", o, exact(qkv)[0], 2e-2)
    (expected,) = reference.gradients(exact, [qkv], o.detach())
    reference.check("dqkv", gradient, expected, 4e-2)


def test_work_is_queued_on_the_current_stream() -> None:
    """On each of several streams, from several threads, behind what was queued there before."""
    q = randn(2, 500, 4, 64)
    expected = attention(q, q, q)
    torch.cuda.synchronize()
    failures: list[str] = []

    def work(stream: torch.cuda.Stream) -> None:
        with torch.cuda.stream(stream):
            for _ in range(10):
                late = torch.full_like(q, torch.nan)
                torch.cuda._sleep(2_000_000)
                late.copy_(q)
                o = attention(late, late, late)
                if not torch.equal(o, expected):
                    failures.append(f"{stream}")

    threads = [threading.Thread(target=work, args=(torch.cuda.Stream(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


class Graphed:
    """Both passes, captured."""

    def __init__(self, seq: int, dtype: torch.dtype) -> None:
        self.q, self.k, self.v = (randn(2, seq, 4, 64, dtype=dtype, grad=True) for _ in range(3))
        self.lengths = [seq, seq // 2]
        self.sums = reference.cu_seqlens(self.lengths, torch.device("cuda"))
        self.run()  # kernels are compiled
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.results = self.run()

    def run(self) -> list[torch.Tensor]:
        operands = [self.q, self.k, self.v]
        dense = attention(*operands, causal=True)
        rows = [x.flatten(0, 1) for x in operands]
        longest = max(self.lengths)
        packed = ferroflash.flash_attn_varlen_func(*rows, self.sums, self.sums, longest, longest, causal=True)
        return [dense, packed, *torch.autograd.grad(dense, operands, dense.detach())]

    def check(self) -> None:
        torch.cuda.synchronize()
        operands = [self.q, self.k, self.v]
        dense, packed, *gradients = self.results
        reference.check("o", dense, reference.attention(*operands, causal=True)[0], 2e-2)
        lengths = self.sums.diff().tolist()
        of = [x.flatten(0, 1)[: sum(lengths)] for x in operands]
        expected = reference.packed(*of, lengths, lengths, causal=True)[0]
        reference.check("packed o", packed[: sum(lengths)], expected, 2e-2)
        exact = reference.gradients(lambda *x: reference.attention(*x, causal=True), operands, dense)
        for gradient, of_f64 in zip(gradients, exact):
            reference.check("gradient", gradient, of_f64, 4e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_two_graphs_replay_at_once_on_other_values(dtype: torch.dtype) -> None:
    graphs = [Graphed(512, dtype), Graphed(768, dtype)]
    streams = [torch.cuda.Stream() for _ in graphs]
    for lengths in ([100, 412], [512, 3]):
        for graphed in graphs:
            with torch.no_grad():
                for tensor in (graphed.q, graphed.k, graphed.v):
                    tensor.normal_()
                graphed.sums.copy_(reference.cu_seqlens(lengths, graphed.sums.device))
        torch.cuda.synchronize()
        for _ in range(20):
            for graphed, stream in zip(graphs, streams):
                with torch.cuda.stream(stream):
                    graphed.graph.replay()
        for graphed in graphs:
            graphed.check()


def test_a_graph_keeps_its_workspace_apart_from_eager_calls() -> None:
    graphed = Graphed(640, torch.bfloat16)
    torch.cuda.synchronize()
    other = torch.cuda.Stream()
    expected = graphed.run()
    for _ in range(20):
        with torch.cuda.stream(other):
            graphed.graph.replay()
        results = graphed.run()
    graphed.check()
    assert torch.equal(results[0], expected[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_masks_biases_and_sinks_of_a_size(dtype: torch.dtype) -> None:
    q = randn(2, 700, 6, 64, dtype=dtype, grad=True)
    k, v = (randn(2, 900, 2, 64, dtype=dtype, grad=True) for _ in range(2))
    sinks = torch.randn(6, device="cuda", requires_grad=True)
    options = {
        "mask": (torch.rand(2, 1, 900, device="cuda") > 0.2)[:, None].expand(2, 6, 700, 900),
        "bias": randn(6, 900, 700, dtype=dtype).transpose(1, 2),
        "prefix_len": torch.tensor([100, 0], device="cuda", dtype=torch.int32),
        "causal": True,
    }
    o, lse = attention(q, k, v, sinks=sinks, **options, return_lse=True)
    expected_o, expected_lse = reference.attention(q, k, v, sinks=sinks, **options)
    reference.check("o", o, expected_o, reference.TOLERANCE[dtype])
    reference.check("lse", lse, expected_lse, 1e-3)
    d_o = torch.randn_like(o)
    actual = torch.autograd.grad(o, [q, k, v, sinks], d_o)

    def exact(*x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return reference.attention(*x[:3], sinks=x[3], **options)

    for name, gradient, of_f64 in zip(
        ("dq", "dk", "dv", "d_sinks"), actual, reference.gradients(exact, [q, k, v, sinks], d_o)
    ):
        reference.check(name, gradient, of_f64, (10 if name == "d_sinks" else 2) * reference.TOLERANCE[dtype])


def test_float32_is_multiplied_as_asked() -> None:
    q, k, v = (randn(1, 300, 2, 64, dtype=torch.float32) for _ in range(3))
    expected, _ = reference.attention(q, k, v)
    results = [attention(q, k, v, precision=precision) for precision in ("bounded", "ieee")]
    for result in results:
        reference.check("o", result, expected, reference.TOLERANCE[torch.float32])
    assert not torch.equal(*results)


def test_dropout_of_a_graph_drops_others_each_time() -> None:
    """Both passes of one replay drop the same, those of another others."""
    q = randn(1, 64, 2, 64, grad=True)
    identity = torch.eye(64, device="cuda", dtype=torch.bfloat16)[None, :, None].expand(1, 64, 2, 64).requires_grad_()

    def run() -> list[torch.Tensor]:
        o = ferroflash.flash_attn_func(q, q.detach(), identity, 0.5)
        return [o, *torch.autograd.grad(o, identity, identity.detach())]

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        o, d_identity = run()
    masks = []
    for _ in range(3):
        graph.replay()
        # dv is P transposed times the identity.
        assert torch.equal(o != 0, d_identity.transpose(1, 3) != 0)
        masks.append(o != 0)
    assert not torch.equal(masks[0], masks[1])
    assert not torch.equal(masks[1], masks[2])
    rate = 1 - torch.stack(masks).double().mean().item()
    assert abs(rate - 0.5) < 0.03, rate


def test_masks_and_dropout_do_not_wait() -> None:
    q = randn(2, 300, 4, 64, grad=True)
    mask = torch.rand(2, 1, 1, 300, device="cuda") > 0.1

    def both() -> None:
        o = ferroflash.scaled_dot_product_attention(*[q.transpose(1, 2)] * 3, mask, 0.1)
        torch.autograd.grad(o, q, o.detach())

    both()  # kernels are compiled
    torch.cuda.set_sync_debug_mode("error")
    try:
        both()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_reduce_overhead() -> None:
    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return ferroflash.flash_attn_func(q * 1.5, k, v, causal=True) + 1

    operands = [randn(2, 300, 4, 64, grad=True) for _ in range(3)]
    d_o = randn(2, 300, 4, 64)
    expected = step(*operands)
    gradients = torch.autograd.grad(expected, operands, d_o)
    compiled = torch.compile(step, mode="reduce-overhead", fullgraph=True)
    for _ in range(4):  # warmed up, captured, replayed
        torch.compiler.cudagraph_mark_step_begin()
        actual = compiled(*operands)
        of_compiled = [x.clone() for x in torch.autograd.grad(actual, operands, d_o)]
        torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
        for a, b in zip(of_compiled, gradients):
            torch.testing.assert_close(a, b, rtol=4e-2, atol=4e-2)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The passes that run on ours."""
    calls: list[str] = []
    for name in ("forward", "backward"):
        ours = getattr(_eager, name)

        def counted(*args: Any, name: str = name, ours: Any = ours, **kwargs: Any) -> Any:
            calls.append(name)
            return ours(*args, **kwargs)

        monkeypatch.setattr(_eager, name, counted)
    return calls


def test_torchs_attention_runs_on_ours(calls: list[str]) -> None:
    """Forward and backward of torch's function, with dropout too."""
    operands = [randn(2, 4, 333, 64, grad=True) for _ in range(3)]
    d_o = randn(2, 4, 333, 64)

    def both(**options: Any) -> list[torch.Tensor]:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            torch.manual_seed(3)
            o = functional.scaled_dot_product_attention(*operands, **options)
            return [o, *torch.autograd.grad(o, operands, d_o)]

    theirs = {name: both(**options) for name, options in OF_TORCH.items()}
    assert not calls
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ferroflash.activate()
    try:
        for name, options in OF_TORCH.items():
            calls.clear()
            mine = both(**options)
            assert calls == ["forward", "backward"], name
            for a, b in zip(mine, theirs[name]):
                assert a.stride() == b.stride(), name
                if name != "dropout":  # which drops others
                    torch.testing.assert_close(a, b, rtol=3e-2, atol=3e-2)
    finally:
        ferroflash.restore()
    calls.clear()
    both()
    assert not calls


OF_TORCH = {"full": {}, "causal": {"is_causal": True, "scale": 0.2}, "dropout": {"dropout_p": 0.2}}


@pytest.mark.parametrize("kind", ["bool", "padding", "bias", "learned bias"])
@pytest.mark.parametrize("is_compiled", [False, True])
def test_masks_of_torchs_attention_run_on_ours(calls: list[str], kind: str, is_compiled: bool) -> None:
    inputs = [randn(2, 4, seq, 64, grad=True) for seq in (201, 333, 333)]
    mask = randn(*(2, 1, 1, 333) if kind == "padding" else (4, 201, 333))
    if kind == "learned bias":
        inputs.append(mask.requires_grad_())
    elif kind != "bias":
        mask = mask > -0.5
    d_o = randn(2, 4, 201, 64)

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, mask)

    def both() -> list[torch.Tensor]:
        torch.compiler.reset()
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            o = (torch.compile(step, fullgraph=True) if is_compiled else step)(*inputs[:3], mask)
        return [o, *torch.autograd.grad(o, inputs, d_o)]

    theirs = both()
    assert not calls
    ferroflash.activate()
    try:
        mine = both()
    finally:
        ferroflash.restore()
    assert calls == ["forward", "backward"]
    for a, b in zip(mine, theirs):
        assert a.stride() == b.stride()
        torch.testing.assert_close(a, b, rtol=4e-2, atol=4e-2)


def test_compiled_attention_of_torch_runs_on_ours() -> None:
    operands = [randn(2, 4, 200, 64, grad=True) for _ in range(3)]
    d_o = randn(2, 4, 200, 64)

    def step(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True).sin()

    expected = step(*operands)
    gradients = torch.autograd.grad(expected, operands, d_o)
    ferroflash.activate()
    try:
        actual = torch.compile(step, fullgraph=True)(*operands)
        of_compiled = torch.autograd.grad(actual, operands, d_o)
    finally:
        ferroflash.restore()
    torch.testing.assert_close(actual, expected, rtol=2e-2, atol=2e-2)
    for a, b in zip(of_compiled, gradients):
        torch.testing.assert_close(a, b, rtol=4e-2, atol=4e-2)


def test_torchs_varlen_attention_runs_on_ours() -> None:
    varlen = pytest.importorskip("torch.nn.attention.varlen", reason="this torch has no varlen_attn")
    lengths = [100, 33, 260]
    sums = reference.cu_seqlens(lengths, torch.device("cuda"))
    operands = [randn(sum(lengths), 4, 64, grad=True) for _ in range(3)]
    ferroflash.activate()
    try:
        o = varlen.varlen_attn(*operands, sums, sums, 260, 260)
        gradients = torch.autograd.grad(o, operands, o.detach())
    finally:
        ferroflash.restore()

    def exact(*x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return reference.packed(*x, lengths, lengths)

    reference.check("o", o, exact(*operands)[0], 2e-2)
    for gradient, of_f64 in zip(gradients, reference.gradients(exact, operands, o.detach())):
        reference.check("gradient", gradient, of_f64, 4e-2)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_several_devices() -> None:
    """Tensors of a device that is not the current one, forward and backward."""
    torch.cuda.set_device(0)
    q = randn(2, 300, 4, 64)
    there = q.to("cuda:1").requires_grad_()
    o = attention(there, there, there)
    o.backward(o.detach())
    assert o.device == there.grad.device == torch.device("cuda:1")
    assert torch.equal(o.to("cuda:0"), attention(q, q, q))
    with pytest.raises(ValueError, match="k: it is on cuda:1"):
        attention(q, there.detach(), q)


def test_too_little_memory_is_torchs_own_error() -> None:
    """The workspace of a backward pass comes from torch's allocator, as o does."""
    code = """
import torch
from ferroflash.torch import attention
q = torch.randn(1, 4096, 16, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
o = attention(q, q, q)
torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + 8e6) / torch.cuda.mem_get_info()[1])
torch.cuda.empty_cache()
try:
    o.backward(o.detach())
except torch.OutOfMemoryError:
    print("out of memory")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "out of memory", done.stderr
