// Tasks, data sets and augmentations that the product does not have, through the trainer as it is.
#include "apps/training/tasks/task.h"

#include <doctest/doctest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <stdexcept>

#include "apps/training/check_gradients.h"
#include "apps/training/config/plugins.h"
#include "apps/training/tasks/metric.h"
#include "apps/training/training_run.h"
#include "kernels/cpu/cpu_backend.h"
#include "layers/functions.h"
#include "tests/apps/data_test_support.h"
#include "tests/apps/program.h"
#include "tests/apps/trainer_run.h"
#include "tests/fakes/transport/fake_transport.h"

namespace starling {
namespace {

using test::contains;
using test::error_of;
using test::fails;
using test::Folder;

constexpr std::int64_t kInputs = 4, kTargets = 2, kTrainLines = 64, kTestLines = 10;

/// The target is a linear function of the input: what a linear layer can learn without a rest.
double weight_of(std::int64_t target, std::int64_t input) {
  return 0.5 * static_cast<double>(target + 1) - 0.25 * static_cast<double>(input);
}
float input_of(Dataset::Split split, std::int64_t sample, std::int64_t i) {
  const auto word =
      static_cast<std::uint32_t>(sample * 8 + i + (split == Dataset::Split::kTest ? 100000 : 0)) *
      2654435761u;
  return static_cast<float>(word >> 8) / 8388608.0f - 1.0f;
}
float target_of(Dataset::Split split, std::int64_t sample, std::int64_t t) {
  double sum = 0.125;
  for (std::int64_t i = 0; i < kInputs; ++i)
    sum += weight_of(t, i) * static_cast<double>(input_of(split, sample, i));
  return static_cast<float>(sum);
}

class Lines final : public Dataset {
 public:
  DatasetInfo info() const override {
    return {.tensors = {{"input", Shape{kInputs}}, {"target", Shape{kTargets}}},
            .task = "test_regression",
            .train_samples = kTrainLines,
            .test_samples = kTestLines};
  }
  void open() override {}
  void read(Split split, std::int64_t index, std::span<std::byte* const> out) const override {
    for (std::int64_t i = 0; i < kInputs; ++i)
      reinterpret_cast<float*>(out[0])[i] = input_of(split, index, i);
    for (std::int64_t t = 0; t < kTargets; ++t)
      reinterpret_cast<float*>(out[1])[t] = target_of(split, index, t);
  }
};

constexpr std::int64_t kLength = 6, kVocabulary = 9, kFamilies = 3;

/// Tokens, of which the second says the class.
class Words final : public Dataset {
 public:
  DatasetInfo info() const override {
    return {.tensors = {{"tokens", Shape{kLength}, DType::kInt32, kVocabulary},
                        {"label", Shape{}, DType::kInt32, kFamilies}},
            .task = "classification",
            .classes = kFamilies,
            .train_samples = kTrainLines,
            .test_samples = kTestLines};
  }
  void open() override {}
  void read(Split split, std::int64_t index, std::span<std::byte* const> out) const override {
    auto* const tokens = reinterpret_cast<std::int32_t*>(out[0]);
    for (std::int64_t i = 0; i < kLength; ++i)
      tokens[i] = static_cast<std::int32_t>((input_of(split, index, i) + 1.0f) * 4.5f);
    *reinterpret_cast<std::int32_t*>(out[1]) = tokens[1] % static_cast<std::int32_t>(kFamilies);
  }
};

class Regression final : public Task {
 public:
  explicit Regression(const DatasetInfo& data)
      : Task(data),
        input_(needed("test_regression", "input").shape),
        outputs_(needed("test_regression", "target").shape.back()) {}
  Shape input() const override { return input_; }
  std::int64_t outputs() const override { return outputs_; }
  void check_model(const Model& model, const ConfigSection& section) const override {
    if (model.output_shape() != Shape{outputs_})
      section.error("num_classes", "is not the number of targets");
  }
  std::string usual_loss() const override { return "mse"; }
  std::vector<std::string> usual_metrics() const override { return {"loss"}; }
  TaskOutput predict(Model& model, const Batch& batch, Pass& pass) const override {
    return {model.forward(
                Variable(functions::in_format(batch["input"], batch.format, pass.backend)), pass),
            batch["target"]};
  }

