#pragma once

#include "layers/layer.h"

// The files of this folder and of models/ that register names. Each defines add_<name>(registry),
// which register_builtin_layers() or register_builtin_models() calls explicitly, since linkers may
// drop static initialisers of a library.
namespace starling::builtin {

#define STARLING_LAYERS(X) \
  X(conv2d)                \
  X(linear)                \
  X(batch_norm)            \
  X(layer_norm)            \
  X(embedding)             \
  X(layer_scale)           \
  X(multi_head_attention)  \
  X(stateless)             \
  X(residual)              \
  X(sequential)            \
  X(composite)
#define STARLING_MODELS(X) \
  X(mlp)                   \
  X(sequential_model)      \
  X(resnet)                \
  X(vgg)                   \
  X(wide_resnet)           \
  X(mobilenet)             \
  X(convnext)              \
  X(airbench)              \
  X(vit)                   \
  X(gpt2)                  \
  X(llama)

#define STARLING_DECLARE(name) void add_##name(LayerRegistry& registry);
STARLING_LAYERS(STARLING_DECLARE)
#undef STARLING_DECLARE
#define STARLING_DECLARE(name) void add_##name(ModelRegistry& registry);
STARLING_MODELS(STARLING_DECLARE)
#undef STARLING_DECLARE

}  // namespace starling::builtin
