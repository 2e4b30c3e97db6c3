#pragma once

// For unit tests of one's own parts: `open_backend(DeviceType::kCpu, 1)` is a backend to compute
// with, `make_meta_backend()` one of shapes alone, as layers are traced on before training.

#include "core/autograd.h"
#include "core/backend.h"
#include "core/operations/all.h"
#include "core/tensor.h"
#include "kernels/open_backend.h"
