#include <doctest/doctest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/layers/support.h"
#include "tests/support/rows.h"

using namespace starling;
using namespace starling::testing;

namespace {

/// A layer alone, or a few.
void check_layers(const std::string& list, const Shape& input, std::int64_t batch = 3,
                  const Tensor& tokens = {}) {
  CAPTURE(list);
  const auto model = model_from(R"({"type": "sequential", "layers": [)" + list + "]}", input);
  check_gradients(*model, batch, 0, false, 1, true, tokens);
}

/// The sizes of a sample, how many samples, and the layers.
const char* const kLayers = R"table(
5 4 3 | 3 | {"type": "conv2d", "out_channels": 5, "kernel_size": 3, "padding": 1}
6 5 2 | 3 | {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "stride": 2, "padding": 1, "bias": false}
7 6 4 | 3 | {"type": "conv2d", "out_channels": 4, "kernel_size": [3, 2], "stride": [1, 2], "dilation": [2, 1], "groups": 2}
4 5 3 | 3 | {"type": "conv2d", "out_channels": 6, "kernel_size": 3, "padding": [2, 1], "groups": 3}
3 3 5 | 3 | {"type": "conv2d", "out_channels": 4, "kernel_size": 1}
3 2 4 | 3 | {"type": "flatten"}, {"type": "linear", "out_features": 6}
5 | 3 | {"type": "linear", "out_features": 6, "bias": false}
4 5 | 3 | {"type": "linear", "out_features": 3}, {"type": "silu"}, {"type": "linear", "out_features": 2}
4 5 | 3 | {"type": "batch_norm"}
4 5 | 3 | {"type": "layer_norm"}
2 3 4 | 3 | {"type": "linear", "out_features": 3}, {"type": "silu"}, {"type": "linear", "out_features": 2}
2 3 4 | 3 | {"type": "batch_norm"}, {"type": "relu"}
2 1 3 2 | 3 | {"type": "linear", "out_features": 3}, {"type": "relu"}
2 1 3 2 | 3 | {"type": "batch_norm"}, {"type": "relu"}
2 1 3 2 | 3 | {"type": "layer_norm"}
3 2 6 | 3 | {"type": "group_norm", "num_groups": 2}
6 | 3 | {"type": "group_norm", "num_groups": 2, "affine": false}
4 3 | 3 | {"type": "instance_norm", "affine": true}
4 3 2 | 3 | {"type": "upsample", "scale_factor": 1.5, "mode": "bilinear"}
5 3 2 | 3 | {"type": "adaptive_avg_pool2d", "output_size": [2, 3]}
3 2 6 | 3 | {"type": "conv_transpose2d", "out_channels": 4, "kernel_size": [3, 2], "stride": [2, 3], "padding": [1, 0], "output_padding": [1, 2], "dilation": [1, 2], "groups": 2}
3 2 6 | 3 | {"type": "squeeze_excite", "reduction": 2}
3 4 | 3 | {"type": "multiply", "branches": [[{"type": "linear", "out_features": 4}], [], [{"type": "linear", "out_features": 4}, {"type": "sigmoid"}]]}
3 4 | 3 | {"type": "concat", "dim": 1, "branches": [[{"type": "linear", "out_features": 4}], [], [{"type": "linear", "out_features": 4}, {"type": "sigmoid"}]]}
3 4 | 3 | {"type": "linear", "out_features": 3}, {"type": "checkpoint", "layers": [{"type": "batch_norm"}, {"type": "silu"}, {"type": "linear", "out_features": 2}]}
6 | 4 | {"type": "embed_inputs", "first": 0, "inputs": 3, "embedding_dim": 2}, {"type": "linear", "out_features": 2}
6 | 4 | {"type": "embed_inputs", "first": 1, "inputs": 3, "embedding_dim": 2}, {"type": "linear", "out_features": 2}
6 | 4 | {"type": "embed_inputs", "first": 3, "inputs": 3, "embedding_dim": 2}, {"type": "linear", "out_features": 2}
6 | 3 | {"type": "embed_inputs", "first": 0, "inputs": 6, "embedding_dim": 2}
6 | 5 | {"type": "batch_norm", "eps": 0.1}, {"type": "silu"}
7 | 3 | {"type": "layer_norm", "eps": 0.01}
3 2 5 | 3 | {"type": "rms_norm"}
7 | 3 | {"type": "rms_norm", "eps": 0.01}, {"type": "linear", "out_features": 2}
3 4 3 | 3 | {"type": "relu"}
3 4 3 | 3 | {"type": "gelu"}
3 4 3 | 3 | {"type": "silu"}
3 4 3 | 3 | {"type": "relu6"}
3 4 3 | 3 | {"type": "sigmoid"}
3 4 3 | 3 | {"type": "tanh"}
3 4 3 | 3 | {"type": "softplus"}
3 4 3 | 3 | {"type": "softmax"}
3 5 | 3 | {"type": "linear", "out_features": 4}, {"type": "tanh"}, {"type": "sigmoid"}, {"type": "layer_norm"}, {"type": "softmax", "dim": 1}, {"type": "softplus"}
3 4 3 | 3 | {"type": "layer_scale", "init": 9}, {"type": "relu6"}, {"type": "layer_scale", "init": 0.5}
3 4 5 | 3 | {"type": "layer_scale", "init": 0.7}
6 | 3 | {"type": "layer_scale", "init": 1.5}, {"type": "silu"}
3 2 5 | 7 | {"type": "residual", "layers": [{"type": "silu"}, {"type": "layer_scale", "init": 0.7}, {"type": "stochastic_depth", "p": 0.4}]}
4 6 3 | 3 | {"type": "max_pool2d", "kernel_size": 2}
5 5 3 | 3 | {"type": "max_pool2d", "kernel_size": [3, 2], "stride": [2, 1], "padding": [1, 0]}
5 6 3 | 3 | {"type": "avg_pool2d", "kernel_size": 3, "stride": 2, "padding": 1}
5 6 3 | 3 | {"type": "blur_pool2d"}
7 5 2 | 3 | {"type": "blur_pool2d", "kernel_size": [4, 1], "stride": [1, 3], "padding": [0, 0]}
3 4 5 | 3 | {"type": "global_avg_pool"}
4 3 5 | 3 | {"type": "dropout", "p": 0.3}, {"type": "silu"}, {"type": "dropout"}
)table";

}  // namespace

