#pragma once

#include "kernels/math/rules.h"
#include "kernels/optimizers/accum_adam.h"
#include "kernels/optimizers/adafactor.h"
#include "kernels/optimizers/adagrad.h"
#include "kernels/optimizers/adam.h"
#include "kernels/optimizers/lamb.h"
#include "kernels/optimizers/lars.h"
#include "kernels/optimizers/linear.h"
#include "kernels/optimizers/lion.h"
#include "kernels/optimizers/muon.h"
#include "kernels/optimizers/nadam.h"
#include "kernels/optimizers/rmsprop.h"
#include "kernels/optimizers/schedule_free.h"
#include "kernels/optimizers/sgd.h"

namespace starling::rules {

/// Every built-in rule: the CPU's loops (kernels/cpu/update_isa.cpp), the GPU's kernels
/// (kernels/cuda/operations/update.cu) and the registry are made from this list. Those without a
/// name are for algorithms, and parts of others. The order is that of the default rates in
/// docs/config.md.
// clang-format off
using BuiltIn = RuleList<
    Sgd,
    Adam<false>, Adam<true>,
    AccumAdam<false>, AccumAdam<true>,
    Rmsprop,
    Adagrad,
    Adafactor, AdafactorSquare, AdafactorAverage, AdafactorQuotient,
    Nadam,
    ScheduleFreeAdam,
    Lars,
    Lamb,
    Lion,
    Muon,
    Linear>;
// clang-format on

}  // namespace starling::rules
