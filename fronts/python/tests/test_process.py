"""What happens outside a call: imports, forks, threads, the environment that a wheel finds."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import threading

import ferroflash
import pytest
import torch
from ferroflash.torch import attention
from threads import from_threads


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_imports_without_torch() -> None:
    code = """
import sys
sys.modules["torch"] = None  # whoever imports it fails
import ferroflash
assert not any(name.startswith(("torch.", "transformers")) for name in sys.modules)
assert "flash_attn_func" in dir(ferroflash)
try:
    ferroflash.flash_attn_func
except ImportError as error:
    print(ferroflash.__version__, ferroflash.device_names() is not None)
"""
    assert run_python(code).split() == [ferroflash.__version__, "True"]


def test_every_public_name_is_there_and_documented() -> None:
    for name in ferroflash.__all__:
        thing = getattr(ferroflash, name)
        if callable(thing) or inspect.ismodule(thing):
            assert thing.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'flash'"):
        ferroflash.flash  # noqa: B018


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # JAX's, of threads of its own: another test imported it
def test_a_forked_child_computes() -> None:
    """The parent has used its threads, of which the child has none. torch's own would hang there: it is not asked to compute."""
    q = torch.randn(2, 300, 4, 64)
    expected = attention(q, q, q).numpy().tobytes()
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # a child that hangs is killed
        is_equal = attention(q, q, q).numpy().tobytes() == expected
        os._exit(0 if is_equal else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_threads_call_at_once(device: torch.device) -> None:
    q = torch.randn(2, 100, 4, 64, device=device)
    expected = attention(q, q, q)
    results = from_threads(lambda: attention(q, q, q))
    assert len(results) == 80
    assert all(torch.equal(result, expected) for result in results)


def test_other_threads_run_while_it_computes() -> None:
    """Python's lock is not held: a thread counts on, while a call runs that takes longer than a switch."""
    q = torch.randn(1, 6000, 8, 64)
    attention(q, q, q)
    counted, is_over = 0, threading.Event()

    def count() -> None:
        nonlocal counted
        while not is_over.wait(0.001):
            counted += 1

    thread = threading.Thread(target=count)
    thread.start()
    before = counted
    attention(q, q, q)
    during = counted - before
    is_over.set()
    thread.join()
    assert during > 5, f"another thread came {during} times to run"
