#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "core/config.h"
#include "core/safetensors.h"
#include "layers/functions.h"
#include "layers/layer.h"
#include "tests/parity/numbers.h"

// Models against PyTorch, in fp64: outputs, loss, every gradient and the running statistics.
// golden/make_models.py writes the files.
using namespace starling;
using namespace starling::testing;

namespace {

constexpr double kTolerance = 1e-9;  // relative to the largest number of a tensor, or to its norm

struct Golden {
  SafetensorsFile file;
  std::unique_ptr<Model> model;
  double label_smoothing = 0.0;

  explicit Golden(const std::string& name)
      : file(read_safetensors("golden/models/" + name + ".safetensors")) {
    register_builtin_layers();
    register_builtin_models();
    ConfigSection section(parse_json(file.metadata.at("model"), name), name);
    model = make_model(section, input_shape().without_batch());
    label_smoothing = std::stod(file.metadata.at("label_smoothing"));
    model->allocate(cpu(), DType::kFloat64);
    for (const Parameter* parameter : model->parameters()) {
      if (parameter->trainable) cpu().fill(parameter->grad, std::nan(""));
    }
  }

  const FileTensor& raw(const std::string& name) const {
    const auto it = file.tensors.find(name);
    if (it == file.tensors.end()) FAIL("no tensor " << name);
    return it->second;
  }
  template <class T = double>
  std::vector<T> numbers(const std::string& name) const {
    const FileTensor& tensor = raw(name);
    REQUIRE(tensor.dtype == DTypeOf<T>::value);
    std::vector<T> result(tensor.bytes.size() / sizeof(T));
    std::memcpy(result.data(), tensor.bytes.data(), tensor.bytes.size());
    return result;
  }
  /// The input's shape in memory, N×H×W×C, or N×T of tokens.
  Shape input_shape() const {
    const auto stored = file.tensors.find("input_shape");
    Shape shape;
    if (stored != file.tensors.end()) {
      const auto sizes = numbers<std::int64_t>("input_shape");
      shape = Shape(std::span(sizes));
    } else {
      shape = raw("input").shape;
    }
    return shape.rank() == 4 ? Shape{shape[0], shape[2], shape[3], shape[1]} : shape;
  }
  Tensor labels() const {
    const auto wide = numbers<std::int64_t>("labels");
    const std::vector<std::int32_t> narrow(wide.begin(), wide.end());
    Tensor tensor(cpu(), {static_cast<std::int64_t>(narrow.size())}, DType::kInt32);
    cpu().copy_from_host(narrow.data(), tensor);
    return tensor;
  }
};

/// A tensor's numbers in the file's order.
std::vector<double> stored(const Tensor& from, TensorLayout layout = TensorLayout::kPlain) {
  REQUIRE(from.dtype() == DType::kFloat64);
  std::vector<double> memory(static_cast<std::size_t>(from.elements())), result(memory.size());
  cpu().copy_to_host(from, memory.data());
  to_file_layout(reinterpret_cast<const std::byte*>(memory.data()), from.shape(), layout,
                 sizeof(double), reinterpret_cast<std::byte*>(result.data()));
  return result;
}

void check_equal(const std::string& name, const std::vector<double>& found,
                 const std::vector<double>& expected) {
  CAPTURE(name);
  REQUIRE(found.size() == expected.size());
  double difference = 0.0, largest = 0.0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    // NaN stays
    if (!(std::abs(found[i] - expected[i]) <= difference))
      difference = std::abs(found[i] - expected[i]);
  }
  CHECK(difference <= kTolerance * largest + 1e-13);
}

std::int64_t count_of(const Tensor& tensor) {
  std::int64_t count = -1;
  cpu().copy_to_host(tensor, &count);
  return count;
}

/// One training pass, then one in evaluation mode; compares all with the file through
/// `check(name, found numbers)`.
template <class Check>
void compare(Golden& golden, const Tensor& input, const Check& check) {
  Tape tape(cpu());
  const bool tokens = input.dtype() == DType::kInt32;
  const Variable x = tokens ? Variable(input) : tape.leaf(input);
  {
    Pass pass{cpu(), &tape, true};
    const Variable logits = golden.model->forward(x, pass);
    const Variable loss =
        functions::cross_entropy(logits, golden.labels(), golden.label_smoothing, 1.0, pass);
    check_equal("output", stored(logits.value()), golden.numbers("output"));
    check_equal("loss", stored(loss.value()), golden.numbers("loss"));
    tape.backward(loss);
  }
  if (!tokens) check("grad.input", stored(Tape::gradient(x), TensorLayout::kConvWeight));
  for (const Parameter* parameter : golden.model->parameters()) {
    CHECK(parameter->trainable == (golden.file.tensors.count("grad." + parameter->name) != 0));
    if (parameter->trainable)
      check("grad." + parameter->name, stored(parameter->grad, parameter->layout));
  }
  for (const ModelBuffer* buffer : golden.model->buffers()) {
    if (buffer->dtype == DType::kInt64) {
      CHECK(count_of(buffer->value) == golden.numbers<std::int64_t>("after." + buffer->name)[0]);
    } else {
      check("after." + buffer->name, stored(buffer->value));
    }
  }
  Pass pass{cpu()};
  check_equal("output_eval", stored(golden.model->forward(Variable(input), pass).value()),
              golden.numbers("output_eval"));
}

