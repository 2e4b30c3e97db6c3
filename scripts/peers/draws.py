"""Starling's random draws (order of samples, crops), and CIFAR-10 read as tensors: for the peers that
train on the same data in the same order."""
import pathlib

import numpy as np
import torch

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
PERMUTATION, AUGMENT = 2, 3  # Starling's streams of random numbers


def philox(key, index, stream, epoch):
    """Words of Philox 4×32-10 for an array of indices."""
    mask = np.uint64(0xFFFFFFFF)
    c = [index & mask, index >> np.uint64(32), np.full_like(index, epoch), np.full_like(index, stream)]
    k = [np.uint64(key & 0xFFFFFFFF), np.uint64(key >> 32)]
    for _ in range(10):
        p, q = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(q >> np.uint64(32)) ^ c[1] ^ k[0], q & mask, (p >> np.uint64(32)) ^ c[3] ^ k[1], p & mask]
        k = [(k[0] + np.uint64(0x9E3779B9)) & mask, (k[1] + np.uint64(0xBB67AE85)) & mask]
    return c


def epoch_order(seed, epoch, count):
    words = philox(seed, np.arange(count, dtype=np.uint64), PERMUTATION, epoch)
    numbers = (words[1] << np.uint64(32)) | words[0]
    order = list(range(count))
    for i in range(count - 1, 0, -1):
        j = int(numbers[i]) * (i + 1) >> 64
        order[i], order[j] = order[j], order[i]
    return order


def drawn_windows(samples, seed, epoch, pad):
    """(rows from the top, columns from the left, 0 or 1 for a mirrored image) of an image that has
    `pad` pixels more on every side."""
    samples = np.asarray(samples, np.uint64)
    words = philox(seed, samples, AUGMENT, epoch)
    tops, lefts = ((word * np.uint64(2 * pad + 1) >> np.uint64(32)).astype(int) for word in words[:2])
    return tops, lefts, (words[2] * np.uint64(2) >> np.uint64(32)).astype(int)


def normalised(images):
    """Pixels of 0 to 1 as the models take them."""
    mean, std = (torch.tensor(numbers, dtype=images.dtype)[:, None, None] for numbers in (MEAN, STD))
    return (images - mean) / std


def read_cifar(folder, names, dtype):
    files = [next(pathlib.Path(folder).rglob(name)) for name in names]
    records = np.concatenate([np.fromfile(file, np.uint8).reshape(-1, 3073) for file in files])
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32)).to(dtype) / 255
    return normalised(images), torch.from_numpy(records[:, 0].astype(np.int64))


@torch.no_grad()
def accuracy(net, images, labels, answer=None):
    """Share of the images of which answer(image), or the net's, is largest at the label."""
    net.eval()
    right = sum(int(((answer or net)(x).argmax(1) == y).sum()) for x, y in zip(images.split(1000), labels.split(1000)))
    net.train()
    return right / len(images)


def open_data(options, dtype=torch.float32):
    """Training images and labels, test images and labels; PyTorch is given its threads and its
    seed."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    images, labels = read_cifar(options.cifar, [f"data_batch_{k}.bin" for k in range(1, 6)], dtype)
    return images[:options.limit], labels[:options.limit], *read_cifar(options.cifar, ["test_batch.bin"], dtype)
