#pragma once

// For authors of optimizers: what a rule's step and settings are, and `add_optimizer`. cuda.h makes
// the kernels for GPUs of the same struct.

#include "core/config.h"
#include "core/error.h"
#include "core/host_device.h"
#include "core/operations/all.h"
#include "kernels/math/rules.h"
#include "kernels/math/update_loop.h"
#include "kernels/optimizer.h"
