#!/usr/bin/env python3
"""Writes lora.json: ten steps of SGD in fp64 of PEFT's LoRA on small models of Hugging Face's; and
lora/: a base, PEFT's adapter folder of it, and the model that PEFT merges of the two. Needs torch,
transformers and peft:

    python3 tests/golden/make_lora.py

Both sides make initial values and tokens from a hash. Stored are losses, names and shapes.
"""
import json
import pathlib
import shutil
import sys

import peft
import torch

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from make_models import hashed  # noqa: E402
from make_transformers import LR, MAKERS, fill, run  # noqa: E402

GPT2 = ["c_attn", "c_proj", "c_fc"]
LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
# samples of a batch, tokens of one, model, LoraConfig
CASES = {
    "gpt2": (3, 10, {"type": "gpt2", "layers": 2, "heads": 3, "width": 24, "context": 12, "vocab": 61},
             {"r": 3, "lora_alpha": 7, "target_modules": GPT2, "fan_in_fan_out": True}),
    "llama": (3, 9, {"type": "llama", "layers": 2, "heads": 4, "kv_heads": 2, "width": 32, "hidden": 40, "context": 16, "vocab": 53,
                     "rope_theta": 500.0, "eps": 1e-4},
              {"r": 4, "lora_alpha": 4, "target_modules": LLAMA, "modules_to_save": ["model.norm", "lm_head"]}),
}
BASE = {"layers": 1, "heads": 2, "width": 8, "context": 8, "vocab": 11}


def name_of(name):
    """PEFT's name of a parameter in memory, as its files and Starling have it."""
    for part in ("base_model.model.", ".base_layer", ".default", ".modules_to_save"):
        name = name.replace(part, "")
    return name


def parameters_of(model):
    """Of a module that is trained whole, PEFT keeps the old one beside the new."""
    return [(name, p) for name, p in model.named_parameters() if "original_module" not in name]


class Named:
    """What fill() and run() use of a model."""

    def __init__(self, model):
        self.model, self.config = model, model.config

    def __call__(self, tokens):
        return self.model(tokens)

    def named_parameters(self):
        return [(name_of(n), p) for n, p in parameters_of(self.model)]

    def parameters(self):
        return [p for p in self.model.parameters() if p.requires_grad]

    def zero_grad(self):
        self.model.zero_grad()


def adapted(kind, model, lora):
    base = MAKERS[kind](**model).train()
    return peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", lora_dropout=0.0, **lora))


def write_folder():
    """A base and an adapter of few numbers, in files."""
    folder = HERE / "lora"
    shutil.rmtree(folder, ignore_errors=True)
    torch.set_default_dtype(torch.float32)
    base = MAKERS["gpt2"](**BASE)
    fill(base)
    base.float().save_pretrained(folder / "base")
    model = peft.get_peft_model(base, peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, lora_alpha=6, target_modules=["attn.c_attn", "mlp.c_proj"], modules_to_save=["ln_f"],
        fan_in_fan_out=True))
    for k, p in enumerate(Named(model).parameters()):
        p.data = torch.from_numpy(hashed(100 + k, p.numel())).view(p.shape).float() - 0.5
    model.peft_config["default"].base_model_name_or_path = "golden/lora/base"
    model.save_pretrained(folder / "adapter", save_embedding_layers=False)
    (folder / "adapter" / "README.md").unlink()
    model.merge_and_unload().save_pretrained(folder / "merged")
    for config in (folder / "merged").glob("*.json"):
        config.unlink()
    for config in (folder / "base").glob("generation_config.json"):
        config.unlink()


def main():
    torch.set_default_dtype(torch.float64)
    cases = {}
    for name, (samples, length, config, lora) in CASES.items():
        model = Named(adapted(config["type"], {k: v for k, v in config.items() if k != "type"}, lora))
        fill(model)
        cases[name] = {"model": config, "samples": samples, "length": length,
                       "lora": {"rank": lora["r"], "alpha": lora["lora_alpha"], "train": lora.get("modules_to_save", [])},
                       "tensors": [[n, list(p.shape)] for n, p in model.named_parameters()], "losses": run(model, samples, length)}
    (HERE / "lora.json").write_text(json.dumps({"lr": LR, "cases": cases}) + "\n")
    write_folder()


if __name__ == "__main__":
    main()
