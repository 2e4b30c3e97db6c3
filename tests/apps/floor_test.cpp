#include <doctest/doctest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/training/config/plugins.h"
#include "apps/training/estimates/floor.h"
#include "comm/bucket.h"
#include "core/config.h"
#include "core/operations/updates.h"
#include "kernels/open_backend.h"

using namespace starling;

namespace {

std::unique_ptr<Model> model_of(const char* json, const Shape& input = Shape{8, 8, 2}) {
  register_builtins();
  ConfigSection section(nlohmann::json::parse(json), "test");
  return make_model(section, input);
}
std::unique_ptr<Model> small_model() {
  return model_of(R"({"type": "sequential", "num_classes": 10, "layers": [
    {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
    {"type": "conv2d", "out_channels": 4, "kernel_size": 1, "bias": false}, {"type": "global_avg_pool"}, {"type": "flatten"},
    {"type": "linear", "out_features": 10}]})");
}

struct Sum {
  int calls = 0;
  double bytes = 0.0, flops = 0.0;
};
std::vector<OperationWork> pass_of(Model& model, const PassShape& shape) {
  return trace_shapes(*classification_task(model.input_shape(), model.output_shape().back()), model,
                      shape)
      .work;
}

std::map<std::string, Sum> sums(const std::vector<OperationWork>& work) {
  std::map<std::string, Sum> result;
  for (const OperationWork& operation : work) {
    Sum& sum = result[operation.name];
    ++sum.calls;
    sum.bytes += operation.bytes;
    sum.flops += operation.flops;
  }
  return result;
}

}  // namespace

TEST_CASE("trainer/floor: bytes and arithmetic of a small model are those counted by hand") {
  const std::unique_ptr<Model> model = small_model();
  std::map<std::string, Sum> work = sums(pass_of(*model, {.batch_size = 4}));
  // Batch 4: the input has 512 numbers, each convolution's output 1024.
  CHECK(work["conv2d_forward"].calls == 2);
  CHECK(work["conv2d_forward"].bytes == (2048 + 288 + 4096) + (4096 + 64 + 4096));
  CHECK(work["conv2d_forward"].flops == 2.0 * 1024 * 18 + 2.0 * 1024 * 4);
  CHECK(work["conv2d_backward_data"].calls == 1);  // the first layer needs none
  CHECK(work["conv2d_backward_data"].bytes == 4096 + 64 + 4096);
  CHECK(work["conv2d_backward_data"].flops == 2.0 * 1024 * 4);
  CHECK(work["conv2d_backward_weights"].bytes == (2048 + 4096 + 288) + (4096 + 4096 + 64));
  CHECK(work["conv2d_backward_weights"].flops == 2.0 * 1024 * 18 + 2.0 * 1024 * 4);
  // x twice, y; gamma, beta, mean and deviation of 4 channels
  CHECK(work["batch_norm_forward"].bytes == 3 * 4096 + 4 * 16);
  // x and dy twice, dx; the four vectors and the two gradients
  CHECK(work["batch_norm_backward"].bytes == 5 * 4096 + 6 * 16);
  CHECK(work["map"].bytes == 64 + 4096);  // the mean's gradient
  CHECK(work["matmul"].calls == 3);
  // the weight's gradient with the bias's, which a product may sum up as it goes
  CHECK(work["matmul"].bytes == (64 + 160 + 40 + 160) + (160 + 160 + 64) + (160 + 64 + 160 + 40));
  CHECK(work["matmul"].flops == 3 * 2.0 * 4 * 10 * 4);
  CHECK(work["reduce"].bytes == 4096 + 64);  // the mean over the image
  CHECK(work["target_loss"].bytes == 160 + 16 + 4 + 160);
  for (const Parameter* parameter : model->parameters()) CHECK(!parameter->value);
}