 private:
  Shape input_;
  std::int64_t outputs_;
};

/// Bytes the other way round: an augmentation that changes an image, not its window.
class Negative final : public Augmenter {
 public:
  void apply(const SampleRandom&, AugmentedImage& image) const override {
    for (std::uint8_t& byte : image.bytes()) byte = static_cast<std::uint8_t>(255 - byte);
  }
};

void register_parts() {
  register_builtins();
  static const bool once = [] {
    datasets().add("test_lines",
                   [](ConfigSection&, std::uint64_t) { return std::make_unique<Lines>(); });
    datasets().add("test_words",
                   [](ConfigSection&, std::uint64_t) { return std::make_unique<Words>(); });
    tasks().add("test_regression", [](ConfigSection&, const DatasetInfo& data) {
      return std::make_unique<Regression>(data);
    });
    augmentations().add("test_negative",
                        [](ConfigSection& section, const Shape&) -> std::unique_ptr<Augmenter> {
                          if (!section.boolean("test_negative", false, "")) return nullptr;
                          return std::make_unique<Negative>();
                        });
    return true;
  }();
  static_cast<void>(once);
}

nlohmann::json line_config(const char* patch = "{}") {
  register_parts();
  nlohmann::json config = nlohmann::json::parse(R"({
    "model": {"type": "sequential", "layers": [{"type": "linear", "out_features": 2}]}, "data": {"type": "test_lines"},
    "batch_size": 8, "epochs": 120, "optimizer": {"type": "sgd", "lr": 0.2}, "threads": 1, "log_every": 4, "tensorboard": false,
    "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}})");
  config.merge_patch(nlohmann::json::parse(patch));
  return config;
}

nlohmann::json word_config(const char* patch = "{}") {
  nlohmann::json config = line_config(R"({"data": {"type": "test_words"}, "epochs": 20,
    "model": {"layers": [{"type": "embedding", "num_embeddings": 9, "embedding_dim": 8},
      {"type": "linear", "out_features": 8}, {"type": "relu"}, {"type": "flatten"}, {"type": "linear", "out_features": 3}]}})");
  config.merge_patch(nlohmann::json::parse(patch));
  return config;
}

nlohmann::json image_config(const char* loss) {
  nlohmann::json config = nlohmann::json::parse(
      R"({"model": {"type": "mlp", "hidden": [4]}, "batch_size": 4, "steps": 1,
    "data": {"type": "synthetic", "image_size": 8, "limit": 32}, "threads": 1})");
  config["loss"] = nlohmann::json::parse(loss);
  return config;
}

/// Trains on two ranks and gives rank 0's summary.
nlohmann::json train(const nlohmann::json& json, const std::string& folder) {
  FakeWorld(2).run([&](Transport& transport) {
    const test::TrainerRun run(json, transport);
    CHECK(TrainingRun(*run.trainer, folder).run() == ExitCode::kOk);
  });
  return nlohmann::json::parse(test::read_text(folder + "/summary.json"));
}

}  // namespace

TEST_CASE(
    "trainer/task: a regression of vectors is trained by the trainer as it is, on two ranks") {
  const Folder folder;
  const nlohmann::json summary = train(line_config(R"({"precision": "fp64"})"), folder.path());
  CHECK(summary["test_loss"].get<double>() < 1e-6);
  CHECK_FALSE(summary.contains("test_accuracy"));
  const SafetensorsFile model = read_safetensors(folder / "model.safetensors");
  const std::vector<double> weight = test::numbers_in(model, "0.weight"),
                            bias = test::numbers_in(model, "0.bias");
  REQUIRE(weight.size() == kTargets * kInputs);
  double loss = 0.0;
  for (std::int64_t t = 0; t < kTargets; ++t) {
    for (std::int64_t i = 0; i < kInputs; ++i)
      CHECK(weight[static_cast<std::size_t>(t * kInputs + i)] ==
            doctest::Approx(weight_of(t, i)).epsilon(1e-3));
    for (std::int64_t sample = 0; sample < kTestLines; ++sample) {
      double output = bias[static_cast<std::size_t>(t)];
      for (std::int64_t i = 0; i < kInputs; ++i)
        output += weight[static_cast<std::size_t>(t * kInputs + i)] *
                  static_cast<double>(input_of(Dataset::Split::kTest, sample, i));
      const double rest = output - static_cast<double>(target_of(Dataset::Split::kTest, sample, t));
      loss += rest * rest / static_cast<double>(kTestLines * kTargets);
    }
  }
  CHECK(summary["test_loss"].get<double>() / loss == doctest::Approx(1.0).epsilon(1e-6));
  // Every line of training tells the loss, and the first steps' is far from the last.
  std::istringstream lines(test::read_text(folder / "metrics.jsonl"));
  std::string first;
  std::getline(lines, first);
  CHECK(nlohmann::json::parse(first)["loss"].get<double>() > 0.01);
}

