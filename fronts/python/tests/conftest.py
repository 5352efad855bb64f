"""Options and fixtures of all tests: `--device cuda` runs them on a GPU."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

# A test's functions run once: XLA takes longer to optimise them than it saves.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--device", default="cpu", help="where tensors are: cpu or cuda")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "cuda: needs a GPU; not run unless --device cuda is given")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--device") == "cuda":
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a GPU: pytest --device cuda"))


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of a test's tensors."""
    return torch.device(request.config.getoption("--device"))


@pytest.fixture(scope="module")
def on_jax_device(request: pytest.FixtureRequest) -> Iterator[None]:
    """JAX's arrays are on the device of the option, if JAX has one of its kind."""
    import jax

    kind = request.config.getoption("--device")
    try:
        device = jax.devices(kind)[0]
    except RuntimeError as error:
        pytest.skip(f"not run: JAX has no {kind} here: {error}")
    with jax.default_device(device):
        yield


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
