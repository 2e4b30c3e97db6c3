#!/usr/bin/env python3
"""Times functions of tensors, forward and backward, in Starling and in PyTorch, taking turns, and
prints medians and ratios.

  scripts/compare_functions.py [--device cpu|cuda] [--precision fp32|bf16|fp16] [--only WORD]
                               [--repeats 3] [--compile] [--json]

Needs a built starling-bench (scripts/test.sh builds it) and torch. One thread on a CPU. --compile
adds torch.compile, for chains of pointwise functions alone: others have one kernel either way.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BENCH = pathlib.Path(os.environ.get("STARLING_BUILD", ROOT / "build")) / "bin" / "starling-bench"


def gated(x, y, z):
    from torch.nn import functional

    return functional.gelu(x) * y.sigmoid() + z


def cases(torch):
    """(name, shapes, function): those of apps/bench/functions.cpp."""
    from torch.nn import functional

    flat, rows, cube = (16 << 20,), (8192, 1024), (64, 128, 1024)
    yield "gelu(x) * sigmoid(y) + z", [flat, flat, flat], gated
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


def torch_side(options):
    """A line of JSON: milliseconds by name, and by name and ", compiled"."""
    import torch

    torch.set_num_threads(1)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[options.precision]
    wait = torch.cuda.synchronize if options.device == "cuda" else lambda: None
    result = {}
    for name, shapes, function in cases(torch):
        if options.only not in name:
            continue
        ways = {name: function, **({f"{name}, compiled": torch.compile(function)} if options.compile and function is gated else {})}
        inputs = []
        for shape in shapes:
            count = torch.Size(shape).numel()
            pattern = (torch.arange(count, device=options.device) % 97).float() * 0.01 - 0.5
            inputs.append(pattern.reshape(shape).to(dtype).requires_grad_())
        gradient = torch.ones_like(function(*inputs))

        def run(function, inputs=inputs, gradient=gradient):
            for x in inputs:
                x.grad = None
            function(*inputs).backward(gradient)

        for key, way in ways.items():
            seconds = []

            def measure(calls, way=way):
                wait()
                begin = time.perf_counter()
                for _ in range(calls):
                    run(way)
                wait()
                return (time.perf_counter() - begin) / calls

            measure(2)
            calls = max(1, min(100, round(4e-3 / measure(1))))
            for _ in range(7):
                seconds.append(measure(calls))
            result[key] = 1e3 * statistics.median(seconds)
    print(json.dumps(result))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--only", default="", help="functions whose name has this")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each program")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--torch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch:
        return torch_side(options)
    same = ["--device", options.device, "--precision", options.precision, *(["--only", options.only] if options.only else [])]
    theirs = [sys.executable, "-B", __file__, "--torch", *same, *["--compile"] * options.compile]
    # PyTorch runs on the libraries that it was shipped with, not on ours.
    outer = {**os.environ, "LD_LIBRARY_PATH": os.environ.get("STARLING_OUTER_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH", ""))}
    own_rows, their_rows = [], []
    for _ in range(options.repeats):
        for command, rows, environment in (([str(BENCH), "functions", *same, "--json"], own_rows, None), (theirs, their_rows, outer)):
            process = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment)
            if process.returncode != 0:
                sys.exit(f"error: exit status {process.returncode}: {' '.join(command)}")
            rows.append(json.loads(process.stdout.splitlines()[-1]))
    result = []
    for i, row in enumerate(own_rows[0]["rows"]):
        name = row["function"]
        middle = lambda key: statistics.median(turn["rows"][i][key] for turn in own_rows)
        torch_ms = {key: statistics.median(turn[key] for turn in their_rows) for key in (name, f"{name}, compiled") if key in their_rows[0]}
        result.append({"function": name, "ms": middle("ms"), "torch_ms": torch_ms.get(name), "compiled_ms": torch_ms.get(f"{name}, compiled"), "ratio_to_limit": middle("ratio")})
    if options.json:
        print(json.dumps({"device": own_rows[0]["device"], "precision": options.precision, "rows": result}))
        return 0
    print(f"{own_rows[0]['device']}, {options.precision}")
    print("| function | Starling, ms | PyTorch, ms | ratio | of the limit |\n|---|---|---|---|---|")
    for one in result:
        compiled = f"; compiled {one['compiled_ms']:.3g}: {one['compiled_ms'] / one['ms']:.2f} ×" if one["compiled_ms"] else ""
        print(f"| {one['function']} | {one['ms']:.3g} | {one['torch_ms']:.3g} | {one['torch_ms'] / one['ms']:.2f} ×{compiled} | {one['ratio_to_limit']:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
