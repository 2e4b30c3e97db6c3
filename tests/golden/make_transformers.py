#!/usr/bin/env python3
"""Writes transformers.json: ten steps of SGD of small Transformers in fp64, in Hugging Face's
classes of GPT-2, Llama, Mistral, Qwen2 and Qwen3 and torchvision's VisionTransformer. Needs torch,
transformers and torchvision (without it the cases of vit are kept as they are):

    python3 tests/golden/make_transformers.py

Both sides make initial values, tokens and images from a hash. Stored are losses, and of models of
text the first step's logits behind the first sample, and each tensor's gradient as one number: its
product with numbers of that hash. Also the names and shapes of tensors, what transformers writes
into config.json, what a class takes for keys that are not there, and how many parameters the
models of usual sizes have.
"""
import json
import math
import pathlib
import sys

import torch
import transformers
from torch.nn import functional as F
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

try:
    from torchvision.models.vision_transformer import VisionTransformer
except ImportError:
    VisionTransformer = None

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from make_models import hashed  # noqa: E402

STEPS, LR, CLASSES = 10, 0.1, 5


# Llama in the model's own dtype: Hugging Face's norm and angles are fp32 whatever the rest is.
def norm_forward(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def angles_forward(self, x, position_ids):
    rope = self.config.rope_parameters
    size = getattr(self.config, "head_dim", None) or self.config.hidden_size // self.config.num_attention_heads
    f = rope["rope_theta"] ** (-torch.arange(0, size, 2, dtype=x.dtype) / size)
    if rope["rope_type"] == "linear":
        f = f / rope["factor"]
    elif rope["rope_type"] == "llama3":
        length, low, high = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
        wavelength = 2 * math.pi / f
        smooth = (length / wavelength - low) / (high - low)
        between = (1 - smooth) * f / rope["factor"] + smooth * f
        f = torch.where(wavelength < length / high, f, torch.where(wavelength > length / low, f / rope["factor"], between))
    angle = position_ids[..., None].to(x.dtype) * torch.cat((f, f))
    return angle.cos(), angle.sin()


MODULES = {"llama": (modeling_llama, "Llama"), "mistral": (modeling_mistral, "Mistral"), "qwen2": (modeling_qwen2, "Qwen2"),
           "qwen3": (modeling_qwen3, "Qwen3")}


def take_casts_out():
    for module, name in MODULES.values():
        getattr(module, name + "RMSNorm").forward = norm_forward
        getattr(module, name + "RotaryEmbedding").forward = angles_forward


def gpt2(layers=12, heads=12, width=768, context=1024, vocab=50257, tie=True, hidden=None, eps=1e-5):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=layers, n_head=heads, n_embd=width, n_positions=context, vocab_size=vocab, tie_word_embeddings=tie,
        n_inner=hidden, layer_norm_epsilon=eps,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa"))


def llama(layers, heads, width, kv_heads, hidden, context, vocab, rope_theta=10000.0, eps=1e-5, tie=False, family="llama",
          rope_scaling=None, head_dim=None, bias=False, window=0, window_layers=()):
    rope = {"rope_type": "default", "rope_theta": rope_theta}
    if rope_scaling:
        names = {"type": "rope_type", "original_context": "original_max_position_embeddings"}
        rope.update({names.get(k, k): v for k, v in rope_scaling.items()})
    own = {"attention_bias": bias} if family in ("llama", "qwen3") else {}
    if head_dim:
        own["head_dim"] = head_dim
    if family == "mistral":
        own["sliding_window"] = window or None
    elif family != "llama" and window:
        own.update(use_sliding_window=True, sliding_window=window, layer_types=[
            "sliding_attention" if not window_layers or i in window_layers else "full_attention" for i in range(layers)])
    name = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family]
    return getattr(transformers, name + "ForCausalLM")(getattr(transformers, name + "Config")(
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=width,
        intermediate_size=hidden, max_position_embeddings=context, vocab_size=vocab, rope_parameters=rope, rms_norm_eps=eps,
        tie_word_embeddings=tie, attn_implementation="sdpa", **own))


def vit(layers, heads, width, mlp, image_size=224, patch_size=16, classes=CLASSES):
    from torchvision.models.vision_transformer import VisionTransformer
    return VisionTransformer(image_size, patch_size, layers, heads, width, mlp, num_classes=classes)