TEST_CASE("trainer/task: tokens go into a model, and are learned in every precision of a CPU") {
  for (const char* precision : {"fp64", "fp32", "bf16"}) {
    CAPTURE(precision);
    const Folder folder;
    nlohmann::json config = word_config();
    config["precision"] = precision;
    CHECK(train(config, folder.path())["test_accuracy"].get<double>() == 1.0);
    const SafetensorsFile model = read_safetensors(folder / "model.safetensors");
    CHECK(model.tensors.at("0.weight").shape == Shape{kVocabulary, 8});
    CHECK(model.tensors.at("1.weight").shape == Shape{8, 8});
  }
  CpuBackend backend(1);
  TrainConfig config = read_train_config(word_config(), "test", {1, 1});
  config.data.dataset->open();
  CHECK_NOTHROW(check_gradients(config, backend, false));
}

TEST_CASE("trainer/task: the same in bf16 comes near, with targets in fp32") {
  const Folder folder;
  CHECK(train(line_config(R"({"precision": "bf16"})"), folder.path())["test_loss"].get<double>() <
        1e-3);
}

TEST_CASE("trainer/task: what does not fit together is an error before anything is trained") {
  const test::Program program;
  program.write("lines.json", line_config().dump());
  program.write("words.json", word_config().dump());
  program.play(R"table(
0 2 | as it is | in all | lines.json --dry-run
2 2 | a misspelt loss | loss\.type: .*did you mean 'mse' | lines.json --dry-run | loss.type=mze
2 2 | a key of another loss | loss\.label_smoothing: | lines.json --dry-run | loss={"label_smoothing": 0.1}
2 2 | another task | classification needs samples with a tensor 'image' | lines.json --dry-run | task.type=classification
2 2 | a metric that there is not | task\.metrics: unknown metric 'los' | lines.json --dry-run | task.metrics=["los"]
2 2 | an augmentation of numbers | data\.augment\.flip: | lines.json --dry-run | data.augment.flip=true
2 2 | classes of numbers | data\.partition\.type: | lines.json --dry-run | data.partition.type=dirichlet
let rows = model.layers=[{"type": "embedding", "num_embeddings": 9, "embedding_dim": 3}]
2 2 | no vector of outputs | model\.type: the model gives 6×3, but num_classes is 3; end it with a linear layer of 3 features, of a vector \(flatten, global_avg_pool\) | words.json --dry-run | $rows
2 2 | for other classes | num_classes is 2 | words.json --dry-run | $rows | model.num_classes=2
let four = model.layers=[{"type": "embedding", "num_embeddings": 9, "embedding_dim": 3}, {"type": "flatten"}, {"type": "linear", "out_features": 4}]
2 2 | a class more | the model gives 4, but num_classes is 3 | words.json --dry-run | $four
0 2 | that no sample has | in all | words.json --dry-run | $four | model.num_classes=4
)table");
}

TEST_CASE("trainer/task: a loss names outputs and targets that do not fit each other") {
  register_parts();
  CpuBackend backend(1);
  const nlohmann::json none = nlohmann::json::object();
  const auto refusal = [&](const char* type, const Shape& outputs, const Shape& targets,
                           DType dtype) {
    ConfigSection section(none, "loss");
    const auto loss = losses().make(type, "loss.type", section);
    Pass pass{backend};
    return error_of(ExitCode::kUsage, [&] {
      (void)loss->value(Variable(Tensor(backend, outputs, DType::kFloat32)),
                        Tensor(backend, targets, dtype), 1.0, pass);
    });
  };
  CHECK(contains(refusal("mse", {8, 3}, {8, 2}, DType::kFloat32),
                 "the outputs are 8×3, the targets 8×2 of fp32; needed: as many"));
  CHECK(contains(refusal("huber", {8, 3, 2}, {8}, DType::kInt32),
                 "the outputs are 8×3×2, the targets 8 of int32"));
  CHECK(contains(refusal("focal", {8, 3}, {7}, DType::kInt32),
                 "the outputs are 8×3, the targets 7 of int32"));
  CHECK(contains(refusal("cross_entropy", {8, 3}, {8, 4}, DType::kFloat32),
                 "the outputs are 8×3, the targets 8×4 of fp32"));
  CHECK(contains(refusal("bce_with_logits", {8}, {8}, DType::kUInt8),
                 "the outputs are 8, the targets 8 of uint8"));
}

