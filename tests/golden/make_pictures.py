#!/usr/bin/env python3
"""Small JPEG and PNG files of every kind, in golden/pictures, and what Pillow makes of them:
golden/pictures.json. Needs Pillow and numpy.

"crc": of the bytes of ImageOps.exif_transpose(Image.open(file)).convert("RGB"); of 16 bits grey
the upper 8. "resized": bytes of its box, resized, as hexadecimal digits."""
import io
import json
import pathlib
import struct
import zlib

import numpy as np
from PIL import Image, ImageOps

here = pathlib.Path(__file__).parent
folder = here / "pictures"
folder.mkdir(exist_ok=True)
for old in folder.iterdir():
    old.unlink()
height, width = 45, 61
y, x = np.mgrid[0:height, 0:width]
rng = np.random.default_rng(1)


def wave(a, b, c):
    return 127 + 100 * np.sin(a * x + b * y + c) + rng.normal(0, 8, (height, width))


rgb = np.stack([wave(0.11, 0.05, 0), wave(-0.04, 0.2, 1), wave(0.3, 0.02, 2)], -1).clip(0, 255).astype(np.uint8)
picture = Image.fromarray(rgb)


def png(name, values, depth, kind, interlaced=False, palette=b"", transparency=b""):
    """values: [height, width, channels] below 2**depth."""
    passes = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)] if interlaced else [(0, 0, 1, 1)]
    raw = b""
    for top, left, down, right in passes:
        for row in values[top::down, left::right]:
            if row.size == 0:
                continue
            flat = row.reshape(-1).astype(np.uint32)
            bits = (flat[:, None] >> np.arange(depth - 1, -1, -1)) & 1
            raw += b"\0" + np.packbits(bits.astype(np.uint8).reshape(-1)).tobytes()

    def chunk(tag, data):
        return struct.pack(">I", len(data)) + tag + data + struct.pack(">I", zlib.crc32(tag + data))

    head = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], depth, kind, 0, 0, int(interlaced))
    parts = [chunk(b"IHDR", head)] + ([chunk(b"PLTE", palette)] if palette else []) + ([chunk(b"tRNS", transparency)] if transparency else [])
    (folder / name).write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts) + chunk(b"IDAT", zlib.compress(raw, 9)) + chunk(b"IEND", b""))


def jpeg(name, image=picture, **keys):
    image.save(folder / name, "JPEG", **{"quality": 85, **keys})


jpeg("444.jpg", subsampling=0)
jpeg("422.jpg", subsampling=1)
jpeg("420.jpg", subsampling=2)
jpeg("progressive.jpg", subsampling=2, progressive=True)
jpeg("rgb.jpg", keep_rgb=True)
jpeg("grey.jpg", picture.convert("L"))
jpeg("cmyk.jpg", picture.convert("CMYK"))
data = bytearray((folder / "cmyk.jpg").read_bytes())
data[data.index(b"Adobe") + 11] = 2  # the same inks, said to be YCCK
(folder / "ycck.jpg").write_bytes(data)
data = bytearray((folder / "420.jpg").read_bytes())
(folder / "renamed.png").write_bytes(data)
for orientation in range(1, 9):
    exif = Image.Exif()
    exif[0x0112] = orientation
    jpeg(f"turned{orientation}.jpg", subsampling=2, exif=exif.tobytes())

small = rgb[:21, :27]
grey = small[..., :1].astype(np.uint32)
wide = small.astype(np.uint32) * 257 - 13 * (small > 0)
alpha = (small[..., 1:2].astype(np.uint32) * 7) % 256
colours = bytes(rng.integers(0, 256, 768, dtype=np.uint8))
for interlaced in (False, True):
    tag = "i" if interlaced else ""
    for depth in (1, 2, 4, 8):
        png(f"grey{depth}{tag}.png", grey >> (8 - depth), depth, 0, interlaced)
        png(f"palette{depth}{tag}.png", grey >> (8 - depth), depth, 3, interlaced, colours[: 3 << depth])
    png(f"grey16{tag}.png", np.where(wide[..., :1] > 40000, wide[..., :1] % 300, wide[..., :1]), 16, 0, interlaced)
    png(f"rgb8{tag}.png", small, 8, 2, interlaced)
    png(f"rgb16{tag}.png", wide, 16, 2, interlaced)
    png(f"grey_alpha8{tag}.png", np.concatenate([grey, alpha], -1), 8, 4, interlaced)
    png(f"grey_alpha16{tag}.png", np.concatenate([wide[..., :1], alpha * 257], -1), 16, 4, interlaced)
    png(f"rgb_alpha8{tag}.png", np.concatenate([small, alpha], -1), 8, 6, interlaced)
    png(f"rgb_alpha16{tag}.png", np.concatenate([wide, alpha * 257], -1), 16, 6, interlaced)
png("palette_transparent.png", grey, 8, 3, False, colours, bytes(range(200)))
png("grey_transparent.png", grey, 8, 0, False, b"", b"\0\x60")
png("rgb_transparent.png", small, 8, 2, False, b"", b"\0\x10\0\x20\0\x30")
Image.fromarray(small).save(folder / "animated.png", save_all=True, append_images=[Image.fromarray(255 - small)])
exif = Image.Exif()
exif[0x0112] = 6
Image.fromarray(small).save(folder / "turned6.png", exif=exif)


def upright(path):
    image = ImageOps.exif_transpose(Image.open(path))
    # of 16 bits grey Pillow keeps the lower ones, all above 255 being white; of 16 bits RGB the
    # upper
    if image.mode.startswith("I"):
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    return image.convert("RGB")


result = {"files": {}, "resized": []}
for path in sorted(folder.iterdir()):
    image = upright(path)
    result["files"][path.name] = {"height": image.height, "width": image.width, "crc": zlib.crc32(image.tobytes())}
filters = {"nearest": Image.NEAREST, "bilinear": Image.BILINEAR, "bicubic": Image.BICUBIC}
for name, resample in filters.items():
    # Smaller, larger, one axis alone, and much smaller.
    for box, size in [((0, 0, 61, 45), (23, 17)), ((7, 5, 32, 38), (24, 24)), ((3, 2, 13, 10), (16, 19)), ((0, 0, 61, 45), (61, 9)), ((1, 1, 60, 44), (2, 3))]:
        made = upright(folder / "444.jpg").crop(box).resize(size, resample)
        result["resized"].append({"filter": name, "box": box, "size": size, "pixels": made.tobytes().hex()})
(here / "pictures.json").write_text(json.dumps(result, indent=1).replace("[\n    ", "[").replace(",\n    ", ", ").replace("\n   ]", "]") + "\n")