TEST_CASE("trainer/floor: a blur is counted as the convolution that it is, and without a weight") {
  const std::unique_ptr<Model> model =
      model_of(R"({"type": "sequential", "num_classes": 10, "layers": [
    {"type": "conv2d", "out_channels": 4, "kernel_size": 1}, {"type": "blur_pool2d"}, {"type": "max_pool2d", "kernel_size": 2},
    {"type": "flatten"}, {"type": "linear", "out_features": 10}]})");
  std::map<std::string, Sum> work = sums(pass_of(*model, {.batch_size = 4}));
  // 8×8 pixels become 4×4, 256 numbers, each of 9 products; then 2×2 with their places. The largest
  // are compared, not multiplied.
  CHECK(work["pool2d_forward"].bytes == (4096 + 1024) + (1024 + 256 + 256));
  CHECK(work["pool2d_forward"].flops == 2.0 * 256 * 9);
  CHECK(work["pool2d_backward"].bytes == (1024 + 4096) + (256 + 256 + 1024));
  CHECK(work["pool2d_backward"].flops == 2.0 * 256 * 9);
}

TEST_CASE(
    "trainer/floor: products of whole matrices are those of Muon's iterations, and of Adafactor's "
    "estimate, counted by hand") {
  const std::unique_ptr<Model> model = small_model();
  std::vector<LayerExtent> layers;
  for (const Parameter* parameter : model->parameters()) layers.push_back(layer_of(*parameter));
  const auto rule = [](const char* name,
                       const nlohmann::json& settings = nlohmann::json::object()) {
    ConfigSection section(settings, "optimizer");
    return optimizers().make(name, "optimizer", section);
  };
  OperationWork pass;
  // An iteration on R×C multiplies two of the matrix to a square of the shorter side s, that square
  // by itself, and it by the matrix: 2·(2·s²·l + s³). The weights are 4×18, 4×4 and 10×4.
  const double iteration =
      2.0 * (2 * 16 * 18 + 64) + 2.0 * (2 * 16 * 4 + 64) + 2.0 * (2 * 16 * 10 + 64);
  std::map<std::string, Sum> work =
      sums(count_matrices(*rule("muon"), layers, DType::kFloat32, pass));
  CHECK(work["matmul"].calls == 3 * 3 * 5);
  CHECK(work["matmul"].flops == 5 * iteration);
  CHECK(work["weighted_sum"].calls == 3 * 2 * 5);
  CHECK(work["update"].calls == 3);  // the walk along the direction; the pass is not among them
  // X twice and the square of 4×4; that one twice and its own; it, X and the product.
  const auto bytes = [](double matrix) {
    return 5 * 4 * ((2 * matrix + 16) + 3 * 16 + (16 + 2 * matrix));
  };
  CHECK(work["matmul"].bytes == bytes(72) + bytes(16) + bytes(40));
  CHECK(sums(count_matrices(*rule("muon", {{"ns_steps", 2}}), layers, DType::kFloat32,
                            pass))["matmul"]
            .flops == 2 * iteration);
  CHECK(count_matrices(*rule("muon", {{"orthogonal", false}}), layers, DType::kFloat32, pass)
            .empty());
  CHECK(count_matrices(*rule("adamw"), layers, DType::kFloat32, pass).empty());
  CHECK(pass.flops == 0);
  // its bytes are in the pass
  CHECK(count_matrices(*rule("adafactor"), layers, DType::kFloat32, pass).empty());
  // a column by a row
  CHECK(pass.flops == 2.0 * (72 + 16 + 40));
}

TEST_CASE("trainer/floor: low precision halves activations and weights, not gradients of weights") {
  const std::unique_ptr<Model> model = small_model();
  std::map<std::string, Sum> work =
      sums(pass_of(*model, {.batch_size = 4, .compute = DType::kBFloat16}));
  CHECK(work["conv2d_forward"].bytes == (1024 + 144 + 2048) + (2048 + 32 + 2048));
  CHECK(work["conv2d_backward_weights"].bytes == (1024 + 2048 + 288) + (2048 + 2048 + 64));
  CHECK(work["batch_norm_forward"].bytes == 3 * 2048 + 4 * 16);
  CHECK(work["conv2d_forward"].flops == 2.0 * 1024 * 18 + 2.0 * 1024 * 4);
}

