// Keys of how a model is trained: the moving average, statistics of batch norms, a file to start
// from, the files of the checkpoint that tested best (which one that is is
// changed_resume_test.cpp's), and parameters that stay.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "apps/inference/model_file.h"
#include "apps/training/config/plugins.h"
#include "apps/training/estimates/memory.h"
#include "apps/training/estimates/report.h"
#include "apps/training/state/init_file.h"
#include "apps/training/training_run.h"
#include "comm/agreement.h"
#include "core/safetensors.h"
#include "tests/apps/data_test_support.h"
#include "tests/apps/program.h"
#include "tests/apps/trainer_run.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace starling {
namespace {

using test::check_same_tensors;
using test::contains;
using test::error_of;
using test::Folder;
using test::Program;
using test::TrainerRun;
using test::value_of;

/// A run with all that a recipe may ask for.
nlohmann::json recipe_config(const char* patch = "{}") {
  register_builtins();
  nlohmann::json config = nlohmann::json::parse(R"({
    "model": {"type": "sequential", "layers": [{"type": "batch_norm"}, {"type": "conv2d", "out_channels": 4, "kernel_size": 3},
      {"type": "batch_norm", "momentum": 0.3}, {"type": "relu"}, {"type": "dropout", "p": 0.25}, {"type": "flatten"},
      {"type": "linear", "out_features": 4}]},
    "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 128, "test_limit": 32, "augment": {"crop_padding": 1}},
    "precision": "fp64", "batch_size": 4, "steps": 8, "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9},
    "sync": {"bucket_mb": 0.001, "topology": {"type": "ring"}}, "threads": 1, "log_every": 1, "tensorboard": false,
    "evaluate": {"every_steps": 2}, "checkpoint": {"every_epochs": 0}})");
  config.merge_patch(nlohmann::json::parse(patch));
  return config;
}

/// Trains to the config's end, and gives what run() came to.
ExitCode train_to_end(const nlohmann::json& json, const std::string& folder, int ranks) {
  ExitCode code = ExitCode::kInternal;
  FakeWorld(ranks).run([&](Transport& transport) {
    TrainerRun run(json, transport);
    const ExitCode result = TrainingRun(*run.trainer, folder).run();
    if (transport.rank() == 0) code = result;
  });
  return code;
}

/// Another data set, of which one sample or every one of a split cannot be read from some moment
/// on.
class WithBadSample final : public Dataset {
 public:
  explicit WithBadSample(std::unique_ptr<Dataset> inner) : inner_(std::move(inner)) {}
  DatasetInfo info() const override { return inner_->info(); }
  void open() override { inner_->open(); }
  std::int64_t label(Split split, std::int64_t index) const override {
    return inner_->label(split, index);
  }
  void read(Split split, std::int64_t index, std::span<std::byte* const> out) const override {
    if (split == of && (index == bad || bad == kEvery))
      fail(code, "data", "sample {} cannot be read", index);
    inner_->read(split, index, out);
  }
  static constexpr std::int64_t kNone = -1, kEvery = -2;
  std::atomic<std::int64_t> bad{kNone};
  std::atomic<Split> of{Split::kTest};
  ExitCode code = ExitCode::kUsage;

 private:
  std::unique_ptr<Dataset> inner_;
};

/// For a TrainerRun; `sample` points to the rank's own then.
std::function<void(TrainConfig&)> with_bad_sample(WithBadSample*& sample) {
  return [&sample](TrainConfig& config) {
    auto dataset = std::make_unique<WithBadSample>(std::move(config.data.dataset));
    sample = dataset.get();
    config.data.dataset = std::move(dataset);
  };
}

}  // namespace

TEST_CASE(
    "recipe/bad sample: what one rank cannot read in a test ends it on all, and the model is each "
    "rank's own again") {
  for (const char* patch :
       {"{}", R"({"ema": {}})",
        R"({"sync": {"batch_norm": "recalibrate", "recalibrate_batches": 20}})"}) {
    CAPTURE(patch);
    const bool of_training = std::string(patch).find("recalibrate") != std::string::npos;
    FakeWorld(4).run([&](Transport& transport) {
      WithBadSample* sample = nullptr;
      TrainerRun run(recipe_config(patch), transport, with_bad_sample(sample));
      run.steps(2);
      const SafetensorsFile before = run.trainer->state();
      sample->of = of_training ? Dataset::Split::kTrain : Dataset::Split::kTest;
      // which is of rank 1's part
      if (transport.rank() == 1) sample->bad = of_training ? WithBadSample::kEvery : 29;
      std::string text;
      int told_of = -2;
      try {
        run.test();
      } catch (const AgreedError& error) {
        text = error.what();
        told_of = error.rank();
      }
      CHECK(contains(text, "cannot be read"));
      CHECK(told_of == 1);
      check_same_tensors(before, run.trainer->state());
    });
  }
}