/// The script's fill_hashed(): tensor k of the parameters, then of the buffers.
void fill_hashed(const Model& model) {
  std::uint64_t seed = 1;
  const auto fill = [&](const std::string& name, const Tensor& value, TensorLayout layout) {
    std::vector<double> u = hashed(seed++, static_cast<std::size_t>(value.elements()));
    const double bound = std::sqrt(6.0 / static_cast<double>(value.elements() / value.shape()[0]));
    const bool weight = file_shape(value.shape(), layout).rank() > 1;
    for (double& number : u) {
      if (weight) {
        number = (2 * number - 1) * bound;
      } else {
        number =
            name.ends_with("bias") || name.ends_with("mean") ? 0.2 * number - 0.1 : 0.5 + number;
      }
    }
    load(u, value, layout);
  };
  for (const Parameter* parameter : model.parameters())
    fill(parameter->name, parameter->value, parameter->layout);
  for (const ModelBuffer* buffer : model.buffers()) {
    if (buffer->dtype == DType::kInt64) {
      cpu().fill(buffer->value, 0.0);
    } else {
      fill(buffer->name, buffer->value, TensorLayout::kPlain);
    }
  }
}

void check_projections(const Golden& golden, const std::string& name,
                       const std::vector<double>& found) {
  CAPTURE(name);
  const std::vector<double> expected = golden.numbers(name);
  REQUIRE(expected.size() == 4);
  double norm = 0.0;
  for (double value : found) norm += value * value;
  norm = std::sqrt(norm);
  CHECK(std::abs(norm - expected[0]) <= kTolerance * expected[0] + 1e-13);
  for (std::uint64_t k = 0; k < 3; ++k) {
    const std::vector<double> weight = hashed(1000 + k, found.size());
    double sum = 0.0;
    for (std::size_t i = 0; i < found.size(); ++i) sum += found[i] * (2 * weight[i] - 1);
    CHECK(std::abs(sum - expected[k + 1]) <= kTolerance * expected[0] + 1e-13);
  }
}

}  // namespace

TEST_CASE("parity/models: small nets of every layer give PyTorch's numbers") {
  for (const char* name : {"convolutions", "norms", "poolings", "residuals", "mlp", "blurs",
                           "rectified", "channels", "tokens"}) {
    CAPTURE(name);
    Golden golden(name);
    for (const Parameter* parameter : golden.model->parameters()) {
      CHECK(golden.raw("model." + parameter->name).shape ==
            file_shape(parameter->shape, parameter->layout));
      load(golden.numbers("model." + parameter->name), parameter->value, parameter->layout);
    }
    for (const ModelBuffer* buffer : golden.model->buffers()) {
      if (buffer->dtype == DType::kInt64) {
        cpu().copy_from_host(golden.raw("model." + buffer->name).bytes.data(), buffer->value);
      } else {
        load(golden.numbers("model." + buffer->name), buffer->value, TensorLayout::kPlain);
      }
    }
    std::size_t tensors = 0;
    for (const auto& [key, tensor] : golden.file.tensors)
      tensors += key.starts_with("model.") ? 1 : 0;
    CHECK(tensors == golden.model->parameters().size() + golden.model->buffers().size());

    const FileTensor& given = golden.raw("input");
    const Tensor input(cpu(), golden.input_shape(), given.dtype);
    if (given.dtype == DType::kInt32) {
      cpu().copy_from_host(given.bytes.data(), input);
    } else {
      load(golden.numbers("input"), input, TensorLayout::kConvWeight);
    }
    compare(golden, input, [&](const std::string& key, const std::vector<double>& found) {
      check_equal(key, found, golden.numbers(key));
    });
  }
}

TEST_CASE("parity/models: whole models give PyTorch's numbers") {
  for (const char* name :
       {"resnet20", "resnet18_cifar", "resnet50", "resnet18_blur", "resnet50_blur", "wide_resnet",
        "wide_resnet_narrow", "vgg11_cifar", "vgg11_bn_cifar", "mobilenet_v2", "convnext_tiny",
        "airbench", "airbench96"}) {
    CAPTURE(name);
    Golden golden(name);
    fill_hashed(*golden.model);
    const Tensor image(cpu(), golden.input_shape(), DType::kFloat64);
    std::vector<double> numbers = hashed(0, static_cast<std::size_t>(image.elements()));
    for (double& number : numbers) number = 2 * number - 1;
    load(numbers, image, TensorLayout::kConvWeight);
    compare(golden, image, [&](const std::string& key, const std::vector<double>& found) {
      check_projections(golden, key, found);
    });
  }
}