TEST_CASE("layers/gradients: of every layer") {
  for (const auto& row : test::rows_of(kLayers))
    check_layers(row.at(2), shape_from(row.at(0)), std::stoll(row.at(1)));
}

TEST_CASE("layers/gradients: embedding, of tokens of any shape and of one for each sample") {
  const std::string embedding = R"({"type": "embedding", "num_embeddings": 5, "embedding_dim": 3})";
  const Tensor tokens = labels_of({4, 0, 4, 1, 1, 4, 2, 2, 0, 4, 4, 1});
  check_layers(embedding, {}, 12, tokens);
  check_layers(embedding + R"(, {"type": "linear", "out_features": 2}, {"type": "gelu"})", {4}, 3,
               tokens.reshaped({3, 4}));
  check_layers(embedding + R"(, {"type": "batch_norm"}, {"type": "flatten"})", {2, 3}, 2,
               tokens.reshaped({2, 2, 3}));
}

TEST_CASE("layers/gradients: batch normalisation in evaluation mode has constant statistics") {
  const auto model =
      model_from(R"({"type": "sequential", "layers": [{"type": "batch_norm"}, {"type": "relu"},
      {"type": "residual", "layers": [{"type": "batch_norm"}]}, {"type": "relu"}, {"type": "dropout"}, {"type": "global_avg_pool"},
      {"type": "linear", "out_features": 10}]})",
                 {3, 4, 5});
  model->allocate(cpu(), DType::kFloat64);
  model->initialise(1);
  for (const ModelBuffer* buffer : model->buffers()) {
    if (buffer->name.ends_with("mean")) cpu().copy(noise_tensor(8, buffer->shape), buffer->value);
    if (buffer->name.ends_with("var")) cpu().fill(buffer->value, 0.7);
  }
  check_gradients(*model, 3, 0, true, 1, false);
}

TEST_CASE(
    "layers/gradients: batch norm and relu6 in one operation, with and without a residual, on both "
    "sides of both bounds") {
  const std::string conv =
      R"({"type": "conv2d", "out_channels": 3, "kernel_size": 3, "padding": 1, "bias": false})";
  const std::string norm = R"({"type": "batch_norm"})", relu6 = R"({"type": "relu6"})";
  const auto model =
      model_from(R"({"type": "sequential", "layers": [)" + conv + "," + norm + "," + relu6 +
                     R"(, {"type": "residual", "layers": [)" + conv + "," + norm + "]}," + relu6 +
                     R"(, {"type": "flatten"}, {"type": "linear", "out_features": 10}]})",
                 {4, 5, 3});
  for (const bool training : {true, false}) {
    model->allocate(cpu(), DType::kFloat64);
    model->initialise(3);
    for (Parameter* parameter : model->parameters()) {
      if (parameter->shape.rank() == 1)
        cpu().fill(parameter->value, parameter->name.ends_with("weight") ? 4.0 : 2.0);
    }
    check_gradients(*model, 3, 10, true, 1, training);
  }
}