TEST_CASE(
    "recipe/ema: the average is the plain recursion over each rank's parameters and statistics") {
  for (const int ranks : {1, 2}) {
    for (const std::int64_t every : {1, 3}) {
      CAPTURE(ranks);
      CAPTURE(every);
      nlohmann::json json = recipe_config(R"({"ema": {"decay": 0.75}})");
      json["ema"]["every"] = every;
      FakeWorld(ranks).run([&](Transport& transport) {
        TrainerRun run(json, transport);
        std::map<std::string, std::vector<double>> expected;
        for (int step = 1; step <= 7; ++step) {
          run.steps(1);
          const SafetensorsFile state = run.trainer->state();
          if (step % every == 0) {
            for (const auto& [name, tensor] : state.tensors) {
              if (name.rfind("model.", 0) != 0 || !is_floating(tensor.dtype)) continue;
              std::vector<double>& average = expected[name.substr(6)];
              const std::vector<double> now = test::numbers_in(state, name);
              if (average.empty()) {
                average = now;
              } else {
                for (std::size_t i = 0; i < now.size(); ++i)
                  average[i] = 0.75 * average[i] + 0.25 * now[i];
              }
            }
          }
          std::size_t found = 0;
          for (const auto& [name, tensor] : state.tensors)
            found += name.rfind("ema.", 0) == 0 ? 1 : 0;
          CHECK(found == 12);  // 8 parameters, 4 statistics
          for (const auto& [name, average] : expected) {
            CAPTURE(name);
            const std::vector<double> saved = test::numbers_in(state, "ema." + name);
            double worst = 0.0;
            for (std::size_t i = 0; i < saved.size(); ++i)
              worst = std::max(worst, std::abs(saved[i] - average[i]));
            CHECK(worst < 1e-14);
          }
        }
      });
    }
  }
}

TEST_CASE("recipe/ema: tests measure the ranks' mean of the averages") {
  for (const int ranks : {1, 3}) {
    CAPTURE(ranks);
    nlohmann::json json = recipe_config(
        R"({"ema": {"decay": 0.5, "every": 2}, "sync": {"topology": {"type": "base-2"}}})");
    std::vector<SafetensorsFile> states(static_cast<std::size_t>(ranks));
    SafetensorsFile shown;
    EvaluationResult tested;
    FakeWorld(ranks).run([&](Transport& transport) {
      TrainerRun run(json, transport);
      const EvaluationResult before = run.trainer->test(Trainer::TestedModels{});
      // no update yet: it is the model
      CHECK(value_of(before, "ema_loss") == value_of(before, "loss"));
      run.steps(4);
      const SafetensorsFile saved = run.trainer->state();
      states[static_cast<std::size_t>(transport.rank())] = saved;
      const EvaluationResult result = run.trainer->test(
          Trainer::TestedModels{{}, [&] {
                                  if (transport.rank() == 0)
                                    add_model_tensors(*run.config.model, "", shown);
                                }});
      if (transport.rank() == 0) tested = result;
      check_same_tensors(saved, run.trainer->state());
    });
    double worst = 0.0;
    for (const auto& [name, tensor] : shown.tensors) {
      if (!is_floating(tensor.dtype)) continue;
      const std::vector<double> mean = test::numbers_in(shown, name);
      std::vector<double> expected(mean.size(), 0.0);
      for (const SafetensorsFile& state : states) {
        const std::vector<double> own = test::numbers_in(state, "ema." + name);
        for (std::size_t i = 0; i < own.size(); ++i) expected[i] += own[i] / ranks;
      }
      for (std::size_t i = 0; i < mean.size(); ++i)
        worst = std::max(worst, std::abs(mean[i] - expected[i]));
    }
    CHECK(worst < 1e-14);
    // The same numbers by a run that is given the averages as its parameters.
    FakeWorld(1).run([&](Transport& transport) {
      TrainerRun run(recipe_config(), transport);
      load_model_tensors(shown, "test", "", *run.config.model);
      const EvaluationResult again = run.trainer->test(Trainer::TestedModels{});
      CHECK(value_of(again, "loss") ==
            doctest::Approx(value_of(tested, "ema_loss")).epsilon(1e-12));
      CHECK(value_of(again, "accuracy") == value_of(tested, "ema_accuracy"));
      CHECK(value_of(tested, "ema_loss") !=
            doctest::Approx(value_of(tested, "loss")).epsilon(1e-6));
    });
  }
}

