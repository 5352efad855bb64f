"""A tiny Llama learns the same by PyTorch's attention and by ferroflash: two loss curves and a picture of them.

    pip install transformers ferroflash-*.whl
    python examples/tiny_llama.py --device cuda --results losses.json --picture losses.svg

Both models begin with the same weights and see the same batches; what differs is `set_attn_implementation`. The text is made on
the spot: words of a language whose next letter depends on the two before.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from ferroflash import transformers as ours
from transformers import LlamaConfig, LlamaForCausalLM

LETTERS, ROWS, SEQ = 64, 16, 256
SHAPE = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "vocab_size": LETTERS}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "max_position_embeddings": SEQ}


def batches(steps: int, device: torch.device) -> list[torch.Tensor]:
    """Text [ROWS, SEQ] for each step."""
    draws = torch.Generator().manual_seed(2)
    # Of each pair of letters, four may follow, with these weights.
    followers = torch.randint(LETTERS, (LETTERS, LETTERS, 4), generator=draws)
    weights = torch.tensor([0.6, 0.2, 0.15, 0.05])
    text = torch.randint(LETTERS, (steps * ROWS, 2), generator=draws)
    for _ in range(SEQ - 2):
        which = torch.multinomial(weights, len(text), True, generator=draws)
        text = torch.cat([text, followers[text[:, -2], text[:, -1], which][:, None]], 1)
    return list(text.to(device).split(ROWS))


def losses(implementation: str, steps: int, device: torch.device, dtype: torch.dtype) -> list[float]:
    """The loss of each step of training."""
    torch.manual_seed(1)
    llama = LlamaForCausalLM(LlamaConfig(**SHAPE, **HEADS)).to(device)
    llama.set_attn_implementation(implementation)
    optimizer = torch.optim.AdamW(llama.parameters(), lr=1e-3)
    curve = []
    for tokens in batches(steps, device):
        with torch.autocast(device.type, dtype=dtype, enabled=device.type == "cuda"):
            loss = llama(tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        curve.append(loss.detach())
    return torch.stack(curve).tolist()


def picture(curves: dict[str, list[float]]) -> str:
    """The curves as SVG; the second is dashed, so that the first shows beneath."""
    width, height, left, top = 640, 360, 50, 20
    highest = max(map(max, curves.values()))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for value in range(int(highest) + 1):
        y = height - 40 - value / highest * (height - 40 - top)
        lines.append(
            f'<path d="M{left} {y:.1f}H{width - 10}" stroke="#ddd"/><text x="{left - 18}" y="{y + 4:.1f}">{value}</text>'
        )
    styles = (("#d55e00", ""), ("#0072b2", ' stroke-dasharray="6 4"'))
    for index, ((name, curve), (color, dashes)) in enumerate(zip(curves.items(), styles)):
        points = " ".join(
            f"{left + step / max(len(curve) - 1, 1) * (width - 10 - left):.1f},"
            f"{height - 40 - loss / highest * (height - 40 - top):.1f}"
            for step, loss in enumerate(curve)
        )
        lines.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"{dashes}/>')
        y = top + 14 + 18 * index
        lines.append(f'<path d="M{width - 180} {y - 4}h30" stroke="{color}" stroke-width="2"{dashes}/>')
        lines.append(f'<text x="{width - 142}" y="{y}">{name}</text>')
    steps = len(next(iter(curves.values())))
    lines.append(f'<text x="{left}" y="{height - 12}">loss over {steps} steps</text></svg>')
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", type=torch.device)
    parser.add_argument("--steps", default=300, type=int)
    parser.add_argument("--results", type=Path)
    parser.add_argument("--picture", type=Path)
    arguments = parser.parse_args()
    device, dtype = arguments.device, torch.bfloat16
    # The third tells how far apart two runs of the same attention end that differ in rounding alone.
    curves = {
        name: losses(implementation, arguments.steps, device, dtype)
        for name, implementation in (("sdpa", "sdpa"), ("ferroflash", ours.register()), ("eager", "eager"))
    }

    def apart(name: str) -> float:
        tail = arguments.steps // 2
        return max(abs(a - b) for a, b in zip(curves["sdpa"][tail:], curves[name][tail:]))

    report = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "torch": torch.__version__,
        "largest difference from sdpa, second half": {name: round(apart(name), 4) for name in ("ferroflash", "eager")},
        "last loss": {name: round(curve[-1], 4) for name, curve in curves.items()},
    }
    print(json.dumps(report, indent=1))
    if arguments.results:
        rounded = {name: [round(loss, 4) for loss in curve] for name, curve in curves.items()}
        arguments.results.write_text(json.dumps({**report, "losses": rounded}) + "\n")
    if arguments.picture:
        arguments.picture.write_text(picture({name: curves[name] for name in ("sdpa", "ferroflash")}) + "\n")


if __name__ == "__main__":
    main()
