#!/usr/bin/env python3
"""Each model that starling-train lists, and a sequential of each layer: trained for an update,
then predicted by starling-predict and by PyTorch with examples/pytorch, which must agree. Needs
torch and Pillow; works in the current folder.

    pytorch_models.py TRAIN PREDICT EXAMPLES [NAME...]      NAME: only these cases
"""
import json
import pathlib
import shutil
import subprocess
import sys

train, predict, examples, *wanted = sys.argv[1:]
sys.path.insert(0, examples)
import torch  # noqa: E402
from PIL import Image  # noqa: E402

from layers import LAYERS  # noqa: E402
from models import MODELS, make_model  # noqa: E402
from starling_torch import load  # noqa: E402

SIZE = 32
# of models that need some, or whose defaults are too large or hide a part: a factor of 1e-6 would
KEYS = {
    "wide_resnet": {"depth": 16, "width": 2},
    "vgg11": {"classifier": "cifar"},
    "mobilenet_v2": {"width_mult": 0.35},
    "convnext_tiny": {"layer_scale": 0.5},
    "mlp": {"hidden": [20, 10]},
    "vit": {"layers": 2, "heads": 2, "width": 16, "mlp": 24, "image_size": SIZE, "patch_size": 8},
    "vit_ti_16": {"image_size": SIZE, "layers": 2},
    "vit_s_16": {"image_size": SIZE, "layers": 1},
    "vit_b_16": {"image_size": SIZE, "layers": 1},
    "sequential": {"layers": [
        {"type": "conv2d", "out_channels": 12, "kernel_size": [3, 5], "stride": [1, 2], "padding": [1, 2], "dilation": 1, "bias": False},
        {"type": "batch_norm", "eps": 1e-3}, {"type": "relu6"},
        {"type": "max_pool2d", "kernel_size": 3, "stride": 2, "padding": 1},
        {"type": "residual", "layers": [{"type": "conv2d", "out_channels": 12, "kernel_size": 3, "padding": 1, "groups": 3}, {"type": "silu"},
                                        {"type": "layer_norm"}, {"type": "layer_scale", "init": 0.7}, {"type": "stochastic_depth", "p": 0.2}]},
        {"type": "blur_pool2d", "kernel_size": [3, 2], "padding": [1, 0]},
        {"type": "residual", "layers": [{"type": "conv2d", "out_channels": 16, "kernel_size": 3, "padding": 2, "dilation": 2},
                                        {"type": "batch_norm"}],
         "shortcut": [{"type": "conv2d", "out_channels": 16, "kernel_size": 1}]},
        {"type": "group_norm", "num_groups": 4}, {"type": "squeeze_excite", "reduction": 4},
        {"type": "multiply", "branches": [[], [{"type": "conv2d", "out_channels": 1, "kernel_size": 1}, {"type": "sigmoid"}]]},
        {"type": "concat", "branches": [[], [{"type": "softmax", "dim": -1}], [{"type": "instance_norm", "affine": True}, {"type": "tanh"}]]},
        {"type": "checkpoint", "layers": [{"type": "conv_transpose2d", "out_channels": 16, "kernel_size": [3, 2], "stride": 2,
                                           "padding": [1, 0], "output_padding": 1, "groups": 4}, {"type": "softplus"}, {"type": "rms_norm"}]},
        {"type": "upsample", "scale_factor": 0.6}, {"type": "upsample", "scale_factor": 1.5, "mode": "bilinear"},
        {"type": "adaptive_avg_pool2d", "output_size": [5, 4]},
        {"type": "relu"}, {"type": "avg_pool2d", "kernel_size": [2, 1], "padding": [1, 0]},
        {"type": "sequential", "layers": [{"type": "global_avg_pool"}, {"type": "layer_scale", "init": 3}, {"type": "gelu"}]},
        {"type": "flatten"}, {"type": "embed_inputs", "first": 3, "inputs": 5, "embedding_dim": 2}, {"type": "dropout"},
        {"type": "linear", "out_features": 3}]},
}
MORE = {  # name: (model, evaluate.tta), and a loss other than cross entropy
    "resnet20 with blur_pool": ({"type": "resnet20", "blur_pool": True}, "none"),
    "resnet18 with the CIFAR stem and blur_pool": ({"type": "resnet18", "stem": "cifar", "blur_pool": True}, "mirror"),
    "resnet50 with blur_pool": ({"type": "resnet50", "blur_pool": True}, "none"),
    "vgg11 with batch norm": ({"type": "vgg11", "classifier": "cifar", "batch_norm": True}, "none"),
    "resnet20 with more outputs than classes": ({"type": "resnet20", "num_classes": 7}, "none"),
    "resnet20 with a sigmoid for each class": ({"type": "resnet20"}, "none", "bce_with_logits"),
    "airbench 96": ({"type": "airbench", "variant": "96", "output_scale": 0.3}, "mirror_translate"),
}