TEST_CASE("trainer/task: every loss trains on class numbers, and each is what its type says") {
  register_parts();
  std::set<double> values;
  for (const char* loss :
       {R"({"type": "cross_entropy"})", R"({"type": "focal"})",
        R"({"type": "focal", "gamma": 0.5})", R"({"type": "mse"})", R"({"type": "l1"})",
        R"({"type": "huber"})", R"({"type": "huber", "delta": 0.1})",
        R"({"type": "bce_with_logits"})"}) {
    CAPTURE(loss);
    TrainConfig config = read_train_config(image_config(loss), "test", {1, 1});
    CHECK_NOTHROW(trace_shapes(config));
    CpuBackend backend(1);
    config.data.dataset->open();
    config.model->allocate(backend, DType::kFloat32);
    config.model->initialise(3);
    EvaluationLoader loader(*config.data.dataset, 4, 0, 1, backend, DType::kFloat32);
    Pass pass{backend};
    const TaskOutput output = config.task->predict(*config.model, *loader.next(), pass);
    const float value = *config.task->loss(output, 1.0, pass).value().data<float>();
    CHECK(value > 0.0f);
    values.insert(value);
  }
  CHECK(values.size() == 8);
}

TEST_CASE("trainer/task: the resolved config says task, metrics and loss") {
  const nlohmann::json resolved = read_train_config(line_config(), "test", {2, 2}).resolved;
  CHECK(resolved["task"] == nlohmann::json{{"type", "test_regression"}, {"metrics", {"loss"}}});
  CHECK(resolved["loss"] == nlohmann::json{{"type", "mse"}});
  CHECK(read_train_config(resolved, "test", {2, 2}).resolved == resolved);
}

TEST_CASE(
    "trainer/task: a checkpoint of a version without tasks goes on as classification, and as "
    "nothing else") {
  register_parts();
  nlohmann::json resolved =
      read_train_config(image_config(R"({"type": "cross_entropy"})"), "test", {1, 1}).resolved;
  nlohmann::json old = resolved;
  REQUIRE(old.erase("task") == 1);
  SafetensorsFile file;
  file.metadata = {{"format", "starling-checkpoint-1"},
                   {"ranks", "1"},
                   {"precision", "fp32"},
                   {"config", old.dump()}};
  CHECK_NOTHROW(check_resumable(file, "old", resolved, resolved, 1, DType::kFloat32));
  resolved["task"]["type"] = "test_regression";
  CHECK(fails(ExitCode::kUsage, "task.type",
              [&] { check_resumable(file, "old", resolved, resolved, 1, DType::kFloat32); }));
}

TEST_CASE(
    "trainer/task: batches hold tensors of any shape and type, the same on the host and on a "
    "device") {
  class Tokens final : public Dataset {
   public:
    DatasetInfo info() const override {
      return {.tensors = {{"tokens", Shape{5}, DType::kInt32, 50},
                          {"weight", Shape{}, DType::kFloat32},
                          {"mask", Shape{3}, DType::kUInt8}},
              .task = "none",
              .train_samples = 12,
              .test_samples = 3};
    }
    void open() override {}
    void read(Split, std::int64_t index, std::span<std::byte* const> out) const override {
      for (std::int32_t i = 0; i < 5; ++i)
        reinterpret_cast<std::int32_t*>(out[0])[i] = static_cast<std::int32_t>(index) * 4 + i;
      *reinterpret_cast<float*>(out[1]) = 0.5f * static_cast<float>(index);
      for (int i = 0; i < 3; ++i) out[2][i] = static_cast<std::byte>(index + i);
    }
  };
  const Tokens tokens;
  for (const bool host : {true, false}) {
    CAPTURE(host);
    test::MemoryBackend backend(host);
    Loader loader(tokens, {.shuffle = false, .batch_size = 4}, backend, DType::kBFloat16);
    for (std::int32_t b = 0; b < 3; ++b) {
      const Batch& batch = loader.next();
      CHECK(batch["tokens"].shape() == Shape{4, 5});
      CHECK(batch["weight"].shape() == Shape{4});
      // as declared: a task casts what its model reads
      CHECK(batch["weight"].dtype() == DType::kFloat32);
      CHECK(batch.format == DType::kBFloat16);
      for (std::int32_t s = 0; s < 4; ++s) {
        const std::int32_t sample = 4 * b + s;
        const auto at = static_cast<std::size_t>(s);
        for (std::size_t i = 0; i < 5; ++i)
          CHECK(batch["tokens"].span<std::int32_t>()[5 * at + i] ==
                4 * sample + static_cast<std::int32_t>(i));
        CHECK(batch["weight"].span<float>()[at] == 0.5f * static_cast<float>(sample));
        CHECK(batch["mask"].span<std::uint8_t>()[3 * at + 2] == sample + 2);
      }
    }
    CHECK(fails(ExitCode::kUsage, "has no tensor 'label'; it has: tokens, weight, mask",
                [&] { loader.next()["label"]; }));
  }
}

