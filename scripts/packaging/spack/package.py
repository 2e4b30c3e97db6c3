# A package of Spack: put it into a repository of your own, as packages/starling/package.py. The
# tarball is that of `scripts/package.sh source`, in the folder where spack is called.
import os

from spack_repo.builtin.build_systems.cmake import CMakePackage

from spack.package import *


class Starling(CMakePackage):
    """Decentralized data-parallel training of neural networks without a global all-reduce: each
    rank averages its parameters with a few neighbours while it computes the next step."""

    manual_download = True
    url = f"file://{os.getcwd()}/starling-0.2.0.tar.gz"

    license("Apache-2.0", checked_by="starling")

    version("0.2.0")

    variant("openmp", default=True, description="Run kernels on several threads")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi")
    depends_on("onednn@2.6:3 cpu_runtime=omp", when="+openmp")
    depends_on("onednn@2.6:3 cpu_runtime=seq", when="~openmp")
    depends_on("fmt@9:")
    depends_on("spdlog@1.10: +fmt_external")
    depends_on("nlohmann-json@3.11:")
    depends_on("cli11@2:")
    depends_on("cpp-httplib")
    depends_on("xxhash")
    depends_on("libjpeg-turbo")
    depends_on("libpng")
    depends_on("zlib-api")
    depends_on("zstd")

    conflicts("%gcc@:11", msg="C++20 as of GCC 12")

    def cmake_args(self):
        return [
            self.define_from_variant("STARLING_OPENMP", "openmp"),
            self.define("STARLING_CUDA", "OFF"),
            self.define("STARLING_WERROR", False),
            self.define("STARLING_TESTS", False),
        ]
