#!/usr/bin/env python3
"""Opens a model that Starling trained in PyTorch. Needs torch, Pillow for pictures, and onnx for
ONNX files.

    python3 examples/pytorch/starling_torch.py runs/cifar10 cat.jpg dog.png
        predictions, a line a picture
    python3 examples/pytorch/starling_torch.py runs/cifar10 --onnx model.onnx
        the model for ONNX runtimes: logits of normalised N×C×H×W, of a table's N inputs, of tokens

In a program:

    from starling_torch import load
    model, about = load("runs/cifar10")        # a torch.nn.Module in evaluation mode
    # as Starling prepares and shows a test picture
    logits = about.logits(model, about.prepare("cat.jpg"))
    print(about.classes[logits.argmax()])

All models and layers that are built in are known here; of others, and of keys that are not known,
the error has the name. Predictions are the mean over the views that evaluate.tta of the run says,
as starling-predict's. model(...) and the ONNX file see one view: the picture as it is.
"""
import argparse
import importlib.util
import json
import pathlib
import struct
import sys
from dataclasses import dataclass

try:
    import torch
    from torch.nn import functional as F
except ImportError as error:
    if __name__ != "__main__":
        raise
    print(f"starling_torch.py: {error}; needed: PyTorch, as by pip install torch", file=sys.stderr)
    sys.exit(2)

from models import make_model

DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64, "I32": torch.int32,
          "U8": torch.uint8}


def read_safetensors(path):
    """Tensors by name, and the metadata. The format: 8 bytes of header length, the header as JSON,
    the tensors' bytes."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8:8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = {}
    for name, entry in header.items():
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        dtype = DTYPES[entry["dtype"]]
        flat = torch.frombuffer(bytearray(data[begin:end]), dtype=dtype) if end > begin else torch.empty(0, dtype=dtype)
        tensors[name] = flat.reshape(entry["shape"])
    return tensors, metadata


def test_views(name):
    """What evaluate.tta shows of an image: (pixels down and right that the window moves, mirrored,
    weight)."""
    if name == "none":
        return [(0, False, 1.0)]
    if name == "mirror":
        return [(0, mirrored, 0.5) for mirrored in (False, True)]
    if name == "mirror_translate":
        return [(step, mirrored, weight) for step, weight in ((0, 0.25), (-1, 0.125), (1, 0.125)) for mirrored in (False, True)]
    raise ValueError(f"evaluate.tta: is {name}, which is not known here; known: none, mirror, mirror_translate")


def show(images, step, mirrored):
    """The window of images N×C×H×W that begins `step` pixels further down and right; beyond the rim
    they are mirrored."""
    down, right = (step if size > 1 else 0 for size in images.shape[2:])
    if down or right:
        height, width = images.shape[2:]
        images = F.pad(images, (abs(right), abs(right), abs(down), abs(down)), mode="reflect")
        top, left = abs(down) + down, abs(right) + right
        images = images[:, :, top:top + height, left:left + width]
    return images.flip(3) if mirrored else images


@dataclass
class About:
    """What the file says of itself."""
    config: dict        # the resolved config of the run
    classes: list       # names, one for each output: numbers beyond the data's classes
    shape: tuple        # of one input: (H, W, C), (inputs) of a table, (tokens)
    mean: list = None   # of pixels scaled to 0-1, per channel
    std: list = None
    resize: int = 0     # shorter side of a picture before its centre is cut out
    interpolation: str = "bilinear"
    tokens: bool = False

    def blank(self):
        """An input of zeros."""
        if len(self.shape) == 3:
            height, width, channels = self.shape
            return torch.zeros(1, channels, height, width)
        return torch.zeros(1, *self.shape, dtype=torch.int64 if self.tokens else torch.float32)

    def logits(self, model, images):
        """Of images N×C×H×W, as the run's tests measure them: the mean over the views of
        evaluate.tta."""
        views = test_views(self.config.get("evaluate", {}).get("tta", "none"))
        return sum(weight * model(show(images, step, mirrored)) for step, mirrored, weight in views)

    def probabilities(self, logits):
        """Of logits ...×outputs: softmax, or where the run's loss took each output by itself the
        sigmoid of each."""
        separate = self.config.get("loss", {}).get("type") == "bce_with_logits"
        return logits.sigmoid() if separate else logits.softmax(-1)

    def prepare(self, file):
        """A picture as the model's input, 1×C×H×W."""
        from PIL import Image, ImageOps
        height, width, channels = self.shape
        picture = ImageOps.exif_transpose(Image.open(file))
        # grey of 16 bits, of which the upper 8 count; Pillow alone would cut off all above 255
        if picture.mode.startswith("I"):
            picture = picture.convert("I").point(lambda value: value / 256).convert("L")
        picture = picture.convert("L" if channels == 1 else "RGB")
        scale = max(self.resize or min(height, width), 1) / min(picture.size)
        size = tuple(max(1, int(side * scale)) if side != min(picture.size) else self.resize or min(height, width) for side in picture.size)
        picture = picture.resize(size, getattr(Image.Resampling, self.interpolation.upper()))
        left, top = round((size[0] - width) / 2), round((size[1] - height) / 2)
        picture = picture.crop((left, top, left + width, top + height))
        pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).reshape(height, width, channels)
        numbers = (pixels / 255 - torch.tensor(self.mean)) / torch.tensor(self.std)
        return numbers.permute(2, 0, 1)[None]