def listed(kind):
    names = subprocess.run([train, "--list", kind], check=True, capture_output=True, text=True).stdout.split()
    return [name for name in names if name != "pretrained"]  # which is another type's


def types(specs):
    return {t for s in specs for t in ({s["type"]} | types(s.get("layers", [])) | types(s.get("shortcut", []))
                                       | types(sum(s.get("branches", []), [])))}


def make_pictures():
    for folder, count in (("train", 4), ("val", 2)):
        for label, name in enumerate(("ant", "bee", "cow")):
            path = pathlib.Path("noise", folder, name)
            path.mkdir(parents=True, exist_ok=True)
            for i in range(count):
                noise = torch.randint(0, 256, (8, 8, 3), dtype=torch.uint8)
                Image.fromarray(noise.numpy()).resize((SIZE, SIZE), Image.Resampling.BICUBIC).save(path / f"{i}.png")
    grey = torch.randint(0, 65536, (SIZE, SIZE))  # of 16 bits, of which the upper 8 count
    Image.fromarray(grey.numpy().astype("uint16")).save("noise/val/cow/grey16.png")


def compare(name, model, tta, loss="cross_entropy"):
    """The largest difference of a probability; AssertionError where it is too large, or where all
    pictures look the same to the model."""
    config = {"model": model, "data": {"type": "image_folder", "path": "noise", "image_size": SIZE, "test_resize": SIZE, "test_crop": SIZE},
              "batch_size": 6, "steps": 1, "optimizer": {"type": "sgd", "lr": 0.01}, "loss": {"type": loss}, "evaluate": {"tta": tta},
              "checkpoint": {"every_epochs": 0}}
    # Running means of one batch would let outputs run away, and probabilities be 0 and 1 whatever
    # is computed.
    if any(isinstance(m, (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d)) for m in make_model(model, (SIZE, SIZE, 3), 3).modules()):
        config["sync"] = {"batch_norm": "recalibrate", "recalibrate_batches": 2}
    pathlib.Path("one.json").write_text(json.dumps(config))
    shutil.rmtree("one", ignore_errors=True)
    done = subprocess.run([train, "one.json", "--output", "one"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = subprocess.run([predict, "one", "noise/val", "--json", "--top", "99"], check=True, capture_output=True, text=True).stdout.splitlines()
    loaded, about = load("one")
    shutil.rmtree("one")
    worst, seen = 0.0, []
    for line in lines:
        row = json.loads(line)
        own = torch.zeros(len(about.classes))
        for entry in row["top"]:
            assert entry["class"] == about.classes[entry["index"]], (entry, about.classes)
            own[entry["index"]] = entry["probability"]
        with torch.no_grad():
            shares = about.probabilities(about.logits(loaded, about.prepare(row["file"]))[0])
        worst = max(worst, float((own - shares).abs().max()))
        seen.append(own)
    spread = float(torch.stack(seen).std(0).max())
    assert len(lines) == 7 and worst < 1e-4, f"{name}: probabilities differ by {worst}"
    assert spread > 1e-3, f"{name}: all pictures have the same probabilities, within {spread}"
    return worst, spread


def refused(model, text):
    try:
        make_model(model, (SIZE, SIZE, 3), 3)
    except ValueError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"{model} was not refused")


torch.manual_seed(1)
assert sorted(MODELS) == sorted(listed("models")), set(MODELS) ^ set(listed("models"))
assert sorted(LAYERS) == sorted(listed("layers")), set(LAYERS) ^ set(listed("layers"))
OF_PICTURES = set(LAYERS) - {"embedding", "multi_head_attention"}  # which take no pictures: tests/parity, tests/layers have them
assert types(KEYS["sequential"]["layers"]) == OF_PICTURES, OF_PICTURES - types(KEYS["sequential"]["layers"])
refused({"type": "resnet20", "width": 2}, "model.width: is not known here of the model resnet20; known: blur_pool")
refused({"type": "perceiver"}, "model.type: the model perceiver is not known here; known: resnet20")
refused({"type": "sequential", "layers": [{"type": "residual", "layers": [{"type": "relu", "slope": 0.1}]}]},
        "model.layers[0].layers[0].slope: is not known here of the layer relu; known: none")
make_pictures()
OF_TEXT = {"gpt2", "llama", "mistral", "qwen2", "qwen3"}  # tests/parity has them
cases = {name: ({"type": name, **KEYS.get(name, {})}, "none") for name in listed("models") if name not in OF_TEXT} | MORE
for name, case in cases.items():
    if not wanted or name in wanted:
        worst, spread = compare(name, *case)
        print(f"{name}: differs by {worst:.1e} at most, where pictures differ by {spread:.2g}", flush=True)
