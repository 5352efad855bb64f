"""A tiny Llama, made on the spot, by ferroflash and on transformers' own eager attention: the same logits, losses and tokens."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from ferroflash import transformers as ours  # noqa: E402

VOCABULARY = 97


def tiny_llama(implementation: str, device: torch.device, **config: Any) -> torch.nn.Module:
    torch.manual_seed(1)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128}
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, **heads, **config))
    llama.set_attn_implementation(implementation)
    return llama.to(device).eval()


@pytest.fixture
def pair(device: torch.device) -> tuple[torch.nn.Module, torch.nn.Module]:
    """The same model with our attention and with transformers' own."""
    return tiny_llama(ours.register(), device), tiny_llama("eager", device)


Pair = tuple[torch.nn.Module, torch.nn.Module]


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=2e-5)


def test_our_attention_runs(pair: Pair, device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    attention = ours.attention
    monkeypatch.setattr(ours, "attention", lambda *args, **kwargs: calls.append(1) or attention(*args, **kwargs))
    tokens = torch.randint(VOCABULARY, (2, 20), device=device)
    with torch.no_grad():
        close(pair[0](tokens).logits, pair[1](tokens).logits)
    assert len(calls) == 2, "once a layer"


@pytest.mark.parametrize("side", ["left", "right"])
def test_padded(pair: Pair, device: torch.device, side: str) -> None:
    tokens = torch.randint(VOCABULARY, (3, 20), device=device)
    mask = torch.ones_like(tokens)
    for entry, padding in enumerate((0, 7, 13)):
        rows = slice(0, padding) if side == "left" else slice(20 - padding, 20)
        mask[entry, rows] = 0
    with torch.no_grad():
        logits = [llama(tokens, attention_mask=mask).logits for llama in pair]
    close(logits[0][mask.bool()], logits[1][mask.bool()])


def test_generates_the_same_tokens(pair: Pair, device: torch.device) -> None:
    tokens = torch.randint(1, VOCABULARY, (2, 9), device=device)
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0  # padded in front, as for generation
    options = {"max_new_tokens": 12, "do_sample": False, "attention_mask": mask, "pad_token_id": 0}
    assert torch.equal(*(llama.generate(tokens, **options) for llama in pair))


def test_packed_sequences_do_not_see_each_other(pair: Pair, device: torch.device) -> None:
    lengths = [5, 11, 4]
    tokens = torch.randint(VOCABULARY, (1, sum(lengths)), device=device)
    positions = torch.cat([torch.arange(length, device=device) for length in lengths])[None]
    sums = torch.tensor([0, *lengths], device=device).cumsum(0).int()
    flash = {"cu_seq_lens_q": sums, "cu_seq_lens_k": sums, "max_length_q": 11, "max_length_k": 11}
    with torch.no_grad():
        expected = torch.cat([pair[1](part).logits for part in tokens.split(lengths, 1)], 1)
        # Positions that were looked at before do not stand for what is in them now.
        pair[0](tokens, position_ids=positions.zero_(), use_cache=False)
        positions.copy_(torch.cat([torch.arange(length) for length in lengths]))
        close(pair[0](tokens, position_ids=positions, use_cache=False).logits, expected)
        close(pair[0](tokens, position_ids=positions, use_cache=False, **flash).logits, expected)


def test_trains_alike(pair: Pair, device: torch.device) -> None:
    tokens = torch.randint(VOCABULARY, (4, 24), device=device)
    mask = torch.ones_like(tokens)
    mask[2:, 18:] = 0
    labels = tokens.masked_fill(mask == 0, -100)
    losses = []
    for llama in map(copy.deepcopy, pair):
        optimizer = torch.optim.AdamW(llama.parameters(), lr=1e-2)
        losses.append([])
        for _ in range(6):
            loss = llama(tokens, attention_mask=mask, labels=labels).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.detach())
    close(torch.stack(losses[0]), torch.stack(losses[1]))
    assert losses[0][-1] < losses[0][0] - 0.5, "it learns"


def test_a_sliding_window(device: torch.device) -> None:
    config = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": VOCABULARY}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "sliding_window": 5}
    tokens = torch.randint(VOCABULARY, (2, 20), device=device)
    logits = []
    for implementation in (ours.register(), "eager"):
        torch.manual_seed(1)
        mistral = transformers.MistralForCausalLM(transformers.MistralConfig(**config, **heads)).to(device).eval()
        mistral.set_attn_implementation(implementation)
        with torch.no_grad():
            logits.append(mistral(tokens).logits)
    close(*logits)


