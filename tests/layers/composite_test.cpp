// Layers made of layers, against the layers that they are made of.
#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/forwarding_backend.h"
#include "core/operations/all.h"
#include "core/safetensors.h"
#include "layers/functions.h"
#include "tests/layers/support.h"
#include "tests/support/rows.h"

namespace starling::testing {
namespace {

namespace f = functions;

const std::string kBody =
    R"({"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1}, {"type": "batch_norm"},
       {"type": "relu"}, {"type": "dropout", "p": 0.4}, {"type": "residual", "layers": [
       {"type": "conv2d", "out_channels": 4, "kernel_size": 1}, {"type": "batch_norm"}]},
       {"type": "dropout", "p": 0.2}, {"type": "sigmoid"})";

std::string sequence(const std::string& list) {
  return R"({"type": "sequential", "layers": [)" + list + "]}";
}
std::string checkpoint(const std::string& list) {
  return R"({"type": "checkpoint", "layers": [)" + list + "]}";
}

/// What a step of two micro-batches leaves.
struct Step {
  std::vector<std::vector<double>> numbers;  ///< outputs, gradients and buffers
  std::size_t nodes = 0;                     ///< of the tape after a forward pass
  std::uint64_t counter = 0;
};
Step step_of(const std::string& json, DType dtype, const Shape& input = {4, 3, 3},
             Recompute recompute = Recompute::kCheap) {
  const auto model = model_from(json, input);
  model->allocate(cpu(), is_low_precision(dtype) ? DType::kFloat32 : dtype, dtype);
  std::uint64_t seed = 100;
  for (Parameter* parameter : model->parameters())
    cpu().copy(cast_to(noise_tensor(seed++, parameter->shape), parameter->value.dtype()),
               parameter->value);
  for (ModelBuffer* buffer : model->buffers()) cpu().fill(buffer->value, buffer->init.a);
  model->refresh_low();
  Step step;
  Tape tape(cpu());
  std::vector<std::string> ready;
  tape.set_ready_observer([&](Parameter& parameter) { ready.push_back(parameter.name); });
  Pass pass{
      .backend = cpu(), .tape = &tape, .training = true, .dropout_key = 7, .recompute = recompute};
  for (const bool again : {false, true}) {
    const Variable x = tape.leaf(cast_to(noise_tensor(again ? 5 : 6, input.with_batch(3)), dtype));
    const Variable y = model->forward(f::multiply(x, 2.0, pass), pass);
    step.nodes = (void(y.value()), tape.nodes());
    const Variable weight(cast_to(noise_tensor(8, y.shape()), dtype));
    tape.backward(f::sum(f::multiply(f::multiply(y, y, pass), weight, pass), {}, false, pass), 1.0,
                  again, again);
    step.numbers.push_back(numbers_of(y.value()));
    step.numbers.push_back(numbers_of(Tape::gradient(x)));
  }
  CHECK(tape.stopped_at().empty());
  CHECK(ready.size() == model->parameters().size());
  for (const Parameter* parameter : model->parameters())
    step.numbers.push_back(numbers_of(parameter->grad));
  for (const ModelBuffer* buffer : model->buffers()) {
    if (buffer->dtype != DType::kInt64) step.numbers.push_back(numbers_of(buffer->value));
    if (buffer->dtype == DType::kInt64) CHECK(buffer->value.span<std::int64_t>()[0] == 2);
  }
  step.counter = pass.dropout_counter;
  return step;
}

}  // namespace

TEST_CASE("layers/composite: what is computed again has the bits of what was kept") {
  for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
    CAPTURE(name_of(dtype));
    const Step kept = step_of(sequence(kBody), dtype),
               again = step_of(sequence(checkpoint(kBody)), dtype),
               nested = step_of(sequence(checkpoint(checkpoint(kBody))), dtype);
    CHECK(again.numbers == kept.numbers);
    CHECK(nested.numbers == kept.numbers);
    CHECK(again.counter == kept.counter);
    CHECK(kept.nodes > 6);
    CHECK(again.nodes == 2);  // the multiplication before it, and its own
  }
}

TEST_CASE("layers/composite: blocks that are computed again have the bits of what was kept") {
  struct Blocks {
    std::string model;
    Shape input;
    std::size_t blocks;
  };
  const std::vector<Blocks> models{
      {R"({"type": "resnet20"})", {8, 8, 3}, 9},
      {R"({"type": "wide_resnet", "depth": 10, "width": 1, "dropout": 0.3})", {8, 8, 3}, 3},
      {R"({"type": "mobilenet_v2", "width_mult": 0.1})", {32, 32, 3}, 17},
      {R"({"type": "vit_s_16", "image_size": 8, "patch_size": 4, "layers": 2, "heads": 2, "width": 8, "mlp": 16, "dropout": 0.2})",
       {8, 8, 3},
       2},
      {R"({"type": "sequential", "layers": [{"type": "residual", "layers": [{"type": "batch_norm"}, {"type": "relu"}, {"type": "residual", "layers": [{"type": "dropout", "p": 0.3}]}]}, {"type": "relu"}, {"type": "flatten"}, {"type": "linear", "out_features": 10}]})",
       {4, 4, 2},
       1}};
  for (const auto& [model, input, blocks] : models) {
    CAPTURE(model);
    for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBFloat16}) {
      CAPTURE(name_of(dtype));
      const Step kept = step_of(model, dtype, input, Recompute::kNone),
                 again = step_of(model, dtype, input, Recompute::kBlock);
      CHECK(again.numbers == kept.numbers);
      CHECK(again.counter == kept.counter);
      CHECK(kept.nodes >= again.nodes + blocks);
    }
  }
}

