"""Starling's Transformers in PyTorch: GPT-2, Llama and its like with the names and shapes of Hugging
Face's classes, vision transformers with torchvision's."""
import collections
import math

import torch
from torch import nn
from torch.nn import functional as F


def attend(q, k, v, dropout=0.0, window=0):
    """Causal softmax(q·kᵀ / √D)·v of N×T×heads×D, of the last `window` keys, as N×T×(heads·D)."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    sees = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril().triu(1 - window) if window else None
    y = F.scaled_dot_product_attention(q, k, v, sees, dropout, not window, enable_gqa=bool(q.shape[1] != k.shape[1]))
    return y.transpose(1, 2).flatten(2)


class Conv1D(nn.Module):
    """A linear layer whose weight is I×O."""
    def __init__(self, inputs, outputs, deviation=0.02):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs).normal_(0, deviation))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x):
        return x @ self.weight + self.bias


class Gpt2Block(nn.Module):
    def __init__(self, layers, heads, width, dropout, hidden, eps):
        super().__init__()
        end, self.heads, self.drop = 0.02 / (2 * layers) ** 0.5, heads, nn.Dropout(dropout)
        self.ln_1, self.ln_2 = nn.LayerNorm(width, eps), nn.LayerNorm(width, eps)
        self.attn = nn.ModuleDict({"c_attn": Conv1D(width, 3 * width), "c_proj": Conv1D(width, width, end)})
        self.mlp = nn.ModuleDict({"c_fc": Conv1D(width, hidden), "c_proj": Conv1D(hidden, width, end)})

    def forward(self, x):
        q, k, v = self.attn["c_attn"](self.ln_1(x)).unflatten(2, (3, self.heads, -1)).unbind(2)
        x = x + self.drop(self.attn["c_proj"](attend(q, k, v, self.drop.p if self.training else 0.0)))
        return x + self.drop(self.mlp["c_proj"](F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")))


class Gpt2(nn.Module):
    def __init__(self, vocab, layers=12, heads=12, width=768, context=1024, dropout=0.0, tie=True, hidden=None,
                 positions=None, eps=1e-5):
        super().__init__()
        self.drop = nn.Dropout(dropout)
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocab, width), "wpe": nn.Embedding(positions or context, width),
            "h": nn.ModuleList(Gpt2Block(layers, heads, width, dropout, hidden or 4 * width, eps) for _ in range(layers)), "ln_f": nn.LayerNorm(width, eps)})
        if not tie:
            self.lm_head = nn.Linear(width, vocab, bias=False)
        for table in self.transformer["wte"], self.transformer["wpe"], *([] if tie else [self.lm_head]):
            nn.init.normal_(table.weight, 0, 0.02)

    def forward(self, tokens):
        body = self.transformer
        x = self.drop(body["wte"](tokens) + body["wpe"].weight[:tokens.shape[1]])
        for block in body["h"]:
            x = block(x)
        return F.linear(body["ln_f"](x), getattr(self, "lm_head", body["wte"]).weight)


class LlamaBlock(nn.Module):
    def __init__(self, heads, kv_heads, depth, width, hidden, eps, window, qkv_bias, bias, qk_norm):
        super().__init__()
        self.depth, self.window = depth, window
        linear = lambda inputs, outputs, bias=False: nn.Linear(inputs, outputs, bias)
        self.self_attn = nn.ModuleDict({"q_proj": linear(width, heads * depth, qkv_bias), "k_proj": linear(width, kv_heads * depth, qkv_bias),
                                        "v_proj": linear(width, kv_heads * depth, qkv_bias), "o_proj": linear(heads * depth, width, bias)})
        if qk_norm:
            self.self_attn.update({"q_norm": nn.RMSNorm(depth, eps), "k_norm": nn.RMSNorm(depth, eps)})
        self.mlp = nn.ModuleDict({"gate_proj": linear(width, hidden), "up_proj": linear(width, hidden), "down_proj": linear(hidden, width)})
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(width, eps), nn.RMSNorm(width, eps)

    def forward(self, x, turn):
        y = self.input_layernorm(x)
        q, k, v = (self.self_attn[name](y).unflatten(2, (-1, self.depth)) for name in ("q_proj", "k_proj", "v_proj"))
        if "q_norm" in self.self_attn:
            q, k = self.self_attn["q_norm"](q), self.self_attn["k_norm"](k)
        x = x + self.self_attn["o_proj"](attend(turn(q), turn(k), v, window=self.window))
        y = self.post_attention_layernorm(x)
        return x + self.mlp["down_proj"](F.silu(self.mlp["gate_proj"](y)) * self.mlp["up_proj"](y))


class Llama(nn.Module):
    def __init__(self, vocab, layers, heads, width, kv_heads=None, hidden=None, context=2048, rope_theta=10000.0, eps=1e-5, tie=False,
                 head_dim=None, rope_scaling=None, window=0, window_layers=(), bias=False, qkv_bias=False, qk_norm=False):
        super().__init__()
        hidden = hidden or -(-(8 * width // 3) // 256) * 256
        self.depth, self.theta, self.scaling = head_dim or width // heads, rope_theta, rope_scaling
        windows = [window if not window_layers or i in window_layers else 0 for i in range(layers)]
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(vocab, width),
            "layers": nn.ModuleList(LlamaBlock(heads, kv_heads or heads, self.depth, width, hidden, eps, own, qkv_bias or bias, bias, qk_norm)
                                    for own in windows),
            "norm": nn.RMSNorm(width, eps)})
        if not tie:
            self.lm_head = nn.Linear(width, vocab, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, 0, 0.02)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)

    def frequencies(self, device):
        full = self.theta ** (-torch.arange(0, self.depth, 2, device=device) / self.depth)
        if not self.scaling:
            return full
        slow, at = full / self.scaling["factor"], self.scaling
        if at["type"] == "linear":
            return slow
        turns = at["original_context"] * full / (2 * math.pi)  # within the context that it began with
        share = ((turns - at["low_freq_factor"]) / (at["high_freq_factor"] - at["low_freq_factor"])).clamp(0, 1)
        return (1 - share) * slow + share * full

    def forward(self, tokens):
        x = self.model["embed_tokens"](tokens)
        frequency = self.frequencies(x.device)
        angle = torch.outer(torch.arange(tokens.shape[1], device=x.device), frequency)[:, None]
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)

        def turn(y):
            a, b = y.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)
        for block in self.model["layers"]:
            x = block(x, turn)
        return F.linear(self.model["norm"](x), getattr(self, "lm_head", self.model["embed_tokens"]).weight)


class VitBlock(nn.Module):
    def __init__(self, heads, width, mlp, dropout):
        super().__init__()
        self.ln_1, self.ln_2, self.drop = nn.LayerNorm(width, 1e-6), nn.LayerNorm(width, 1e-6), nn.Dropout(dropout)
        self.self_attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, mlp), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp, width), nn.Dropout(dropout))
        for linear in self.mlp[0], self.mlp[3]:
            nn.init.xavier_uniform_(linear.weight)
            nn.init.normal_(linear.bias, std=1e-6)

    def forward(self, x):
        y = self.ln_1(x)
        x = x + self.drop(self.self_attention(y, y, y, need_weights=False)[0])
        return x + self.mlp(self.ln_2(x))


class VitEncoder(nn.Module):
    def __init__(self, tokens, layers, heads, width, mlp, dropout):
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.empty(1, tokens, width).normal_(0, 0.02))
        self.layers = nn.Sequential(collections.OrderedDict(
            (f"encoder_layer_{i}", VitBlock(heads, width, mlp, dropout)) for i in range(layers)))
        self.ln, self.drop = nn.LayerNorm(width, 1e-6), nn.Dropout(dropout)

    def forward(self, x):
        return self.ln(self.layers(self.drop(x + self.pos_embedding)))


class Vit(nn.Module):
    def __init__(self, classes, channels, layers, heads, width, mlp, patch_size=16, image_size=224, dropout=0.0):
        super().__init__()
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.conv_proj = nn.Conv2d(channels, width, patch_size, patch_size)
        self.encoder = VitEncoder((image_size // patch_size) ** 2 + 1, layers, heads, width, mlp, dropout)
        self.heads = nn.Sequential(collections.OrderedDict(head=nn.Linear(width, classes)))
        nn.init.normal_(self.conv_proj.weight, std=(channels * patch_size**2) ** -0.5)
        for zero in self.conv_proj.bias, self.heads.head.weight, self.heads.head.bias:
            nn.init.zeros_(zero)

    def forward(self, x):
        patches = self.conv_proj(x).flatten(2).transpose(1, 2)
        x = torch.cat((self.class_token.expand(len(x), -1, -1), patches), 1)
        return self.heads(self.encoder(x)[:, 0])


def gpt2(image, classes, *, vocab=None, layers=12, heads=12, width=768, context=1024, dropout=0.0, tie=True,
         hidden=None, positions=None, eps=1e-5):
    return Gpt2(vocab or classes, layers, heads, width, context, dropout, tie, hidden, positions, eps)


def llama_like(**family):
    """Llama with options: `family` is what a type has, the rest its keys."""
    def make(image, classes, *, layers, heads, width, vocab=None, kv_heads=None, hidden=None, context=2048, rope_theta=10000.0, eps=1e-5,
             tie=False, head_dim=None, rope_scaling=None, window=0, window_layers=(), bias=False):
        return Llama(vocab or classes, layers, heads, width, kv_heads, hidden, context, rope_theta, eps, tie, head_dim, rope_scaling,
                     window, window_layers, bias, **family)
    return make


def vit(image, classes, *, layers, heads, width, mlp, patch_size=16, image_size=224, dropout=0.0):
    return Vit(classes, image[2], layers, heads, width, mlp, patch_size, image_size, dropout)


def sized_vit(usual):
    def make(image, classes, *, patch_size=16, image_size=224, layers=12, heads=usual, width=64 * usual, mlp=256 * usual, dropout=0.0):
        return Vit(classes, image[2], layers, heads, width, mlp, patch_size, image_size, dropout)
    return make


ATTENTION_MODELS = {"gpt2": gpt2, "llama": llama_like(), "mistral": llama_like(), "qwen2": llama_like(qkv_bias=True),
                    "qwen3": llama_like(qk_norm=True), "vit": vit, "vit_ti_16": sized_vit(3), "vit_s_16": sized_vit(6), "vit_b_16": sized_vit(12)}