TEST_CASE("recipe/ema: in bf16 the products' operands are the average's while it is tested") {
  FakeWorld(1).run([&](Transport& transport) {
    TrainerRun run(recipe_config(R"({"precision": "bf16", "ema": {"decay": 0.9}})"), transport);
    run.steps(4);
    const SafetensorsFile before = run.trainer->state();
    int looked = 0;
    run.trainer->test(Trainer::TestedModels{{}, [&] {
                                              ++looked;
                                              CHECK(run.low_is_current());
                                            }});
    CHECK(looked > 0);
    check_same_tensors(before, run.trainer->state());
  });
}

TEST_CASE("recipe/ema: a run tells and writes it, and its memory is planned") {
  const Folder folder;
  const nlohmann::json json = recipe_config(R"({"ema": {"decay": 0.9}})");
  CHECK(train_to_end(json, folder.path(), 2) == ExitCode::kOk);
  std::istringstream metrics(test::read_text(folder / "metrics.jsonl"));
  int told = 0;
  for (std::string line; std::getline(metrics, line);) told += contains(line, "test_ema_accuracy");
  CHECK(told == 4);
  const nlohmann::json summary = nlohmann::json::parse(test::read_text(folder / "summary.json"));
  CHECK(summary.contains("test_ema_loss"));
  CHECK(summary["test_ema_loss"] != summary["test_loss"]);
  const SafetensorsFile mean = read_safetensors(folder / "model.safetensors"),
                        average = read_safetensors(folder / "model.ema.safetensors");
  CHECK(mean.tensors.size() == average.tensors.size());
  CHECK(average.metadata.count("starling.config") == 1);
  CHECK(test::numbers_in(mean, "6.weight") != test::numbers_in(average, "6.weight"));
  const TrainConfig with = read_train_config(json, "test", {2, 2}),
                    without = read_train_config(recipe_config(), "test", {2, 2});
  const double more = memory_need(with, {2, 2}, trace_shapes(with)).total() -
                      memory_need(without, {2, 2}, trace_shapes(without)).total();
  CHECK(more >= static_cast<double>(8 * with.model->parameter_count()));
  CHECK(contains(dry_run_report(with, {2, 2}, trace_shapes(with)), "moving average"));
  CHECK_FALSE(contains(dry_run_report(without, {2, 2}, trace_shapes(without)), "moving average"));
  CHECK_FALSE(without.resolved.contains("ema"));
  CHECK(read_train_config(without.resolved, "test", {2, 2}).resolved == without.resolved);
  CHECK(read_train_config(with.resolved, "test", {2, 2}).resolved == with.resolved);
}