TEST_CASE("layers/composite: a checkpoint of nothing that wants a gradient") {
  const auto model = model_from(sequence(checkpoint(R"({"type": "relu"})")), {3});
  model->allocate(cpu(), DType::kFloat64);
  Tape tape(cpu());
  Pass pass{.backend = cpu(), .tape = &tape, .training = true};
  CHECK(!model->forward(Variable(noise_tensor(1, {2, 3})), pass).requires_grad());
  CHECK(tape.nodes() == 0);
}

TEST_CASE("layers/composite: branches are multiplied and put one behind the other") {
  const Tensor x = noise_tensor(1, {2, 3, 4, 5});
  Pass pass{.backend = cpu()};
  const auto run = [&](const std::string& layer) {
    const auto model = model_from(sequence(layer), {3, 4, 5});
    return model->forward(Variable(x), pass);
  };
  const Variable in(x), sigmoid = f::sigmoid(in, pass);
  const auto same = [](const Variable& a, const Variable& b) {
    CHECK(a.shape() == b.shape());
    CHECK(relative_error(numbers_of(a.value()), numbers_of(b.value())) < 1e-14);
  };
  same(run(R"({"type": "multiply", "branches": [[], [{"type": "sigmoid"}], []]})"),
       f::multiply(f::multiply(in, sigmoid, pass), in, pass));
  same(run(R"({"type": "multiply", "branches": [
                [{"type": "adaptive_avg_pool2d", "output_size": 1}, {"type": "tanh"}], []]})"),
       f::multiply(f::tanh(f::mean(in, {1, 2}, true, pass), pass), in, pass));
  const std::string branches = R"("branches": [[], [{"type": "sigmoid"}]])";
  same(run(R"({"type": "concat", )" + branches + "}"), f::concat({in, sigmoid}, 3, pass));
  same(run(R"({"type": "concat", "dim": 1, )" + branches + "}"), f::concat({in, sigmoid}, 1, pass));
}

TEST_CASE("layers/composite: tensors have PyTorch's names, and shapes outside") {
  const auto model = model_from(
      sequence(R"({"type": "squeeze_excite", "reduction": 4}, {"type": "multiply", "branches": [
                  [{"type": "conv_transpose2d", "out_channels": 6, "kernel_size": 2, "stride": 2}],
                  [{"type": "upsample", "scale_factor": 2},
                   {"type": "conv2d", "out_channels": 6, "kernel_size": 1}]]},
                  {"type": "group_norm", "num_groups": 3}, )" +
               checkpoint(R"({"type": "linear", "out_features": 2})")),
      {3, 3, 8});
  std::vector<std::string> names;
  for (const Parameter* parameter : model->parameters())
    names.push_back(parameter->name + " " + file_shape(parameter->shape, parameter->layout).text());
  CHECK(names == std::vector<std::string>{
                     "0.fc1.weight 2×8×1×1", "0.fc1.bias 2", "0.fc2.weight 8×2×1×1", "0.fc2.bias 8",
                     "1.0.0.weight 8×6×2×2", "1.0.0.bias 6", "1.1.1.weight 6×8×1×1", "1.1.1.bias 6",
                     "2.weight 6", "2.bias 6", "3.0.weight 2×6", "3.0.bias 2"});
}

TEST_CASE("layers/composite: errors name the layer and both shapes") {
  for (const auto& row : test::rows_of(R"table(
[layer] 0: branches give 4×4×6 and 2×2×6; needed: shapes that differ along `dim` alone | {"type": "concat", "branches": [[], [{"type": "max_pool2d", "kernel_size": 2}]]}
[layer] 0: branches give 4×4×6 and 2×2×6; needed: shapes that broadcast | {"type": "multiply", "branches": [[], [{"type": "max_pool2d", "kernel_size": 2}]]}
0 is the batch | {"type": "concat", "dim": 0, "branches": [[]]}
branches: expected a list of | {"type": "concat", "branches": []}
branches[0]: expected a list, found | {"type": "concat", "branches": [{"type": "relu"}]}
branches[1][0].type | {"type": "concat", "branches": [[], [{"type": "rleu"}]]}
[layer] 0: an input of 4×4×6, but a number of channels that 4 groups divide is needed | {"type": "group_norm", "num_groups": 4}
[layer] 1: an input of 6, but more than one number in a group | {"type": "global_avg_pool"}, {"type": "instance_norm"}
[layer] 0: an input of | {"type": "upsample", "scale_factor": 0.2}
output_padding: found 1, which must be below the stride, 1 | {"type": "conv_transpose2d", "out_channels": 1, "kernel_size": 1, "output_padding": 1}
[layer] 1: an input of 6, but an image H×W×C is needed | {"type": "global_avg_pool"}, {"type": "squeeze_excite"}
)table"))
    CHECK(contains(model_error(sequence(row.at(1)), {4, 4, 6}), row.at(0)));
}

}  // namespace starling::testing
