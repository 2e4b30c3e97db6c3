#!/usr/bin/env python3
"""Writes transformers.json: ten steps of SGD of small Transformers in fp64, in Hugging Face's
GPT2LMHeadModel and LlamaForCausalLM and torchvision's VisionTransformer. Needs torch, transformers
and torchvision:

    python3 tests/golden/make_transformers.py

Both sides make initial values, tokens and images from a hash. Stored are losses, the names and
shapes of tensors, and how many parameters the models of usual sizes have.
"""
import json
import math
import pathlib
import sys

import torch
import transformers
from torch.nn import functional as F
from transformers.models.llama import modeling_llama

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from make_models import hashed  # noqa: E402

STEPS, LR, CLASSES = 10, 0.1, 5


# Llama in the model's own dtype: Hugging Face's norm and angles are fp32 whatever the rest is.
def norm_forward(self, x):
    return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)


def angles_forward(self, x, position_ids):
    base, size = self.config.rope_parameters["rope_theta"], self.config.hidden_size // self.config.num_attention_heads
    frequency = base ** (-torch.arange(0, size, 2, dtype=x.dtype) / size)
    angle = position_ids[..., None].to(x.dtype) * torch.cat((frequency, frequency))
    return angle.cos(), angle.sin()


modeling_llama.LlamaRMSNorm.forward = norm_forward
modeling_llama.LlamaRotaryEmbedding.forward = angles_forward


def gpt2(layers=12, heads=12, width=768, context=1024, vocab=50257, tie=True):
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=layers, n_head=heads, n_embd=width, n_positions=context, vocab_size=vocab, tie_word_embeddings=tie,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa"))


def llama(layers, heads, width, kv_heads, hidden, context, vocab, rope_theta=10000.0, eps=1e-5, tie=False):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv_heads, hidden_size=width,
        intermediate_size=hidden, max_position_embeddings=context, vocab_size=vocab, rope_theta=rope_theta, rms_norm_eps=eps,
        tie_word_embeddings=tie, attn_implementation="sdpa"))


def vit(layers, heads, width, mlp, image_size=224, patch_size=16, classes=CLASSES):
    from torchvision.models.vision_transformer import VisionTransformer
    return VisionTransformer(image_size, patch_size, layers, heads, width, mlp, num_classes=classes)


MAKERS = {"gpt2": gpt2, "llama": llama, "vit": vit}
# samples of a batch, tokens of one (0: images), model
CASES = {
    "gpt2": (3, 10, {"type": "gpt2", "layers": 2, "heads": 3, "width": 24, "context": 12, "vocab": 61}),
    "gpt2 with a head of its own": (2, 12, {"type": "gpt2", "layers": 1, "heads": 2, "width": 12, "context": 12, "vocab": 37, "tie": False}),
    "llama": (3, 9, {"type": "llama", "layers": 2, "heads": 4, "kv_heads": 2, "width": 32, "hidden": 40, "context": 16, "vocab": 53,
                     "rope_theta": 500.0, "eps": 1e-4}),
    "tied llama": (2, 7, {"type": "llama", "layers": 1, "heads": 2, "kv_heads": 2, "width": 12, "hidden": 20, "context": 7, "vocab": 29, "tie": True}),
    "vit": (4, 0, {"type": "vit", "layers": 2, "heads": 3, "width": 24, "mlp": 40, "image_size": 12, "patch_size": 4}),
}
WHOLE = {"gpt2": gpt2, "vit_ti_16": lambda: vit(12, 3, 192, 768), "vit_s_16": lambda: vit(12, 6, 384, 1536),
         "vit_b_16": lambda: vit(12, 12, 768, 3072),
         "llama": lambda: llama(16, 32, 2048, 8, 8192, 2048, 128256, tie=True)}


def fill(model):
    """Tensor k of the parameters from seed 1 + k: the scales of norms around 1, the rest around 0."""
    for k, (name, tensor) in enumerate(model.named_parameters()):
        u = torch.from_numpy(hashed(1 + k, tensor.numel())).view(tensor.shape)
        scale = tensor.dim() == 1 and name.endswith("weight")
        tensor.data = 0.5 + u if scale else (0.4 if tensor.dim() > 1 else 0.2) * (u - 0.5)


def run(model, samples, length):
    losses = []
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
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= LR * parameter.grad
    return losses


def main():
    torch.set_default_dtype(torch.float64)
    cases = {}
    for name, (samples, length, config) in CASES.items():
        model = MAKERS[config["type"]](**{k: v for k, v in config.items() if k != "type"}).train()
        fill(model)
        cases[name] = {"model": config, "samples": samples, "length": length,
                       "tensors": [[n, list(p.shape)] for n, p in model.named_parameters()], "losses": run(model, samples, length)}
    with torch.device("meta"):
        counts = {name: sum(math.prod(p.shape) for p in make().parameters()) for name, make in WHOLE.items()}
    text = json.dumps({"lr": LR, "cases": cases, "parameter_counts": counts})
    (HERE / "transformers.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