TEST_CASE(
    "recipe/batch_norm: recalibrated statistics are the cumulative average of training batches, "
    "and training keeps its own") {
  constexpr int kBatches = 5;
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const nlohmann::json json = recipe_config(
        R"({"sync": {"batch_norm": "recalibrate", "recalibrate_batches": 5}, "ema": {}})");
    // of the first norm, whose input are the images
    std::vector<double> mean(3, 0.0), variance(3, 0.0);
    SafetensorsFile shown, of_average;
    std::mutex mutex;
    FakeWorld(ranks).run([&](Transport& transport) {
      TrainerRun run(json, transport);
      run.steps(3);
      const SafetensorsFile before = run.trainer->state();
      run.trainer->test(Trainer::TestedModels{[&](const EvaluationResult&) {
                                                if (transport.rank() == 0)
                                                  add_model_tensors(*run.config.model, "", shown);
                                              },
                                              [&] {
                                                if (transport.rank() == 0)
                                                  add_model_tensors(*run.config.model, "",
                                                                    of_average);
                                              }});
      check_same_tensors(before, run.trainer->state());
      run.steps(2);
      check_same_tensors(TrainerRun(recipe_config(R"({"ema": {}})"), transport).state_after(5),
                         run.trainer->state());
      const LoaderSettings settings{.seed = run.config.seed,
                                    .augment = run.config.data.augment,
                                    .batch_size = 4,
                                    .rank = transport.rank(),
                                    .ranks = ranks};
      Loader loader(*run.config.data.dataset, settings, *run.backend, DType::kFloat64);
      loader.start(0, 0);
      for (int k = 0; k < kBatches; ++k) {
        const Tensor images = loader.next()["image"];
        const auto numbers = images.span<double>();
        const double rows = static_cast<double>(numbers.size()) / 3;
        for (std::size_t c = 0; c < 3; ++c) {
          double sum = 0.0, squares = 0.0;
          for (std::size_t i = c; i < numbers.size(); i += 3) sum += numbers[i];
          for (std::size_t i = c; i < numbers.size(); i += 3)
            squares += std::pow(numbers[i] - sum / rows, 2);
          const std::lock_guard lock(mutex);
          mean[c] += sum / rows / kBatches / ranks;
          variance[c] += squares / (rows - 1) / kBatches / ranks;
        }
      }
    });
    for (const SafetensorsFile* file : {&shown, &of_average}) {
      for (std::size_t c = 0; c < 3; ++c) {
        CHECK(test::numbers_in(*file, "0.running_mean")[c] ==
              doctest::Approx(mean[c]).epsilon(1e-12));
        CHECK(test::numbers_in(*file, "0.running_var")[c] ==
              doctest::Approx(variance[c]).epsilon(1e-12));
      }
    }
    // of another model
    CHECK(test::numbers_in(shown, "2.running_mean") !=
          test::numbers_in(of_average, "2.running_mean"));
  }
}

TEST_CASE(
    "recipe/batch_norm: synchronized, ranks with a part of a batch each train as one rank with all "
    "of it") {
  const std::vector<nlohmann::json> models = {
      nlohmann::json::parse(
          R"({"type": "sequential", "layers": [{"type": "batch_norm"}, {"type": "conv2d", "out_channels": 5,
        "kernel_size": 3}, {"type": "batch_norm", "momentum": 0.3}, {"type": "relu"}, {"type": "flatten"},
        {"type": "linear", "out_features": 4}]})"),
      // norms with residuals, and with two readers
      nlohmann::json::parse(R"({"type": "resnet20", "num_classes": 4, "layers": null})"),
      nlohmann::json::parse(
          R"({"type": "sequential", "layers": [{"type": "flatten"}, {"type": "linear", "out_features": 6},
        {"type": "batch_norm"}, {"type": "relu"}, {"type": "linear", "out_features": 4}]})")};  // of 8 ranks each has one value a channel
  for (const nlohmann::json& model : models) {
    CAPTURE(model.dump());
    const auto state_of = [&](int ranks, const char* statistics, std::int64_t accumulate) {
      nlohmann::json json =
          recipe_config(R"({"sync": {"algorithm": "allreduce", "topology": null}})");
      json["model"] = model;
      if (model.contains("num_classes")) json["model"].erase("layers");
      json["sync"]["batch_norm"] = statistics;
      json["batch_size"] = 8 / ranks;
      json["accumulate"] = accumulate;
      SafetensorsFile state;
      FakeWorld(ranks).run([&](Transport& transport) {
        SafetensorsFile of_rank = TrainerRun(json, transport).state_after(4);
        if (transport.rank() == ranks - 1) state = std::move(of_rank);
      });
      return state;
    };
    for (const std::int64_t accumulate : {1, 2}) {
      CAPTURE(accumulate);
      const SafetensorsFile whole = state_of(1, "sync", accumulate);
      check_same_tensors(whole, state_of(1, "local", accumulate));
      for (const int ranks : {2, &model == &models.back() ? 8 : 4}) {
        CAPTURE(ranks);
        CHECK(test::farthest_in(whole, state_of(ranks, "sync", accumulate), "model.") < 1e-9);
        if (ranks == 8) continue;
        CHECK(test::farthest_in(whole, state_of(ranks, "local", accumulate), "model.") > 1e-4);
      }
    }
  }
}