TEST_CASE("trainer/floor: an update's bytes, and the slower of bytes and arithmetic") {
  register_builtins();
  const nlohmann::json empty = nlohmann::json::object();
  ConfigSection section(empty, "test");
  const std::unique_ptr<OptimizerRule> rule = optimizers().make("adamw", "optimizer", section);
  CHECK(count_update(*rule, 1000, 0, DType::kFloat32, DType::kFloat32).bytes == 28000);
  CHECK(count_update(*rule, 1000, 1, DType::kFloat32, DType::kFloat32).bytes == 32000);
  CHECK(count_update(*rule, 1000, 1, DType::kFloat32, DType::kBFloat16).bytes == 34000);

  // 10 flops/s and 2 bytes/s: the first operation takes 4 s for its bytes, the second 3 s for its
  // arithmetic.
  const std::vector<OperationWork> work{{"a", 8, 10}, {"b", 2, 30}};
  CHECK(floor_of({{"a", 8, 10, 2}}, 10, 2).seconds == 5);  // at a rate of its own
  const Floor floor = floor_of(work, 10, 2);
  CHECK(floor.bytes == 10);
  CHECK(floor.flops == 40);
  CHECK(floor.memory_seconds == doctest::Approx(5));
  CHECK(floor.arithmetic_seconds == doctest::Approx(4));
  CHECK(floor.seconds == doctest::Approx(7));
  CHECK(floor.memory_bound());
  const Floor fewer_bytes = floor_of({{"a", 4, 10}, {"b", 2, 30}}, 10, 2);
  CHECK(fewer_bytes.seconds == doctest::Approx(5));
  CHECK(!fewer_bytes.memory_bound());
}

TEST_CASE("trainer/floor: ceilings go by the device's name, and other boards of a chip have none") {
  const auto rate = [](const char* name) {
    const auto known = known_ceilings(name);
    return known ? known->bytes_per_second : 0.0;
  };
  CHECK(rate("NVIDIA H200") == 4.3e12);
  CHECK(rate("NVIDIA H100 80GB HBM3, sm_90, CUDA 13.0, cuDNN 9.19.0") == 3.0e12);
  for (const char* other :
       {"NVIDIA H100 PCIe", "NVIDIA H100 NVL", "NVIDIA H100 80GB HBM3 MIG 3g.40gb",
        "NVIDIA GH200 480GB", "NVIDIA H20", "NVIDIA A100-SXM4-80GB", ""}) {
    CAPTURE(other);
    CHECK(rate(other) == 0.0);
  }
}

TEST_CASE("trainer/floor: an update and a ResNet-50 on an H200 and an H100 take at least so long") {
  register_builtins();
  struct Case {
    const char* device;
    double update, resnet;  // ms
  };
  for (const Case& one : {Case{"H200", 0.191, 24.4}, Case{"H100", 0.273, 32.9}}) {
    CAPTURE(one.device);
    const Ceilings device = known_ceilings(one.device).value();
    const auto milliseconds = [&](const std::vector<OperationWork>& work) {
      return 1e3 *
             floor_of(work, device.flops(DType::kBFloat16, false), device.bytes_per_second).seconds;
    };
    CHECK(milliseconds({{"update", 25.6e6 * 32, 0.0}}) ==
          doctest::Approx(one.update).epsilon(3e-3));
    for (const DType compute : {DType::kBFloat16, DType::kFloat16}) {
      ConfigSection adamw(nlohmann::json::object(), "optimizer");
      const std::unique_ptr<Model> model =
          model_of(R"({"type": "resnet50", "num_classes": 1000})", Shape{224, 224, 3});
      const auto rule = optimizers().make("adamw", "optimizer", adamw);
      std::vector<OperationWork> work = pass_of(*model, {.batch_size = 256, .compute = compute});
      work.push_back(count_update(*rule, static_cast<double>(model->parameter_count()), 0.0,
                                  DType::kFloat32, compute));
      CHECK(milliseconds(work) == doctest::Approx(one.resnet).epsilon(3e-3));
    }
  }
}

TEST_CASE("trainer/floor: a device that nobody knows is measured") {
  const auto cpu = open_backend(DeviceType::kCpu, 1);
  const Ceilings found = measured_ceilings(*cpu, DType::kFloat32, 1 << 22, 128);
  CHECK(found.device == "measured");
  // Between a tenth and a thousand times what any CPU's core does.
  CHECK(found.bytes_per_second > 1e8);
  CHECK(found.bytes_per_second < 1e13);
  CHECK(found.flops(DType::kFloat32, false) > 1e8);
  CHECK(found.flops(DType::kFloat32, false) < 1e13);
}