MAKERS = {"gpt2": gpt2, "vit": vit}
SMALL = {"layers": 2, "heads": 4, "kv_heads": 2, "width": 24, "hidden": 32, "context": 64, "vocab": 47, "eps": 1e-6}
LLAMA3 = {"type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_context": 40}
# samples of a batch, tokens of one (0: images), model
CASES = {
    "gpt2": (3, 10, {"type": "gpt2", "layers": 2, "heads": 3, "width": 24, "context": 12, "vocab": 61}),
    "gpt2 with a head of its own": (2, 12, {"type": "gpt2", "layers": 1, "heads": 2, "width": 12, "context": 12, "vocab": 37, "tie": False}),
    "llama": (3, 9, {"type": "llama", "layers": 2, "heads": 4, "kv_heads": 2, "width": 32, "hidden": 40, "context": 16, "vocab": 53,
                     "rope_theta": 500.0, "eps": 1e-4}),
    "tied llama": (2, 7, {"type": "llama", "layers": 1, "heads": 2, "kv_heads": 2, "width": 12, "hidden": 20, "context": 7, "vocab": 29, "tie": True}),
    "gpt2 of another inner size": (2, 8, {"type": "gpt2", "layers": 1, "heads": 2, "width": 12, "context": 16, "vocab": 37,
                                          "hidden": 20, "eps": 1e-3}),
    "llama of 3.1's angles, with biases": (2, 24, {"type": "llama", **SMALL, "rope_theta": 100.0, "rope_scaling": LLAMA3, "bias": True}),
    "llama of linear angles, and wide heads": (2, 12, {"type": "llama", **SMALL, "rope_scaling": {"type": "linear", "factor": 3.0}, "head_dim": 8}),
    "mistral": (2, 20, {"type": "mistral", **SMALL, "window": 5}),
    "qwen2": (2, 16, {"type": "qwen2", **SMALL, "window": 6, "window_layers": [1]}),
    "qwen3": (2, 16, {"type": "qwen3", **SMALL, "head_dim": 10, "tie": True}),
    "vit": (4, 0, {"type": "vit", "layers": 2, "heads": 3, "width": 24, "mlp": 40, "image_size": 12, "patch_size": 4}),
}
WHOLE = {"gpt2": gpt2, "vit_ti_16": lambda: vit(12, 3, 192, 768), "vit_s_16": lambda: vit(12, 6, 384, 1536),
         "vit_b_16": lambda: vit(12, 12, 768, 3072),
         "llama": lambda: llama(16, 32, 2048, 8, 8192, 2048, 128256, tie=True)}


def fill(model, dtype=torch.float64):
    """Tensor k of the parameters from seed 1 + k: the scales of norms around 1, the rest around 0."""
    for k, (name, tensor) in enumerate(model.named_parameters()):
        u = torch.from_numpy(hashed(1 + k, tensor.numel())).view(tensor.shape)
        scale = tensor.dim() == 1 and name.endswith("weight")
        tensor.data = (0.5 + u if scale else (0.4 if tensor.dim() > 1 else 0.2) * (u - 0.5)).to(dtype)


def made(config):
    kwargs = {k: v for k, v in config.items() if k != "type"}
    return MAKERS[config["type"]](**kwargs) if config["type"] in MAKERS else llama(family=config["type"], **kwargs)


def logits(model, length):
    return model(torch.arange(length)[None] * 7 % model.config.vocab_size).logits


def run(model, samples, length):
    losses, first = [], {}
    for step in range(STEPS):
        if length:
            count, vocab = samples * (length + 1), model.config.vocab_size
            tokens = torch.from_numpy((hashed(500 + step % 3, count) * vocab).astype("int64")).view(samples, length + 1)
            logits, targets = model(tokens[:, :-1]).logits, tokens[:, 1:]
        else:
            side = model.image_size
            images = 2 * torch.from_numpy(hashed(500 + step % 3, samples * 3 * side * side)).view(samples, 3, side, side) - 1
            logits, targets = model(images), torch.arange(samples) % CLASSES
        loss = F.cross_entropy(logits.flatten(0, -2), targets.flatten())
        losses.append(loss.item())
        model.zero_grad()
        loss.backward()
        if step == 0 and length:
            first = {"logits": logits[0, -1].tolist(), "gradients": [
                p.grad.flatten().dot(torch.from_numpy(hashed(1000 + k, p.numel())) - 0.5).item() for k, p in enumerate(model.parameters())]}
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LR * parameter.grad
    return {"losses": losses, **first}


def defaults():
    """What a config.json without keys means to each class."""
    made = [getattr(transformers, name + "Config")() for name in ("GPT2", "Llama", "Mistral", "Qwen2", "Qwen3")]
    return [{k: v for k, v in config.to_dict().items() if k != "layer_types"} for config in made]


def main():
    # What their casts cost in fp32: the formulas are theirs
    as_they_are = {}
    for name, (_, length, config) in CASES.items():
        if config["type"] in MODULES:
            model = made(config)
            fill(model, torch.float32)
            as_they_are[name] = logits(model, length)
    take_casts_out()
    for name, theirs in as_they_are.items():
        model = made(CASES[name][2])
        fill(model, torch.float32)
        assert (logits(model, CASES[name][1]) - theirs).abs().max() < 1e-5, name
    torch.set_default_dtype(torch.float64)
    path = HERE / "transformers.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    cases = {}
    for name, (samples, length, config) in CASES.items():
        if config["type"] == "vit" and not VisionTransformer:
            cases[name] = before["cases"][name]
            continue
        model = made(config).train()
        fill(model)
        cases[name] = {"model": config, "samples": samples, "length": length,
                       "tensors": [[n, list(p.shape)] for n, p in model.named_parameters()], **run(model, samples, length)}
        if length:
            cases[name]["config"] = model.config.to_dict()
    with torch.device("meta"):
        counts = {name: sum(math.prod(p.shape) for p in make().parameters()) if VisionTransformer or not name.startswith("vit")
                  else before["parameter_counts"][name] for name, make in WHOLE.items()}
    text = json.dumps({"lr": LR, "cases": cases, "parameter_counts": counts, "defaults": defaults()})
    path.write_text(text + "\n")


if __name__ == "__main__":
    main()
