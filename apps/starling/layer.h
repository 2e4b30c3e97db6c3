#pragma once

// For authors of layers and models: `Layer` with its parameters and children, `Pass` and
// `Gradients` of its arithmetic, `layers()` and `models()` to add to; `Sequential` of layers one
// after the other, `LanguageModel` for models of text, and what a pass tells batch norms.
// functions.h has what `compute` calls.

#include "core/autograd.h"
#include "core/config.h"
#include "core/error.h"
#include "core/operations/all.h"
#include "core/parameter.h"
#include "core/registry.h"
#include "layers/language_model.h"
#include "layers/layer.h"
#include "layers/norm_statistics.h"
#include "layers/sequential.h"
