#!/usr/bin/env python3
"""PyTorch's side of scripts/gpu_bench.py: one measurement, as a line of JSON.

  scripts/gpu_torch.py step resnet50 bf16 eager 40     a training step (eager, compile, graphs: the whole step as one CUDA graph)
  scripts/gpu_torch.py update                          the mixing and the optimizer's step as a sequence of foreach kernels, and a copy
  scripts/gpu_torch.py matmul                          the matrix rate
"""

import json
import statistics
import sys
import time

PARAMETERS = 25_600_000
CASES = {
    "resnet50": {"batch": 256, "image": 224, "classes": 1000, "stem": "imagenet"},
    "resnet18": {"batch": 512, "image": 32, "classes": 10, "stem": "cifar"},
    "resnet20": {"batch": 128, "image": 32, "classes": 10, "stem": "cifar"},
}


def make_model(name):
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):
        def __init__(self, inputs, width, stride, bottleneck):
            super().__init__()
            outputs = 4 * width if bottleneck else width
            plan = [(width, 1, 1), (width, 3, stride), (outputs, 1, 1)] if bottleneck else [(width, 3, stride), (width, 3, 1)]
            self.convs, self.norms, channels = nn.ModuleList(), nn.ModuleList(), inputs
            for channels_out, kernel, step in plan:
                self.convs.append(nn.Conv2d(channels, channels_out, kernel, step, kernel // 2, bias=False))
                self.norms.append(nn.BatchNorm2d(channels_out))
                channels = channels_out
            self.shortcut = None
            if stride != 1 or inputs != outputs:
                self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

        def forward(self, x):
            y = x
            for i, (conv, norm) in enumerate(zip(self.convs, self.norms)):
                y = norm(conv(y))
                if i + 1 < len(self.convs):
                    y = functional.relu(y, inplace=True)
            return functional.relu(y + (x if self.shortcut is None else self.shortcut(x)), inplace=True)

    class ResNet(nn.Module):
        def __init__(self, blocks, bottleneck, stem, classes):
            super().__init__()
            self.stem = (
                nn.Sequential(nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True))
                if stem == "cifar"
                else nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
            )
            layers, inputs, width = [], 64, 64
            for stage, count in enumerate(blocks):
                for i in range(count):
                    layers.append(Block(inputs, width, 2 if stage > 0 and i == 0 else 1, bottleneck))
                    inputs = 4 * width if bottleneck else width
                width *= 2
            self.blocks = nn.Sequential(*layers)
            self.fc = nn.Linear(inputs, classes)

        def forward(self, x):
            return self.fc(torch.flatten(functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1), 1))

    class Small(nn.Module):
        """A block of CIFAR's ResNet-20, whose shortcut takes every second pixel and adds empty channels."""

        def __init__(self, inputs, outputs, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
            self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
            self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
            self.stride, self.pad = stride, (outputs - inputs) // 2

        def forward(self, x):
            y = self.norm2(self.conv2(functional.relu(self.norm1(self.conv1(x)), inplace=True)))
            if self.stride != 1:
                x = functional.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.pad, self.pad))
            return functional.relu(y + x, inplace=True)

    class ResNet20(nn.Module):
        def __init__(self, classes):
            super().__init__()
            blocks, inputs = [], 16
            for stage, width in enumerate((16, 32, 64)):
                for i in range(3):
                    blocks.append(Small(inputs, width, 2 if stage > 0 and i == 0 else 1))
                    inputs = width
            self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
            self.blocks, self.fc = nn.Sequential(*blocks), nn.Linear(64, classes)

        def forward(self, x):
            return self.fc(torch.flatten(functional.adaptive_avg_pool2d(self.blocks(self.stem(x)), 1), 1))

    case = CASES[name]
    if name == "resnet20":
        return ResNet20(case["classes"])
    if name == "resnet50":
        return ResNet([3, 4, 6, 3], True, case["stem"], case["classes"])
    return ResNet([2, 2, 2, 2], False, case["stem"], case["classes"])


