#!/usr/bin/env python3
"""One rank of a PyTorch job, one thread, fp32: prints {"step_ms": ..., "peak_memory_bytes": ...}.
The only file of this folder that needs torch.

  peers.py none|ddp|decent-dp MODEL BATCH STEPS WINDOW TOPOLOGY sgd|adamw

MODEL may be a JSON object, of a Transformer on one rank: {"model": {...}, "classes": ...}, and
"tokens" of a sample or "image" for its pixels; "threads", "precision", "compile".

The job is described by torchrun's variables in the environment (RANK, WORLD_SIZE, MASTER_ADDR,
...). step_ms is the median over windows of WINDOW steps after the first, or after four steps.
"""

import json
import resource
import statistics
import sys
import time

from jobs import MODELS, ROOT


def make_model(name, size):
    import torch
    from torch import nn

    section = MODELS[name][0] if name in MODELS else {"type": name}
    if section["type"] != "mlp":
        sys.path.append(str(ROOT / "examples" / "pytorch"))
        import models

        # as the originals of these models do it
        models.F.relu = lambda x, inplace=True: torch.relu_(x)
        model = models.make_model(section, (size, size, 3), 10)
        for module in model.modules():
            if isinstance(module, nn.ReLU6):
                module.inplace = True
        return model
    layers, inputs = [nn.Flatten()], 3072
    for width in section["hidden"]:
        layers += [nn.Linear(inputs, width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.Linear(inputs, 10))


def transformer(about, batch):
    """The loss of a batch as a function without arguments, and the model's parameters."""
    import torch
    from torch.nn import functional

    sys.path.append(str(ROOT / "examples" / "pytorch"))
    from models import make_model as example

    torch.set_num_threads(about.get("threads", 1))
    side, classes = about.get("image", 1), about["classes"]
    model = example(about["model"], (side, side, 3), classes)
    if "tokens" in about:
        x = targets = torch.randint(0, classes, (batch, about["tokens"]))
    else:
        x, targets = torch.randn(batch, 3, side, side), torch.randint(0, classes, (batch,))

    def loss_of(x, targets):
        with torch.autocast("cpu", torch.bfloat16, enabled=about.get("precision") == "bf16"):
            return functional.cross_entropy(model(x).flatten(0, -2), targets.flatten())

    compiled = torch.compile(loss_of) if about.get("compile") else loss_of
    return lambda: compiled(x, targets), list(model.parameters())


def main():
    kind, name, batch, steps, window, topology, rule = sys.argv[1:8]
    batch, steps, window = int(batch), int(steps), int(window)

    import torch
    from torch import distributed
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    if name.startswith("{"):
        loss_of, parameters = transformer(json.loads(name), batch)
    else:
        size = 32 if name in MODELS else 96
        model, images = make_model(name, size), torch.randn(batch, 3, size, size)
        if not name.startswith("mlp"):
            model, images = model.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
        labels = torch.randint(0, 10, (batch,))

    def make_optimizer(parameters):
        if rule == "sgd":
            return torch.optim.SGD(parameters, lr=1e-3, momentum=0.9, fused=True)
        return torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1, fused=True)

    optimizer = None
    if kind != "none":
        distributed.init_process_group("gloo")
    if kind == "decent-dp":
        from decent_dp.ddp import DecentralizedDataParallel

        # The optimizers that it brings run slower loops over tensors.
        model = DecentralizedDataParallel(model, lambda named: make_optimizer([tensor for _, tensor in named]), topology=topology)
    else:
        if kind == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
        optimizer = make_optimizer(parameters if name.startswith("{") else model.parameters())
    if not name.startswith("{"):
        model.train()
        loss_of = lambda: functional.cross_entropy(model(images), labels)

    times = []
    begin = time.perf_counter()
    for step in range(1, steps + 1):
        loss = loss_of()
        if optimizer is not None:
            optimizer.zero_grad()
        loss.backward()
        if optimizer is not None:
            optimizer.step()
        if step % window == 0:
            now = time.perf_counter()
            times.append(1e3 * (now - begin) / window)
            begin = now
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"step_ms": statistics.median(times[max(1, 4 // window):]), "peak_memory_bytes": peak}), flush=True)
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