TEST_CASE(
    "recipe/batch_norm: synchronized in fp32, ranks of one sample each are as exact as one of all, "
    "far from zero too") {
  const auto state_of = [](const char* precision, int ranks) {
    nlohmann::json json = recipe_config(
        R"({"sync": {"algorithm": "allreduce", "topology": null, "batch_norm": "sync"},
      "data": {"normalize": {"mean": [-20, -20, -20], "std": [1, 1, 1]}},
      "model": {"layers": [{"type": "flatten"}, {"type": "linear", "out_features": 64}, {"type": "batch_norm", "momentum": 1},
        {"type": "linear", "out_features": 4}]}})");
    json["precision"] = precision;
    json["batch_size"] = 8 / ranks;
    SafetensorsFile state;
    FakeWorld(ranks).run([&](Transport& transport) {
      SafetensorsFile of_rank = TrainerRun(json, transport).state_after(1);
      if (transport.rank() == 0) state = std::move(of_rank);
    });
    return state;
  };
  const SafetensorsFile exact = state_of("fp64", 1), whole = state_of("fp32", 1),
                        parts = state_of("fp32", 8);
  for (const std::string name :
       {"model.2.running_var", "model.2.running_mean", "model.1.weight", "model.3.weight"}) {
    CAPTURE(name);
    const std::vector<double> right = test::numbers_in(exact, name);
    const auto error = [&](const SafetensorsFile& state) {
      const std::vector<float> found = test::numbers_in<float>(state, name);
      double sum = 0.0;
      for (std::size_t i = 0; i < right.size(); ++i)
        sum += std::abs(static_cast<double>(found.at(i)) - right[i]);
      return sum;
    };
    CHECK(error(parts) < 2.0 * error(whole));
  }
}

TEST_CASE("recipe/init: tensors that a pattern skips keep their own initialisation") {
  const Folder folder;
  FakeWorld(1).run([&](Transport& transport) {
    SafetensorsFile file, fresh;
    {
      TrainerRun run(recipe_config(R"({"seed": 7})"), transport);
      run.steps(2);
      add_model_tensors(*run.config.model, "", file);
      TrainerRun other(recipe_config(), transport);
      add_model_tensors(*other.config.model, "", fresh);
    }
    file.tensors["head.weight"] = {DType::kFloat32, Shape{1}, std::vector<std::byte>(4)};
    file.tensors["6.weight"] = {DType::kFloat64, Shape{3, 144},
                                std::vector<std::byte>(3 * 144 * 8)};
    const std::string path = folder / "start.safetensors";
    write_safetensors(path, file);
    nlohmann::json json = recipe_config();
    json["init"] = {{"file", path}, {"skip", {"6.*", "head.?eight"}}};
    TrainerRun run(json, transport);
    SafetensorsFile loaded;
    add_model_tensors(*run.config.model, "", loaded);
    for (const auto& [name, tensor] : loaded.tensors) {
      CAPTURE(name);
      CHECK(tensor.bytes == (name.rfind("6.", 0) == 0 ? fresh : file).tensors.at(name).bytes);
    }
    CHECK(test::numbers_in(loaded, "1.weight") != test::numbers_in(fresh, "1.weight"));
    json["init"]["adapter"] = "";
    CHECK(run.config.resolved["init"] == json["init"]);
    // A text is its file.
    CHECK(read_train_config(recipe_config(R"({"init": "a.safetensors"})"), "test", {1, 1})
              .resolved["init"] == "a.safetensors");
    CHECK(read_train_config(recipe_config(), "test", {1, 1}).resolved["init"] == "");

    const auto refusal = [&](const std::vector<std::string>& skip) {
      return error_of(ExitCode::kUsage, [&] {
        const TrainConfig config = read_train_config(recipe_config(), "test", {1, 1});
        check_initial_file({path, skip}, *config.model);
      });
    };
    std::string text = refusal({});
    for (const char* part : {"start.safetensors: tensor 6.weight has shape 3×144, needed: 4×144",
                             R"("skip": ["6.*"])"})
      CHECK(contains(text, part));
    CHECK(text.find('\n') == std::string::npos);
    CHECK(contains(refusal({"6.*"}), "tensor head.weight does not belong to the model"));
    CHECK(contains(refusal({"6.*", "fc.*"}), "init.skip: 'fc.*' is the name of no tensor"));
    file.tensors.erase("head.weight");
    file.tensors.erase("1.bias");
    write_safetensors(path, file);
    CHECK(contains(refusal({"6.*"}), "tensor 1.bias is missing"));
    CHECK_NOTHROW(check_initial_file({path, {"6.*", "1.*"}},
                                     *read_train_config(recipe_config(), "test", {1, 1}).model));

    // A front that no tool is known by is named.
    SafetensorsFile fronted;
    for (const auto& [name, tensor] : loaded.tensors) fronted.tensors["net.body." + name] = tensor;
    write_safetensors(path, fronted);
    CHECK(contains(refusal({}), "as the others are; take 'net.body.' off the file's names"));
    // Other tools' prefixes go; what is skipped may be of a dtype and rank that nobody here knows.
    SafetensorsFile wrapped;
    for (const auto& [name, tensor] : loaded.tensors)
      wrapped.tensors["module._orig_mod." + name] = tensor;
    write_safetensors(path, wrapped);
    std::string bytes = folder.read("start.safetensors");
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    nlohmann::json header = nlohmann::json::parse(bytes.substr(8, length));
    const std::uint64_t end = bytes.size() - 8 - length;
    header["module._orig_mod.head.weight"] = {{"dtype", "F8_E4M3"},
                                              {"shape", {1, 1, 1, 1, 1, 1, 1, 3}},
                                              {"data_offsets", {end, end + 3}}};
    const std::string text_of_header = header.dump(), data = bytes.substr(8 + length) + "abc";
    length = text_of_header.size();
    folder.write(
        "start.safetensors",
        std::string(reinterpret_cast<const char*>(&length), sizeof length) + text_of_header + data);
    CHECK(contains(refusal({}), "dtype \"F8_E4M3\" is not among"));
    nlohmann::json prefixed = recipe_config();
    prefixed["init"] = {{"file", path}, {"skip", {"head.*"}}};
    TrainerRun again(prefixed, transport);
    SafetensorsFile from_wrapped;
    add_model_tensors(*again.config.model, "", from_wrapped);
    check_same_tensors(loaded, from_wrapped);
    folder.write("start.safetensors", "no tensors at all");
    CHECK(refusal({}).find('\n') == std::string::npos);
  });
}

