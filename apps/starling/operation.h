#pragma once

// What the backend computes, and operations of one's own: the structs of `Backend`'s operations,
// `CustomOperation`, and `STARLING_HD` for arithmetic that CPUs and GPUs share. Below functions.h,
// it knows no gradients.

#include "core/backend.h"
#include "core/custom_operation.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/host_device.h"
#include "core/operations/all.h"
#include "core/tensor.h"