TEST_CASE(
    "trainer/task: a number beyond its classes is an error that names sample and tensor, and so is "
    "what a data set throws") {
  class Bad final : public Dataset {
   public:
    explicit Bad(bool throws) : throws_(throws) {}
    DatasetInfo info() const override {
      return {.tensors = {{"tokens", Shape{2}, DType::kInt32, 9},
                          {"targets", Shape{}, DType::kInt32, 9}},
              .task = "none",
              .train_samples = 4,
              .test_samples = 4};
    }
    void open() override {}
    void read(Split, std::int64_t index, std::span<std::byte* const> out) const override {
      if (throws_ && index == 1) throw std::runtime_error("torn");
      reinterpret_cast<std::int32_t*>(out[0])[0] = 0;
      reinterpret_cast<std::int32_t*>(out[0])[1] = index == 2 ? 9 : 8;
      reinterpret_cast<std::int32_t*>(out[1])[0] = -100;  // a target that counts for nothing
    }

   private:
    bool throws_;
  };
  const Bad bad(false), torn(true);
  test::MemoryBackend backend;
  EvaluationLoader loader(bad, 4, 0, 1, backend, DType::kFloat32);
  CHECK(fails(ExitCode::kUsage, "test sample 2 has tokens 9, the classes are 0 to 8",
              [&] { loader.next(); }));
  EvaluationLoader of_torn(torn, 4, 0, 1, backend, DType::kFloat32);
  CHECK(error_of(ExitCode::kInternal, [&] { of_torn.next(); }) ==
        "[data] test sample 1: std::runtime_error: torn");
}

TEST_CASE(
    "trainer/task: an augmentation of one's own changes bytes, for the host's batches and a "
    "device's alike") {
  register_parts();
  const nlohmann::json keys{{"test_negative", true}, {"flip", true}, {"crop_padding", 1}};
  const LoaderSettings plain{.augment = test::augmenters_of(1, true), .batch_size = 4},
      negative{.augment = test::augmenters_from(keys, Shape{6, 5, 3}), .batch_size = 4};
  REQUIRE(negative.augment.size() == 3);
  const test::NumberedDataset dataset(16, 1);
  test::MemoryBackend host, device(false);
  Loader expected(dataset, plain, host, DType::kFloat32),
      on_host(dataset, negative, host, DType::kFloat32),
      on_device(dataset, negative, device, DType::kFloat32);
  const ImageInfo info = dataset.images();
  for (int b = 0; b < 4; ++b) {
    const auto before = expected.next()["image"].span<float>(),
               after = on_host.next()["image"].span<float>();
    int inside = 0;
    for (std::size_t i = 0; i < before.size(); ++i) {
      const double mean = info.mean[i % 3], deviation = info.std[i % 3];
      const double byte = (static_cast<double>(before[i]) * deviation + mean) * 255.0,
                   other = (static_cast<double>(after[i]) * deviation + mean) * 255.0;
      // Zeros around an image stay zeros.
      if (std::abs(byte + other - 255.0) < 1e-3)
        ++inside;
      else
        CHECK((std::abs(byte) < 1e-3 && std::abs(other) < 1e-3));
    }
    CHECK(inside > 4 * 90 / 2);
    const auto same = on_device.next()["image"].span<float>();
    CHECK(std::equal(after.begin(), after.end(), same.begin()));
  }
}

}  // namespace starling
