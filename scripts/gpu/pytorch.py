"""PyTorch's side of the measurements: one of them, as a line of JSON.

  step resnet50 bf16 eager 40   a training step: eager, compile, reduce-overhead (compiled, replayed
                                as graphs), graphs (the whole step as one CUDA graph)
  update [DEVICE ELEMENTS REPEATS]   the mixing and the optimizer's step: a sequence of foreach
                                     kernels, AdamW's fused kernels, and a copy
  compiled [DEVICE ELEMENTS REPEATS]  the same compiled as one function
  matmul                        the matrix rate
"""

import json
import statistics
import sys
import time

import processes

PARAMETERS = 25_600_000
CASES = {
    "resnet50": {"batch": 256, "image": 224, "classes": 1000, "stem": "imagenet"},
    "resnet18": {"batch": 512, "image": 32, "classes": 10, "stem": "cifar"},
    "resnet20": {"batch": 128, "image": 32, "classes": 10, "stem": "cifar"},
}


def make_model(name):
    sys.path.append(str(processes.ROOT / "examples" / "pytorch"))
    from models import BasicBlock, Bottleneck, CifarResNet, ResNet

    classes = CASES[name]["classes"]
    if name == "resnet20":
        return CifarResNet(20, classes)
    return ResNet(Bottleneck, [3, 4, 6, 3], classes) if name == "resnet50" else ResNet(BasicBlock, [2, 2, 2, 2], classes, cifar=True)


def step(name, precision, mode, steps="40", device="cuda", batch=None):
    """Forward, backward and AdamW on a batch that lies in the GPU's memory."""
    import torch
    from torch.nn import functional

    case, steps = CASES[name], int(steps)
    batch = int(batch or case["batch"])
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    model = make_model(name).to(device).to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True, capturable=mode == "graphs")
    images = torch.randn(batch, 3, case["image"], case["image"], device=device).to(memory_format=torch.channels_last)
    labels = torch.arange(batch, device=device) % case["classes"]
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    scaler = torch.amp.GradScaler(device, enabled=precision == "fp16", init_scale=1024.0)
    run = {"compile": torch.compile, "reduce-overhead": lambda m: torch.compile(m, mode="reduce-overhead")}.get(mode, lambda m: m)(model)
    if mode == "graphs" and precision == "fp16":
        raise ValueError("fp16 looks for overflows on the host: not as one graph")
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

    def step():
        if mode == "reduce-overhead":
            torch.compiler.cudagraph_mark_step_begin()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype, cache_enabled=mode != "graphs"):
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
    wait()
    warm_up = time.monotonic() - begin
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()  # trying out algorithms took more than training does
    times, window = [], 5
    for _ in range(max(1, steps // window)):
        begin = time.monotonic()
        for _ in range(window):
            loss = step()
        wait()
        times.append((time.monotonic() - begin) / window)
    seconds = statistics.median(times)
    memory = {"peak_bytes": torch.cuda.max_memory_allocated(), "reserved_bytes": torch.cuda.max_memory_reserved()} if device == "cuda" else {}
    return {"step_ms": 1e3 * seconds, "images_per_second": batch / seconds, **memory, "loss": float(loss.detach()), "warm_up_s": warm_up}


class ForeachAccumAdamW:
    """docs/semantics.md, section 7, `accum_adamw`, one foreach kernel after another, as decent-dp's
    optimizer runs it."""

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


def update(device="cuda", elements=PARAMETERS, repeats="10", compiled=False):
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
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None

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
    result = {f"{name}_ms": 1e3 * statistics.median(taken) for name, taken in times.items()}
    return {**result, "copy_gb_per_s": 32e-6 * elements / result["copy_ms"]} if "copy_ms" in result else result


def matmul():
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


def main():
    peers = {"step": step, "update": update, "compiled": lambda *given: update(*given, compiled=True), "matmul": matmul}
    if len(sys.argv) < 2 or sys.argv[1] not in peers:
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 2
    print(json.dumps(peers[sys.argv[1]](*sys.argv[2:])))
    return 0
