"""A machine without a GPU stands in for one: the plug-in is the shim's (tests/fakes/cuda), which runs the kernels on the CPU, and the fakes of cuDNN and of
a shared device are as slow as the real ones are."""

import os
import pathlib
import shutil
import sys

SLOW = {
    "STARLING_SHIM_CUDNN": "1",
    "STARLING_SHIM_PLAN_MS": "650",  # a graph that is compiled at run time
    "STARLING_SHIM_SLICE_MS": "5",  # contexts that share the GPU
}


class Rehearsal:
    def __init__(self, root, folder):
        self.source = pathlib.Path(os.environ.get("STARLING_REHEARSAL_BUILD") or root / "build").resolve()
        self.build = folder
        self.device_test = [folder / "bin" / "test_cuda", "--source-file-exclude=*shim_*_test.cpp"]

    def begin(self):
        shim = self.source / "lib" / "libstarling_cuda_shim.so"
        programs = [self.source / "bin" / name for name in ("starling-train", "starling-bench", "starling-topo", "test_cuda")]
        missing = [str(path) for path in (shim, *programs) if not path.exists()]
        if missing:
            print(f"error: --rehearse: {missing[0]} is missing; build it with STARLING_TESTS=ON, in build or where STARLING_BUILD says", file=sys.stderr)
            sys.exit(2)
        (self.build / "bin").mkdir(parents=True)
        (self.build / "lib").mkdir()
        for program in programs:
            shutil.copy2(program, self.build / "bin")
        for library in (self.source / "lib").glob("*.so*"):
            if not library.name.startswith("libstarling_cuda.so"):
                os.symlink(library, self.build / "lib" / library.name)
        os.symlink(shim, self.build / "lib" / "libstarling_cuda.so")
        for name, value in SLOW.items():
            os.environ.setdefault(name, value)
