#pragma once

#include "layers/layer.h"

// The functions by which files of this folder and of models/ add their names to a table; called by
// register_builtin_layers() and register_builtin_models(), since a library's static initialisers
// may be dropped.
namespace starling::builtin {

void add_batch_norm(LayerRegistry& registry);
void add_composite(LayerRegistry& registry);
void add_conv2d(LayerRegistry& registry);
void add_embedding(LayerRegistry& registry);
void add_layer_norm(LayerRegistry& registry);
void add_layer_scale(LayerRegistry& registry);
void add_linear(LayerRegistry& registry);
void add_multi_head_attention(LayerRegistry& registry);
void add_residual(LayerRegistry& registry);
void add_sequential(LayerRegistry& registry);
void add_stateless(LayerRegistry& registry);

void add_airbench(ModelRegistry& registry);
void add_convnext(ModelRegistry& registry);
void add_gpt2(ModelRegistry& registry);
void add_llama(ModelRegistry& registry);
void add_mlp(ModelRegistry& registry);
void add_mobilenet(ModelRegistry& registry);
void add_sequential_model(ModelRegistry& registry);
void add_resnet(ModelRegistry& registry);
void add_vgg(ModelRegistry& registry);
void add_vit(ModelRegistry& registry);
void add_wide_resnet(ModelRegistry& registry);

}  // namespace starling::builtin
