#!/usr/bin/env python3
"""PyTorch's side of a measurement: one of them, as a line of JSON.

  train ABOUT       a training step. ABOUT, JSON: "model", the section of a config; "batch", "steps",
                    "window" (steps between two looks at the clock); "image", "classes", or "tokens"
                    of a sample; "optimizer" sgd or adamw; "device", "precision", "threads"; "kind"
                    none, ddp or decent-dp (torchrun's variables describe the job), "topology";
                    "mode" eager, compile, reduce-overhead, or graphs (the whole step as one CUDA
                    graph)
  update [DEVICE ELEMENTS REPEATS]     mixing and an optimizer's step: foreach kernels, AdamW's fused
                                       ones, and a copy
  compiled [DEVICE ELEMENTS REPEATS]   the same compiled as one function
  matmul                               the rate of matrix products
  functions ABOUT   milliseconds by name, forward and backward; JSON: "device", "precision", "only",
                    "compile"
"""

import json
import pathlib
import resource
import statistics
import sys
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[2] / "examples" / "pytorch"))
TYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


def waiting(device):
    import torch

    return torch.cuda.synchronize if device == "cuda" else lambda: None


def make_model(section, image, classes):
    import models
    import torch
    from torch import nn

    if section["type"] != "mlp":
        models.F.relu = lambda x, inplace=True: torch.relu_(x)  # as the originals of these models do it
        return models.make_model(section, (image, image, 3), classes)
    layers, inputs = [nn.Flatten()], 3 * image**2
    for width in section["hidden"]:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def train(text):
    import torch
    from torch import distributed, nn
    from torch.nn import functional

    about = {"image": 32, "classes": 10, "optimizer": "adamw", "device": "cpu", "precision": "fp32", "threads": 1, "kind": "none", "mode": "eager", **json.loads(text)}
    device, precision, mode, batch, image, classes = (about[key] for key in ("device", "precision", "mode", "batch", "image", "classes"))
    torch.set_num_threads(about["threads"])
    torch.set_flush_denormal(True)
    torch.manual_seed(1)
    torch.backends.cudnn.benchmark = True
    model = make_model(about["model"], image, classes)
    for module in model.modules():
        if isinstance(module, nn.ReLU6):
            module.inplace = True
    model = model.to(device).train()
    if "tokens" in about:
        inputs = labels = torch.randint(0, classes, (batch, about["tokens"]), device=device)
    else:
        inputs, labels = torch.randn(batch, 3, image, image, device=device), torch.arange(batch, device=device) % classes
        if about["model"]["type"] != "mlp" and not about["model"]["type"].startswith("vit"):
            model, inputs = model.to(memory_format=torch.channels_last), inputs.to(memory_format=torch.channels_last)

    def make_optimizer(parameters):
        if about["optimizer"] == "sgd":
            return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=True)
        return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01, fused=True, capturable=mode == "graphs")

    if about["kind"] != "none":
        distributed.init_process_group("gloo")
    optimizer = None
    if about["kind"] == "decent-dp":
        from decent_dp.ddp import DecentralizedDataParallel

        # The optimizers that it brings run slower loops over tensors.
        model = DecentralizedDataParallel(model, lambda named: make_optimizer([tensor for _, tensor in named]), topology=about["topology"])
    else:
        if about["kind"] == "ddp":
            model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = make_optimizer(model.parameters())

    def loss_of():
        with torch.autocast(device, getattr(torch, TYPES[precision]), enabled=precision != "fp32", cache_enabled=mode != "graphs"):
            return functional.cross_entropy(model(inputs).flatten(0, -2), labels.flatten())

    run = torch.compile(loss_of, mode=mode if mode == "reduce-overhead" else None) if mode in ("compile", "reduce-overhead") else loss_of
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16", init_scale=1024.0)
    if mode == "graphs" and precision == "fp16":
        raise ValueError("fp16 looks for overflows on the host: not as one graph")
    wait = waiting(device)

    def step():
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        if optimizer:
            optimizer.zero_grad(set_to_none=True)
        loss = run()
        scaler.scale(loss).backward()
        if optimizer:
            scaler.step(optimizer)
            scaler.update()
        return loss

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

    if device == "cuda":
        for _ in range(8):
            step()
        wait()
        torch.cuda.reset_peak_memory_stats()  # trying out algorithms took more than training does
    times, window = [], about.get("window", 5)
    for _ in range(max(1, about["steps"] // window)):
        begin = time.perf_counter()
        for _ in range(window):
            loss = step()
        wait()
        times.append(1e3 * (time.perf_counter() - begin) / window)
    # On a CPU the first window, or four steps, warm up.
    ms = statistics.median(times if device == "cuda" else times[max(1, 4 // window) :] or times)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"step_ms": ms, "images_per_second": 1e3 * batch / ms, "peak_memory_bytes": peak, "loss": float(loss.detach())}), flush=True)
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


# ------------------------------------------------------------------------------------- the update


class ForeachAccumAdamW:
    """docs/semantics.md, `accum_adamw`, one foreach kernel after another, as decent-dp's optimizer
    runs it."""

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


def update(device="cuda", elements=25_600_000, repeats="10", compiled=False):
    """decent-dp's sequence: the neighbour's parameters are mixed in with foreach kernels, then the
    optimizer's step; and a plain copy."""
    import torch

    # ResNet-50's 161 tensors, more or less: the split matters to foreach kernels only through their
    # number.
    elements, sizes = int(elements), [int(elements) // 160] * 160
    make = lambda value: [torch.full((n,), value, device=device) for n in sizes]
    parameters = [torch.nn.Parameter(p) for p in make(0.5)]
    for p in parameters:
        p.grad = torch.full_like(p, 1e-3)
    received = make(0.25)
    adamw = lambda **how: torch.optim.AdamW(parameters, lr=1e-4, weight_decay=0.01, **how)
    wait = waiting(device)

    def sequence(optimizer):
        @torch.no_grad()
        def mix_and_step():
            torch._foreach_mul_(parameters, 0.5)
            torch._foreach_add_(parameters, received, alpha=0.5)
            optimizer.step()

        return mix_and_step

    def timed(work, calls=12):  # a whole number of AccumAdamW's groups
        wait()
        begin = time.monotonic()
        for _ in range(calls):
            work()
        wait()
        return (time.monotonic() - begin) / calls

    if compiled:
        subjects = {"compiled": torch.compile(sequence(adamw(foreach=True)))}
    else:
        source, target = torch.ones(4 * elements, device=device), torch.zeros(4 * elements, device=device)
        subjects = {"adamw": sequence(adamw(foreach=True)), "fused": sequence(adamw(fused=True)), "accum_adamw": sequence(ForeachAccumAdamW(parameters)),
                    "copy": lambda: target.copy_(source)}  # fmt: skip
    times = {name: [] for name in subjects}
    for repeat in range(-1, int(repeats)):  # the first round warms up
        for name, work in subjects.items():
            seconds = timed(work)
            if repeat >= 0:
                times[name].append(seconds)
    print(json.dumps({f"{name}_ms": 1e3 * statistics.median(taken) for name, taken in times.items()}))


def matmul():
    import torch

    result = {}
    for name in "bf16", "fp16":
        a, b = (torch.randn(8192, 8192, device="cuda").to(getattr(torch, TYPES[name])) for _ in range(2))
        for _ in range(3):
            a @ b
        torch.cuda.synchronize()
        begin = time.monotonic()
        for _ in range(10):
            a @ b
        torch.cuda.synchronize()
        result[name] = 2.0 * 8192**3 * 10 / (time.monotonic() - begin) * 1e-12
    print(json.dumps(result))


# -------------------------------------------------------------------------------------- functions


def cases(torch):
    """(name, shapes, function): those of test_operations speed --functions, by the same names."""
    from torch.nn import functional

    flat, rows, cube = (16 << 20,), (8192, 1024), (64, 128, 1024)
    yield "gelu(x) * sigmoid(y) + z", [flat, flat, flat], lambda x, y, z: functional.gelu(x) * y.sigmoid() + z
    yield "softmax", [rows], lambda x: x.softmax(-1)
    yield "layer_norm", [rows, (1024,), (1024,)], lambda x, gamma, beta: functional.layer_norm(x, (1024,), gamma, beta)
    yield "rms_norm", [rows, (1024,)], lambda x, gamma: functional.rms_norm(x, (1024,), gamma, 1e-5)
    for axis in range(3):
        yield f"sum over {axis}", [cube], lambda x, axis=axis: x.sum(axis)
        yield f"max over {axis}", [cube], lambda x, axis=axis: x.amax(axis)
    yield "permute 0213", [(32, 1024, 16, 64)], lambda x: x.permute(0, 2, 1, 3).contiguous()
    yield "transpose", [(8192, 4096)], lambda x: x.t().contiguous()
    yield "concat", [(4096, 4096), (4096, 4096)], lambda a, b: torch.cat([a, b], -1)
    yield "pad", [(32, 128, 128, 64)], lambda x: functional.pad(x, (0, 0, 1, 1, 1, 1))
    heads = [(4, 12, 1024, 64)] * 3
    yield "attention 4x12x1024x64, causal", heads, lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    for batch, m, k, n in ((96, 256, 64, 256), (12, 1024, 64, 1024), (1, 3072, 384, 1536)):
        shapes = [(batch, m, k), (batch, k, n)] if batch > 1 else [(m, k), (k, n)]
        yield f"matmul {batch} x {m}x{k} . {k}x{n}", shapes, lambda a, b: a @ b


def functions(text):
    import torch

    about = json.loads(text)
    torch.set_num_threads(1)
    device, wait, result = about["device"], waiting(about["device"]), {}
    for name, shapes, function in cases(torch):
        if about["only"] not in name:
            continue
        # Other functions have one kernel either way.
        ways = {name: function, **({f"{name}, compiled": torch.compile(function)} if about["compile"] and name.startswith("gelu") else {})}
        inputs = []
        for shape in shapes:
            pattern = (torch.arange(torch.Size(shape).numel(), device=device) % 97).float() * 0.01 - 0.5
            inputs.append(pattern.reshape(shape).to(getattr(torch, TYPES[about["precision"]])).requires_grad_())
        gradient = torch.ones_like(function(*inputs))
        for key, way in ways.items():

            def measure(calls, way=way, inputs=inputs, gradient=gradient):
                wait()
                begin = time.perf_counter()
                for _ in range(calls):
                    for x in inputs:
                        x.grad = None
                    way(*inputs).backward(gradient)
                wait()
                return (time.perf_counter() - begin) / calls

            measure(2)
            calls = max(1, min(100, round(4e-3 / measure(1))))
            result[key] = 1e3 * statistics.median(measure(calls) for _ in range(7))
    print(json.dumps(result))


def main():
    peers = {"train": train, "update": update, "compiled": lambda *given: update(*given, compiled=True), "matmul": matmul, "functions": functions}
    if len(sys.argv) < 2 or sys.argv[1] not in peers:
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    peers[sys.argv[1]](*sys.argv[2:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
