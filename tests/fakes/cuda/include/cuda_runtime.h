#pragma once

// Found in place of CUDA's own header by whatever compiles kernels for the CPU.
#include "tests/fakes/cuda/shim.h"
