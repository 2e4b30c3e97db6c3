#include <doctest/doctest.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/inference/description.h"
#include "apps/inference/inference.h"
#include "apps/inference/model_file.h"
#include "apps/pictures/picture.h"
#include "core/autograd.h"
#include "core/error.h"
#include "kernels/open_backend.h"
#include "layers/layer.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

// A model file alone is enough to use the model.
using namespace starling;
using test::contains;

namespace {

/// A small convolutional net with all its tensors at values of its own, written with its
/// description.
struct WrittenModel {
  test::Folder made;
  std::string folder = made.path(), path = made / "model.safetensors";
  SafetensorsFile file;
  std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, 1);
  std::unique_ptr<Model> model;

  WrittenModel() {
    register_builtin_layers();
    register_builtin_models();
    const auto config =
        nlohmann::json::parse(R"({"model": {"type": "sequential", "num_classes": 3, "layers": [
      {"type": "conv2d", "out_channels": 4, "kernel_size": 3}, {"type": "batch_norm"}, {"type": "relu"}, {"type": "dropout", "p": 0.5},
      {"type": "flatten"}, {"type": "linear", "out_features": 3}]}, "batch_size": 8})");
    ConfigSection root(config, "test");
    ConfigSection section = root.section("model", "");
    model = make_model(section, Shape{4, 5, 3}, 3);
    model->allocate(*backend, DType::kFloat32);
    model->initialise(7);
    add_model_tensors(*model, "", file);
    ModelDescription description{.config = config.dump(),
                                 .classes = {"ant", "bee", "cat"},
                                 .image = Shape{4, 5, 3},
                                 .pictures = true};
    description.scale = {{0.5, 0.4, 0.3, 0}, {0.2, 0.3, 0.25, 0}};
    describe(description, file);
    write();
  }
  void write() const { write_safetensors(path, file); }

  std::vector<float> forward(const std::vector<float>& batch, std::int64_t samples) const {
    Tensor x(*backend, model->input_shape().with_batch(samples), DType::kFloat32);
    backend->copy_from_host(batch.data(), x);
    Pass pass{*backend};
    const Variable y = model->forward(Variable(x), pass);
    std::vector<float> result(static_cast<std::size_t>(y.value().elements()));
    backend->copy_to_host(y.value(), result.data());
    return result;
  }
};

std::string refusal(const std::string& path, const InferenceOptions& options = {}) {
  return test::error_text(ExitCode::kUsage, [&] { (void)load_model(path, options); });
}

std::vector<std::uint8_t> some_bytes(std::size_t count) {
  std::vector<std::uint8_t> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::uint8_t>(i * 37 % 256);
  return bytes;
}

}  // namespace

TEST_CASE("a loaded model gives the logits of the model that was written") {
  const WrittenModel written;
  for (const std::string& path : {written.path, written.folder}) {
    const auto model = load_model(path, {.threads = 1});
    CHECK(model->input() == Shape{4, 5, 3});
    CHECK(model->output() == Shape{3});
    CHECK(model->classes() == std::vector<std::string>{"ant", "bee", "cat"});
    CHECK(model->parameter_count() == written.model->parameter_count());
    CHECK(nlohmann::json::parse(model->config())["batch_size"] == 8);
    const std::vector<std::uint8_t> bytes = some_bytes(2 * 60);
    std::vector<float> numbers(bytes.size());
    const std::array<float, 3> mean{0.5F, 0.4F, 0.3F}, deviation{0.2F, 0.3F, 0.25F};
    for (std::size_t i = 0; i < bytes.size(); ++i)
      numbers[i] = (static_cast<float>(bytes[i]) / 255.0F - mean[i % 3]) / deviation[i % 3];
    const std::vector<float> expected = written.forward(numbers, 2);
    CHECK(model->logits(std::span<const float>(numbers)) == expected);
    CHECK(model->logits(std::span<const std::uint8_t>(bytes)) == expected);
    // dropout is off, nothing is learnt
    CHECK(model->logits(std::span<const std::uint8_t>(bytes)) == expected);
    CHECK(model->logits(std::span<const float>()).empty());
  }
}

TEST_CASE("a picture file becomes an image of the model's height and width") {
  std::vector<std::uint8_t> expected(4 * 5 * 3);
  const auto part = [](const PictureSize& size) { return PicturePart::centre(size, 4, 4, 5); };
  const std::string file = "golden/pictures/420.jpg";
  PictureDecoder({.scaled_decoding = false})
      .decode(read_picture_file(file), file, part, 4, 5, 3, expected.data());
  CHECK(load_model(WrittenModel().path)->read_picture(file) == expected);
}

TEST_CASE("outputs beyond the classes have numbers for names") {
  WrittenModel written;
  const auto names = [&](const char* classes) {
    written.file.metadata["starling.classes"] = classes;
    written.write();
    return load_model(written.path, {.threads = 1})->classes();
  };
  CHECK(names(R"(["ant"])") == std::vector<std::string>{"ant", "1", "2"});
  CHECK(names("[]") == std::vector<std::string>{"0", "1", "2"});
}