TEST_CASE("recipe/best: one that is being written, or of a run that is no more, does not count") {
  const Folder folder;
  const CheckpointFolder checkpoints(folder.path());
  CHECK_FALSE(checkpoints.best());
  SafetensorsFile file;
  file.metadata["step"] = "4";
  checkpoints.begin_best();
  checkpoints.write_best(0, file);
  CHECK_FALSE(checkpoints.best());
  checkpoints.begin_best();  // again, after an interruption
  checkpoints.complete_best({4, "test_loss", 0.5}, {checkpoints.write_best(0, file)});
  CHECK(checkpoints.best()->value == 0.5);
  CHECK_FALSE(checkpoints.newest());  // --resume does not look at it
  checkpoints.begin_best();
  checkpoints.complete_best({6, "test_loss", 0.25}, {});
  CHECK(checkpoints.best()->step == 6);
  // Stopped between its two renames: the one before is there under another name.
  std::filesystem::rename(folder / "checkpoints/best", folder / "checkpoints/best.old");
  CHECK(checkpoints.best()->step == 6);
  checkpoints.begin_best();
  checkpoints.complete_best({8, "test_loss", 0.125}, {});
  CHECK(checkpoints.best()->step == 8);
  CHECK_FALSE(std::filesystem::exists(folder / "checkpoints/best.old"));
  // What was best after the step that a run goes on from is not its best.
  folder.write("checkpoints/best/DONE",
               R"({"step": 1000, "metric": "test_accuracy", "value": 2.0})");
  CHECK(train_to_end(recipe_config(R"({"checkpoint": {"best": true}})"), folder.path(), 1) ==
        ExitCode::kOk);
  CHECK(checkpoints.best()->step <= 8);
}