TEST_CASE("layers/gradients: residual, fused and not") {
  const std::string conv =
      R"({"type": "conv2d", "out_channels": 3, "kernel_size": 3, "padding": 1})";
  const std::string norm = R"({"type": "batch_norm"})", relu = R"({"type": "relu"})";
  const auto residual = [](const std::string& body, const std::string& shortcut = {}) {
    return R"({"type": "residual", "layers": [)" + body + "]" +
           (shortcut.empty() ? "" : R"(, "shortcut": [)" + shortcut + "]") + "}";
  };
  const Shape image{4, 5, 3};
  check_layers(residual(conv), image);
  check_layers(residual(conv) + "," + relu, image);
  check_layers(residual(conv + "," + norm), image);
  check_layers(residual(conv + "," + norm) + "," + relu, image);
  check_layers(residual(conv + "," + norm + "," + relu) + "," + relu, image);
  check_layers(norm + "," + relu + "," + residual(conv + "," + norm, conv + "," + norm) + "," +
                   relu + "," + residual(conv + "," + norm),
               image);
  // The same value as body and shortcut: one gradient tensor goes both ways.
  check_layers(norm + "," + residual(norm, relu) + "," + residual(relu) + "," + residual(relu),
               image);
  check_layers(residual(residual(norm) + "," + norm), image);
  // An addition hands one gradient tensor to two batch norms, neither of which may mask it in
  // place.
  check_layers(residual(residual(norm) + "," + relu, residual(conv + "," + norm) + "," + relu),
               image);
}

TEST_CASE(
    "layers/gradients: whole models that tests/parity does not have, or not with what is left out "
    "at random") {
  // Initial values, as noise of this size makes deep nets too rough for differences.
  const auto check_initialised = [](const std::string& json, const Shape& input, std::int64_t batch,
                                    std::size_t stride) {
    const auto model = model_from(json, input);
    model->allocate(cpu(), DType::kFloat64);
    model->initialise(3);
    check_gradients(*model, batch, 10, true, stride);
  };
  // Strided convolutions of 16 channels; the shortcuts have no convolution.
  SUBCASE("resnet20, blurred") {
    check_initialised(R"({"type": "resnet20", "blur_pool": true})", {8, 8, 3}, 2, 1);
  }
  // Blocks are left out, and the scales are large enough to matter: every 31st of 180 tensors.
  SUBCASE("convnext_tiny") {
    check_initialised(R"({"type": "convnext_tiny", "layer_scale": 0.5, "stochastic_depth": 0.5})",
                      {32, 32, 1}, 2, 31);
  }
  // Both kinds of shortcut, and dropout, whose mask stays the same from one pass to the next.
  SUBCASE("wide_resnet") {
    check_initialised(R"({"type": "wide_resnet", "depth": 10, "width": 1, "dropout": 0.3})",
                      {8, 8, 2}, 3, 1);
  }
}

TEST_CASE("layers/gradients: accumulation over micro-batches") {
  const auto model = model_from(
      R"({"type": "sequential", "layers": [{"type": "conv2d", "out_channels": 4, "kernel_size": 2},
      {"type": "batch_norm"}, {"type": "relu"}, {"type": "layer_norm"}, {"type": "flatten"}, {"type": "linear", "out_features": 10}]})",
      {3, 3, 2});
  model->allocate(cpu(), DType::kFloat64);
  model->initialise(1);
  const auto gradients = [&](const std::vector<std::uint64_t>& seeds) {
    Tape tape(cpu());
    bool accumulate = false;
    for (const std::uint64_t seed : seeds) {
      Pass pass{cpu(), &tape, true};
      tape.backward(
          weighted_total(model->forward(Variable(noise_tensor(seed, {4, 3, 3, 2})), pass), pass),
          0.5, accumulate);
      accumulate = true;
    }
    std::vector<double> all;
    for (const Parameter* parameter : model->parameters()) {
      for (double value : numbers_of(parameter->grad)) all.push_back(value);
    }
    return all;
  };
  const auto first = gradients({1}), second = gradients({2}), both = gradients({1, 2});
  for (std::size_t i = 0; i < both.size(); ++i)
    CHECK(both[i] == doctest::Approx(first[i] + second[i]).epsilon(1e-12));
}