def test_packed_sequences_in_several_rows(pair: Pair, device: torch.device) -> None:
    """Without their lengths, and more than one row: the mask tells which sequence a token belongs to."""
    rows = [[5, 11, 4], [13, 7]]
    tokens = torch.randint(VOCABULARY, (2, 20), device=device)
    positions = torch.stack([torch.cat([torch.arange(n, device=device) for n in lengths]) for lengths in rows])
    with torch.no_grad():
        logits = pair[0](tokens, position_ids=positions, use_cache=False).logits
        for row, lengths in enumerate(rows):
            parts = tokens[row : row + 1].split(lengths, 1)
            close(logits[row : row + 1], torch.cat([pair[1](part).logits for part in parts], 1))


def test_masks_of_all_pairs(pair: Pair, device: torch.device) -> None:
    tokens = torch.randint(VOCABULARY, (2, 20), device=device)
    shown = (torch.rand(2, 1, 20, 20, device=device) > 0.4) | torch.eye(20, device=device).bool()
    bias = torch.where(shown, 0.0, torch.finfo(torch.float32).min)
    with torch.no_grad():
        expected = pair[1](tokens, attention_mask=bias).logits
        close(pair[0](tokens, attention_mask=bias).logits, expected)
        close(pair[0](tokens, attention_mask=shown).logits, expected)


def test_generates_with_a_static_cache(pair: Pair, device: torch.device) -> None:
    """Its keys are longer than what is written of them."""
    tokens = torch.randint(1, VOCABULARY, (2, 9), device=device)
    mask = torch.ones_like(tokens)
    mask[1, :4] = 0
    options = {"max_new_tokens": 6, "do_sample": False, "attention_mask": mask, "pad_token_id": 0}
    options |= {"cache_implementation": "static", "disable_compile": True}
    assert torch.equal(*(llama.generate(tokens, **options) for llama in pair))


def test_which_masks_are_materialised(device: torch.device) -> None:
    from transformers import masking_utils as theirs

    def mask(function: Any, q_offset: Any = 4, **rest: Any) -> torch.Tensor | None:
        return ours.mask(2, 8, 12, q_offset, mask_function=function, device=device, **rest)

    causal, padding = theirs.causal_mask_function, torch.ones(2, 12, dtype=torch.bool, device=device)
    assert mask(causal) is mask(theirs.sliding_window_causal_mask_function(5)) is None
    assert mask(theirs.bidirectional_mask_function, attention_mask=padding) is None
    padding[1, :3] = False
    assert torch.equal(mask(causal, attention_mask=padding), padding)
    chunks = theirs.chunked_causal_mask_function(4, torch.zeros(2, dtype=torch.int, device=device))
    unknown = theirs.or_masks(causal, lambda b, h, q, k: (q < 6) & (k < 6))
    for function, q_offset in ((chunks, 4), (unknown, 4), (causal, 2), (causal, torch.tensor(4, device=device))):
        given = {"mask_function": function, "attention_mask": padding, "allow_is_causal_skip": False, "device": device}
        assert torch.equal(
            mask(function, q_offset, attention_mask=padding), theirs.sdpa_mask(2, 8, 12, q_offset, **given)
        )


def test_sinks_and_dropout(device: torch.device) -> None:
    """As gpt-oss has them, whose own eager attention is the reference."""
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    module = torch.nn.Module()
    module.sinks = torch.nn.Parameter(torch.randn(4, device=device))
    module.num_key_value_groups, module.is_causal = 2, True
    q = torch.randn(2, 4, 10, 16, device=device)
    k = torch.randn(2, 2, 10, 16, device=device)
    causal = torch.full((10, 10), -torch.inf, device=device).triu(1)[None, None]
    expected, _ = eager_attention_forward(module, q, k, k, causal, scaling=0.25)
    actual, _ = ours.forward(module, q, k, k, None, scaling=0.25, s_aux=module.sinks)
    close(actual, expected)
    for gradient, exact in zip(*(torch.autograd.grad(o.square().sum(), module.sinks) for o in (actual, expected))):
        torch.testing.assert_close(gradient, exact, rtol=1e-3, atol=1e-4)
    torch.manual_seed(1)
    dropped, _ = ours.forward(module, q, k, k, None, dropout=0.5, s_aux=module.sinks)
    assert not torch.allclose(dropped, actual)


def test_a_name_that_transformers_would_take_for_another() -> None:
    with pytest.raises(ValueError, match="flash"):
        ours.register("ferroflash")