def torch_step(name, precision, mode, steps):
    """Forward, backward and AdamW on a batch that lies in the GPU's memory; mode: eager, compile, graphs (the whole step as one)."""
    import torch
    from torch.nn import functional

    case = CASES[name]
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    model = make_model(name).cuda().to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True, capturable=mode == "graphs")
    images = torch.randn(case["batch"], 3, case["image"], case["image"], device="cuda").to(memory_format=torch.channels_last)
    labels = torch.arange(case["batch"], device="cuda") % case["classes"]
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    scaler = torch.amp.GradScaler("cuda", enabled=precision == "fp16", init_scale=1024.0)
    run = torch.compile(model) if mode == "compile" else model
    if mode == "graphs" and precision == "fp16":
        raise ValueError("fp16 looks for overflows on the host: not as one graph")

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype, cache_enabled=mode != "graphs"):
            loss = functional.cross_entropy(run(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss

    begin = time.monotonic()
    if mode == "graphs":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(8):
                step()
        torch.cuda.current_stream().wait_stream(side)
        optimizer.zero_grad(set_to_none=True)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = step()

        def step():
            graph.replay()
            return captured

    for _ in range(8):
        step()
    torch.cuda.synchronize()
    warm_up = time.monotonic() - begin
    torch.cuda.reset_peak_memory_stats()  # trying out algorithms took more than training does
    times, window = [], 5
    for _ in range(max(1, steps // window)):
        begin = time.monotonic()
        for _ in range(window):
            loss = step()
        torch.cuda.synchronize()
        times.append((time.monotonic() - begin) / window)
    seconds = statistics.median(times)
    return {
        "step_ms": 1e3 * seconds,
        "images_per_second": case["batch"] / seconds,
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
        "loss": float(loss),
        "warm_up_s": warm_up,
    }


class ForeachAccumAdamW:
    """docs/semantics.md, section 7, `accum_adamw`, one foreach kernel after another, as decent-dp's optimizer runs it."""

    def __init__(self, parameters, lr=1e-4, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01, accum_iter=4):
        import torch

        self.parameters, self.lr, self.betas, self.eps, self.weight_decay, self.k = parameters, lr, betas, eps, weight_decay, accum_iter
        self.m, self.v, self.a = ([torch.zeros_like(p) for p in parameters] for _ in range(3))
        self.steps = 0

    def step(self):
        import torch

        self.steps += 1
        p, m, v, a = self.parameters, self.m, self.v, self.a
        g = [x.grad for x in p]
        beta1, beta2 = self.betas
        q = -(-self.steps // self.k)
        torch._foreach_mul_(p, 1 - self.lr * self.weight_decay)
        torch._foreach_add_(a, g, alpha=1 / self.k)
        first = torch._foreach_add(m, g, alpha=1 - beta1)
        second = torch._foreach_addcmul(v, g, g, value=1 - beta2)
        torch._foreach_sqrt_(second)
        torch._foreach_div_(second, (1 - beta2**q) ** 0.5)
        torch._foreach_add_(second, self.eps)
        torch._foreach_addcdiv_(p, first, second, value=-self.lr / (1 - beta1**q))
        if self.steps % self.k == 0:
            torch._foreach_add_(m, a, alpha=1 - beta1)
            torch._foreach_mul_(m, beta1)
            torch._foreach_addcmul_(v, a, a, value=1 - beta2)
            torch._foreach_mul_(v, beta2)
            torch._foreach_zero_(a)


def torch_update(repeats, device="cuda", elements=PARAMETERS):
    """decent-dp's sequence: the neighbour's parameters are mixed in with foreach kernels, then the optimizer's foreach step; and a plain copy."""
    import torch

    # ResNet-50's 161 tensors, more or less: the split matters to foreach kernels only through their number.
    sizes = [elements // 160] * 160
    make = lambda value: [torch.full((n,), value, device=device) for n in sizes]
    parameters = [torch.nn.Parameter(p) for p in make(0.5)]
    for p in parameters:
        p.grad = torch.full_like(p, 1e-3)
    received = make(0.25)
    optimizers = {
        "adamw": torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, foreach=True),
        "accum_adamw": ForeachAccumAdamW(parameters),
    }
    source, target = torch.ones(4 * elements, device=device), torch.zeros(4 * elements, device=device)

    @torch.no_grad()
    def sequence(optimizer):
        torch._foreach_mul_(parameters, 0.5)
        torch._foreach_add_(parameters, received, alpha=0.5)
        optimizer.step()

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    def timed(work, calls=12):  # a whole number of AccumAdamW's groups
        wait()
        begin = time.monotonic()
        for _ in range(calls):
            work()
        wait()
        return (time.monotonic() - begin) / calls

    subjects = {name: (lambda optimizer=optimizer: sequence(optimizer)) for name, optimizer in optimizers.items()}
    subjects["copy"] = lambda: target.copy_(source)
    times = {name: [] for name in subjects}
    for repeat in range(-1, repeats):  # the first round warms up
        for name, work in subjects.items():
            seconds = timed(work)
            if repeat >= 0:
                times[name].append(seconds)
    result = {f"{name}_ms": 1e3 * statistics.median(times[name]) for name in optimizers}
    return {**result, "copy_gb_per_s": 32.0 * elements / statistics.median(times["copy"]) * 1e-9}


def torch_matmul():
    import torch

    result = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        a, b = (torch.randn(8192, 8192, device="cuda").to(dtype) for _ in range(2))
        for _ in range(3):
            a @ b
        torch.cuda.synchronize()
        begin = time.monotonic()
        for _ in range(10):
            a @ b
        torch.cuda.synchronize()
        result[name] = 2.0 * 8192**3 * 10 / (time.monotonic() - begin) * 1e-12
    return result


PEERS = {
    "step": lambda name, precision, mode, steps="40": torch_step(name, precision, mode, int(steps)),
    "update": lambda device="cuda", elements=PARAMETERS, repeats="10": torch_update(int(repeats), device, int(elements)),
    "matmul": torch_matmul,
}


if __name__ == "__main__":
    print(json.dumps(PEERS[sys.argv[1]](*sys.argv[2:])))