TEST_CASE("recipe/best: a damaged one is named and set aside, and the next test makes a new one") {
  const Folder folder;
  const CheckpointFolder checkpoints(folder.path());
  SafetensorsFile file;
  file.metadata["step"] = "4";
  const auto fill = [&] {
    checkpoints.begin_best();
    checkpoints.complete_best({4, "test_accuracy", 0.5}, {checkpoints.write_best(0, file)});
  };
  fill();
  const std::string name = "checkpoints/best/DONE", done = test::read_text(folder / name);
  const auto error = [&] {
    return test::error_of(ExitCode::kUsage, [&] { (void)checkpoints.best(); });
  };
  // other damage is output_checkpoint_test.cpp's
  for (const std::string& text : {std::string(), std::string("step 4\n"), done + "\n"}) {
    CAPTURE(text);
    folder.write(name, text);
    CHECK(contains(error(), folder / name));
  }
  std::filesystem::remove(folder / name);
  CHECK(contains(error(), folder / name));
  fill();
  const std::string rank_file = folder / "checkpoints/best/rank-0.safetensors";
  std::filesystem::resize_file(rank_file, 3);
  CHECK(contains(error(), rank_file));
  std::filesystem::remove(rank_file);
  CHECK(contains(error(), rank_file));
  CHECK(checkpoints.set_best_aside().empty());
  CHECK_FALSE(checkpoints.best());
  CHECK(std::filesystem::exists(folder / "checkpoints/best.damaged/DONE"));
  fill();
  CHECK(checkpoints.best()->step == 4);
  // Of an older version, without a checksum.
  folder.write(name, R"({"step": 3, "metric": "test_loss", "value": 2.0})");
  CHECK(checkpoints.best()->step == 3);
  folder.write(name, R"({"step": 3, "metric": "test_loss", "value": 2.0, "checksun": "0"})");
  CHECK(contains(error(), "'checksun'"));
}

TEST_CASE("freeze: frozen parameters and their norms' statistics keep every bit") {
  const Program program;
  program.write("run.json", R"({
    "data": {"type": "synthetic", "limit": 64, "test_limit": 16, "image_size": 8},
    "model": {"type": "sequential", "layers": [
      {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
      {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
      {"type": "flatten"}, {"type": "linear", "out_features": 10}]},
    "batch_size": 4, "steps": 6, "threads": 1, "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9},
    "log_every": 1, "tensorboard": false, "evaluate": {"every_epochs": 0},
    "checkpoint": {"every_steps": 3}, "sync": {"transport": "mpi"}})");
  program.play(R"table(
0 2 | something to begin with | done | run.json --output first
let frozen = init=first/model.safetensors | optimizer.freeze=["^0\\.", "^1\\."] | seed=5
0 2 | a part of it stays | done | run.json --output tuned | $frozen
0 2 | stopped | done | run.json --output part | $frozen | steps=3
0 2 | and resumed | continuing after step 3 | run.json --output part --resume latest | $frozen
same tuned part
0 2 | statistics measured anew | done | run.json --output recalibrated | $frozen | sync.batch_norm=recalibrate | sync.recalibrate_batches=3
0 2 | statistics of all ranks | done | run.json --output synced | $frozen | sync.batch_norm=sync | sync.algorithm=allreduce
0 2 | the norm alone | done | run.json --output norm | init=first/model.safetensors | optimizer.freeze=["^4\\."]
0 1 | with right gradients | gradients agree with central differences | run.json --check-gradients | $frozen
2 1 | a name that is not there | optimizer\.freeze: 'bn1' is in the name of no parameter; names are 0\.weight, …, 7\.bias | run.json --dry-run | optimizer.freeze=["bn1"]
2 1 | no regular expression | optimizer\.freeze: '\(' is no regular expression | run.json --dry-run | optimizer.freeze=["("]
2 1 | all of it | no trainable parameter takes part in the loss, so there is nothing to train | run.json --dry-run | optimizer.freeze=["."]
2 2 | other ones at a resume | for optimizer.freeze, the checkpoint was made with | run.json --output part --resume latest | init=first/model.safetensors | optimizer.freeze=["^0\\."] | seed=5
)table");
  const SafetensorsFile first = read_safetensors("first/model.safetensors");
  const auto stays = [&](const std::string& run, const std::string& frozen) {
    const SafetensorsFile model = read_safetensors(run + "/model.safetensors");
    for (const auto& entry : model.tensors) {
      const std::string& name = entry.first;
      CAPTURE(run);
      CAPTURE(name);
      const bool same = entry.second.bytes == first.tensors.at(name).bytes;
      CHECK(same == (frozen.find(name[0]) != std::string::npos));
    }
  };
  stays("tuned", "01");
  stays("recalibrated", "01");
  stays("synced", "01");
  stays("norm", "4");
}

}  // namespace starling