TEST_CASE("a loaded model computes in the precision that is asked for") {
  const WrittenModel written;
  const std::vector<std::uint8_t> bytes = some_bytes(60);
  const auto logits = [&](const char* precision) {
    return load_model(written.path, {.threads = 1, .precision = precision})
        ->logits(std::span<const std::uint8_t>(bytes));
  };
  const std::vector<float> exact = logits("fp64"), single = logits("fp32"), half = logits("bf16");
  double near = 0.0, far = 0.0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    near = std::max(near, std::abs(static_cast<double>(single[i]) - static_cast<double>(exact[i])));
    far = std::max(far, std::abs(static_cast<double>(half[i]) - static_cast<double>(exact[i])));
  }
  CHECK(near < 1e-5);
  CHECK(far > near);
  CHECK(far < 0.1);
  CHECK(contains(refusal(written.path, {.precision = "fp16"}),
                 "precision is fp16; allowed: fp32, fp64, bf16"));
  CHECK(contains(refusal(written.path, {.device = "tpu"}), "device is tpu"));
  CHECK(contains(refusal(written.path, {.threads = -1}), "threads is -1"));
}

TEST_CASE("what is no whole sample is refused") {
  const WrittenModel written;
  const auto model = load_model(written.path, {.threads = 1});
  const std::vector<float> numbers(61);
  CHECK_THROWS_WITH_AS((void)model->logits(std::span<const float>(numbers)),
                       "[inference] 61 numbers are no whole samples of 4×5×3 = 60", Error);
}

TEST_CASE("a file that is no model of Starling's is refused by what it lacks") {
  WrittenModel written;
  const auto with = [&](const char* key, const char* value) {
    const SafetensorsFile whole = written.file;
    written.file.metadata.erase(key);
    if (value) written.file.metadata[key] = value;
    written.write();
    written.file = whole;
    return refusal(written.path);
  };
  CHECK(contains(with("starling.config", nullptr),
                 "has no metadata starling.config, so it does not say what model it holds"));
  CHECK(contains(with("starling.config", "{"), "starling.config"));
  CHECK(contains(with("starling.config", "{}"), "needed: a JSON object with the key model"));
  CHECK(contains(with("starling.config", R"({"model": {"type": "resnet2"}})"), "resnet2"));
  CHECK(
      contains(with("starling.config", R"({"model": {"type": "mine"}, "plugins": ["libmine.so"]})"),
               "libmine.so"));
  CHECK(contains(with("starling.classes", "3"), "a JSON list of names"));
  CHECK(contains(with("starling.classes", "[3]"), "a JSON list of names"));
  for (const char* input :
       {"[]", R"({"shape": 3})", R"({"shape": [-1, 2, 3]})", R"({"shape": [1.5]})",
        R"({"shape": [1,1,1,1,1,1,1]})", R"({"shape": [4, 5, 3], "resize": -2})"}) {
    CHECK(contains(with("starling.input", input),
                   R"(metadata starling.input: needed: {"shape": [H, W, C])"));
  }
  for (const char* scale : {"[]", R"({"mean": [1, 2, 3]})", R"({"mean": [1, 2, 3], "std": [1, 2]})",
                            R"({"mean": ["a", 2, 3], "std": [1, 2, 3]})"}) {
    CHECK(contains(with("starling.normalize", scale), "a number for each channel"));
  }
  CHECK(with("format", "pt").empty());
  written.file.tensors.erase("0.bias");
  written.write();
  CHECK(contains(refusal(written.path), "tensor 0.bias is missing"));
  CHECK(contains(refusal("no/such/file"), "no/such/file"));
  std::filesystem::remove(written.path);
  CHECK(
      contains(refusal(written.folder), "has no model.safetensors, which a run writes at its end"));
}

TEST_CASE("probabilities are by the loss that the model was trained with") {
  WrittenModel written;
  const std::vector<float> logits{0.0F, 2.0F, -3.0F};
  const auto shares = [&](const char* loss) {
    nlohmann::json config = nlohmann::json::parse(written.file.metadata["starling.config"]);
    if (loss) config["loss"] = {{"type", loss}};
    written.file.metadata["starling.config"] = config.dump();
    written.write();
    return load_model(written.path, {.threads = 1})->probabilities(logits);
  };
  CHECK(shares(nullptr) == probabilities(logits));
  CHECK(shares("focal") == probabilities(logits));
  const std::vector<double> separate = shares("bce_with_logits");
  REQUIRE(separate.size() == 3);
  CHECK(separate[0] == 0.5);
  CHECK(separate[1] == doctest::Approx(1.0 / (1.0 + std::exp(-2.0))));
  CHECK(separate[2] == doctest::Approx(1.0 / (1.0 + std::exp(3.0))));
}

TEST_CASE("probabilities and the largest logits") {
  const std::vector<float> logits{1.0F, 3.0F, -2.0F, 3.0F};
  const std::vector<double> shares = probabilities(logits);
  double sum = 0.0;
  for (const double share : shares) sum += share;
  CHECK(sum == doctest::Approx(1.0));
  CHECK(shares[1] / shares[0] == doctest::Approx(std::exp(2.0)));
  CHECK(largest(logits, 3) == std::vector<std::int64_t>{1, 3, 0});
  CHECK(largest(logits) == std::vector<std::int64_t>{1});
  CHECK(largest(logits, 9).size() == 4);
  CHECK(probabilities(std::vector<float>{1e30F, -1e30F}) == std::vector<double>{1.0, 0.0});
}
