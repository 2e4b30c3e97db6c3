#pragma once

// Functions with gradients, `starling::functions`, of which layers, losses and tasks are written;
// and pointwise functions of one's own.

#include "core/operations/all.h"
#include "layers/functions.h"
#include "layers/pointwise_function.h"