def load(path):
    """(model, About) of a run's folder or a model.safetensors."""
    path = pathlib.Path(path)
    tensors, metadata = read_safetensors(path / "model.safetensors" if path.is_dir() else path)
    if "starling.config" not in metadata:
        raise ValueError(f"{path} is no model of Starling's: its metadata have no starling.config")
    inputs, normalize = json.loads(metadata["starling.input"]), json.loads(metadata.get("starling.normalize", "{}"))
    about = About(json.loads(metadata["starling.config"]), json.loads(metadata["starling.classes"]), tuple(inputs["shape"]),
                  normalize.get("mean"), normalize.get("std"), inputs.get("resize", 0), inputs.get("interpolation", "bilinear"))
    model = make_model(about.config["model"], about.shape, len(about.classes))
    model.load_state_dict(tensors, strict=True)
    model = model.float().eval()
    about.tokens = len(about.shape) == 1 and any(isinstance(module, torch.nn.Embedding) for module in model.modules())
    with torch.no_grad():  # a model may have more outputs than its data had classes
        outputs = model(about.blank()).shape[-1]
    about.classes += [str(i) for i in range(len(about.classes), outputs)]
    return model, about


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a run's folder, or its model.safetensors")
    parser.add_argument("pictures", nargs="*")
    parser.add_argument("--onnx", metavar="FILE", help="write the model there, for one view of a picture")
    arguments = parser.parse_args()
    for wanted, package, module in ((arguments.onnx, "onnx", "onnx"), (arguments.pictures, "pillow", "PIL")):
        if wanted and importlib.util.find_spec(module) is None:
            parser.exit(2, f"{parser.prog}: Python has no {module} here; needed: pip install {package}\n")
    try:
        model, about = load(arguments.model)
    except (OSError, ValueError, RuntimeError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    kind = "images" if len(about.shape) == 3 else "tokens" if about.tokens else "inputs"
    if arguments.pictures and kind != "images":
        parser.exit(2, f"{parser.prog}: {arguments.model} takes {kind}, no pictures; needed: starling-predict, or load() in a program\n")
    if arguments.onnx:
        try:
            torch.onnx.export(model, (about.blank(),), arguments.onnx, input_names=[kind], output_names=["logits"],
                              dynamic_axes={kind: {0: "batch"}, "logits": {0: "batch"}}, dynamo=False)
        except torch.onnx.errors.OnnxExporterError as error:
            parser.exit(2, f"{parser.prog}: PyTorch cannot write it: {str(error).splitlines()[0]}\n")
        numbers = f", (pixel / 255 - {about.mean}) / {about.std} by channel" if about.mean else ""
        shape = "×".join(str(size) for size in about.blank().shape[1:])
        print(f"{arguments.onnx}: it takes {kind} of N×{shape}{numbers}; it gives logits of {len(about.classes)} numbers each")
    for file in arguments.pictures:
        with torch.no_grad():
            shares = about.probabilities(about.logits(model, about.prepare(file))[0])
        best = shares.argsort(descending=True)[:5].tolist()
        print(f"{file}: " + ", ".join(f"{about.classes[i]} {100 * shares[i]:.1f} %" for i in best))


if __name__ == "__main__":
    sys.exit(main())
