#pragma once

#include "layers/layer.h"

// One function per file of this folder and of models/, each adding its names to the table; called by register_builtin_layers() and
// register_builtin_models(), since a library's static initialisers may be dropped.
namespace starling::builtin {

void add_relu(LayerRegistry& registry);
void add_gelu(LayerRegistry& registry);
void add_silu(LayerRegistry& registry);
void add_avg_pool2d(LayerRegistry& registry);
void add_batch_norm(LayerRegistry& registry);
void add_conv2d(LayerRegistry& registry);
void add_dropout(LayerRegistry& registry);
void add_flatten(LayerRegistry& registry);
void add_global_avg_pool(LayerRegistry& registry);
void add_layer_norm(LayerRegistry& registry);
void add_linear(LayerRegistry& registry);
void add_max_pool2d(LayerRegistry& registry);
void add_residual(LayerRegistry& registry);
void add_sequential(LayerRegistry& registry);

void add_mlp(ModelRegistry& registry);
void add_sequential_model(ModelRegistry& registry);
void add_resnet_cifar(ModelRegistry& registry);
void add_resnet(ModelRegistry& registry);

}  // namespace starling::builtin
