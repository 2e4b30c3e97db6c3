// Keys of how a model is trained: the moving average, statistics of batch norms, and a file to
// start from.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "apps/inference/model_file.h"
#include "apps/training/estimates/report.h"
#include "apps/training/state/init_file.h"
#include "comm/agreement.h"
#include "tests/apps/data_test_support.h"
#include "tests/apps/recipe_run.h"
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
using test::lines_with;
using test::recipe_config;
using test::train_to_end;
using test::TrainerRun;
using test::value_of;

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
  CHECK(lines_with(folder.path(), "test_ema_accuracy").size() == 4);
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

}  // namespace starling
