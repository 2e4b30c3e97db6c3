#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/training/config/plugins.h"
#include "apps/training/device/device.h"
#include "apps/training/training_run.h"
#include "core/config.h"
#include "tests/apps/trainer_run.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace starling {
namespace {

/// All parameters of a rank, in the model's order.
using Numbers = std::vector<float>;

nlohmann::json config_of(const char* precision, const char* patch = "{}") {
  nlohmann::json config = nlohmann::json::parse(R"({
    "model": {"type": "mlp", "num_classes": 4, "hidden": [16]},
    "data": {"type": "synthetic", "image_size": 4, "classes": 4, "limit": 256, "test_limit": 32},
    "batch_size": 8, "steps": 30, "optimizer": {"type": "adamw", "lr": 0.01}, "sync": {"bucket_mb": 0.001, "topology": {"type": "ring"}},
    "threads": 1})");
  config["precision"] = precision;
  config.merge_patch(nlohmann::json::parse(patch));
  return config;
}

/// Precisions that a user is refused on a CPU compute there too, slowly.
struct RunInPrecision : test::TrainerRun {
  RunInPrecision(const nlohmann::json& json, Transport& ranks, const LossScaleSettings& scale = {})
      : TrainerRun(json, ranks, [&](TrainConfig& of_run) { of_run.state.loss_scale = scale; }) {}
  Numbers numbers() const {
    Numbers result;
    for (const Parameter* parameter : config.model->parameters()) {
      std::vector<float> values(static_cast<std::size_t>(parameter->value.elements()));
      parameter->value.backend().copy_to_host(parameter->value, values.data());
      result.insert(result.end(), values.begin(), values.end());
    }
    return result;
  }
};

/// What a rank showed after each step (index 0: before the first).
struct History {
  std::vector<Numbers> parameters;
  std::vector<LossScaleState> scale;
};

/// `wild` rank starts with a loss scale that overflows fp16.
std::vector<History> run_steps(const nlohmann::json& json, int ranks, int steps, int wild,
                               double wild_scale) {
  std::vector<History> histories(static_cast<std::size_t>(ranks));
  FakeWorld(ranks).run([&](Transport& transport) {
    RunInPrecision run(json, transport,
                       {.initial = transport.rank() == wild ? wild_scale : 1024.0});
    History& history = histories[static_cast<std::size_t>(transport.rank())];
    const auto note = [&] {
      history.parameters.push_back(run.numbers());
      history.scale.push_back(run.trainer->loss_scaler()->settle());
      CHECK(run.low_is_current());
    };
    note();
    for (int i = 0; i < steps; ++i) {
      run.trainer->step();
      note();
    }
    run.trainer->finish();
  });
  return histories;
}

double largest_difference(const Numbers& a, const Numbers& b) {
  double largest = 0.0;
  REQUIRE(a.size() == b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return largest;
}

TEST_CASE(
    "precision: fp16 in gossip, an overflow is one rank's own: it takes the mix alone and halves "
    "its scale") {
  register_builtins();
  // 2^40 overflows in the first steps, and goes on to do so: every one of these steps is skipped on
  // rank 1.
  const auto ranks = run_steps(config_of("fp16"), 2, 3, 1, 0x1p40);
  const History &calm = ranks[0], &wild = ranks[1];
  CHECK(wild.parameters[1] == wild.parameters[0]);  // x(1) = c(0) = x(0)
  CHECK(largest_difference(calm.parameters[1], calm.parameters[0]) > 1e-3);
  for (std::size_t t = 1; t < 3; ++t) {
    Numbers mixed = calm.parameters[t];
    for (std::size_t i = 0; i < mixed.size(); ++i)
      mixed[i] = 0.5F * mixed[i] + 0.5F * wild.parameters[t][i];
    CHECK(largest_difference(wild.parameters[t + 1], mixed) <= 1e-7);
    CHECK(largest_difference(calm.parameters[t + 1], mixed) > 1e-3);
  }
  CHECK(wild.scale[3].scale == 0x1p37);
  CHECK(wild.scale[3].optimizer_step == 1);
  CHECK(calm.scale[3].scale == 1024.0);
  CHECK(calm.scale[3].optimizer_step == 4);
}

TEST_CASE(
    "precision: fp16 in gossip, the scale falls until steps are clean, and the optimizer's s "
    "counts those alone") {
  register_builtins();
  const auto ranks = run_steps(config_of("fp16"), 2, 30, 1, 0x1p24);
  const LossScaleState& last = ranks[1].scale.back();
  CHECK(last.scale < 0x1p24);
  CHECK(last.scale >= 1.0);
  const double halvings = std::log2(0x1p24 / last.scale);
  CHECK(halvings >= 1.0);
  CHECK(last.optimizer_step == 31 - static_cast<std::int64_t>(halvings));
  CHECK(ranks[0].scale.back().optimizer_step == 31);
  for (const float value : ranks[1].parameters.back()) CHECK(std::isfinite(value));
}

TEST_CASE("precision: fp16, the first update that is not skipped is the optimizer's first") {
  register_builtins();
  FakeWorld(1).run([&](Transport& transport) {
    RunInPrecision run(
        config_of("fp16", R"({"optimizer": {"type": "adamw", "lr": 0.01, "weight_decay": 0}})"),
        transport, {.initial = 0x1p60});
    const Numbers start = run.numbers();
    for (int i = 0; i < 4; ++i) run.trainer->step();
    CHECK(run.numbers() == start);
    run.trainer->loss_scaler()->settle();
    run.trainer->loss_scaler()->restore({1024.0, 0, 1});
    run.trainer->step();
    // Adam's first step is lr in every direction, whatever the gradient; with s = 5 it would be
    // 0.55 lr.
    CHECK(std::abs(largest_difference(run.numbers(), start) - 0.01) < 1e-4);
  });
}

TEST_CASE("precision: fp16 in all-reduce, one rank's overflow is everybody's") {
  register_builtins();
  const auto json = config_of("fp16", R"({"sync": {"algorithm": "allreduce", "topology": null}})");
  std::vector<History> histories(3);
  FakeWorld(3).run([&](Transport& transport) {
    RunInPrecision run(json, transport, {.initial = 1024.0});
    History& history = histories[static_cast<std::size_t>(transport.rank())];
    for (int step = 0; step < 3; ++step) {
      // Step 2 overflows on rank 1 alone.
      history.parameters.push_back(run.numbers());
      history.scale.push_back(run.trainer->loss_scaler()->settle());
      const bool spoiled = step == 1 && transport.rank() == 1;
      if (spoiled) run.trainer->loss_scaler()->restore({0x1p60, 0, 2});
      run.trainer->step();
      if (!spoiled) continue;
      CHECK(run.trainer->loss_scaler()->settle().scale == 0x1p59);
      run.trainer->loss_scaler()->restore({512.0, 0, 2});
    }
    history.parameters.push_back(run.numbers());
    history.scale.push_back(run.trainer->loss_scaler()->settle());
    CHECK(run.low_is_current());
    run.trainer->finish();
  });
  for (const History& history : histories) {
    CHECK(history.parameters[1] == histories[0].parameters[1]);
    CHECK(history.parameters[3] == histories[0].parameters[3]);
    CHECK(largest_difference(history.parameters[1], history.parameters[0]) > 1e-3);
    CHECK(history.parameters[2] == history.parameters[1]);  // the step that rank 1 spoiled
    CHECK(largest_difference(history.parameters[3], history.parameters[2]) > 1e-3);
    CHECK(history.scale[2].optimizer_step == 2);
    CHECK(history.scale[2].scale == 512.0);
    CHECK(history.scale[3].optimizer_step == 3);
  }
}

TEST_CASE(
    "precision: low precision trains as fp32 does, with clipping and several micro-batches too") {
  register_builtins();
  const auto final_numbers = [](const nlohmann::json& json) {
    std::vector<Numbers> result(2);
    FakeWorld(2).run([&](Transport& transport) {
      RunInPrecision run(json, transport);
      run.steps(10);
      if (run.config.device.compute != DType::kFloat32) CHECK(run.low_is_current());
      result[static_cast<std::size_t>(transport.rank())] = run.numbers();
    });
    return result;
  };
  for (
      const char* patch :
      {R"({"optimizer": {"type": "sgd", "lr": 0.05}})",
       R"({"optimizer": {"type": "sgd", "lr": 0.05}, "clip_norm": 0.5, "accumulate": 2})",
       R"({"optimizer": {"type": "sgd", "lr": 0.05}, "sync": {"algorithm": "allreduce", "topology": null}})"}) {
    CAPTURE(patch);
    const auto full = final_numbers(config_of("fp32", patch));
    for (const char* precision : {"bf16", "fp16"}) {
      CAPTURE(precision);
      const auto low = final_numbers(config_of(precision, patch));
      CHECK(low != full);
      for (std::size_t rank = 0; rank < 2; ++rank)
        CHECK(largest_difference(low[rank], full[rank]) < 0.02);
    }
  }
}

TEST_CASE(
    "precision: evaluation reads low-precision copies of the mean model, and leaves a rank's own "
    "as they were") {
  register_builtins();
  FakeWorld(2).run([&](Transport& transport) {
    RunInPrecision run(config_of("bf16"), transport);
    run.steps(3);
    const Numbers before = run.numbers();
    const auto low = [&] { return run.config.model->parameters()[0]->low.raw(); };
    const auto* own_low = low();
    int looked = 0;
    run.trainer->test([&](const EvaluationResult&) {
      ++looked;
      CHECK(run.low_is_current());
      CHECK(low() != own_low);
      CHECK(run.numbers() != before);
    });
    CHECK(looked == 1);
    CHECK(low() == own_low);
    CHECK(run.low_is_current());
    CHECK(run.numbers() == before);
  });
}

TEST_CASE(
    "precision: a checkpoint keeps fp16's scale, its row of clean steps, and the optimizer's s, "
    "per rank") {
  register_builtins();
  const auto json =
      config_of("fp16", R"({"optimizer": {"type": "accum_adamw", "lr": 0.01, "accum_iter": 3}})");
  std::vector<Numbers> straight(2), resumed(2);
  FakeWorld(2).run([&](Transport& transport) {
    const auto r = static_cast<std::size_t>(transport.rank());
    const LossScaleSettings scale{.initial = transport.rank() == 0 ? 1024.0 : 0x1p22,
                                  .growth_interval = 5};
    SafetensorsFile file;
    LossScaleState saved;
    {
      RunInPrecision run(json, transport, scale);
      run.steps(9);
      saved = run.trainer->loss_scaler()->settle();
      file = run.trainer->state();
      run.steps(9);
      straight[r] = run.numbers();
    }
    RunInPrecision run(json, transport, scale);
    check_resumable(file, "test", run.config.resolved, run.config.written, 2, DType::kFloat16);
    CHECK_THROWS_WITH_AS(
        check_resumable(file, "test", run.config.resolved, run.config.written, 2, DType::kFloat32),
        doctest::Contains("precision: the checkpoint was made in fp16"), Error);
    run.trainer->resume(file, "test");
    const LossScaleState restored = run.trainer->loss_scaler()->settle();
    CHECK(restored.scale == saved.scale);
    CHECK(restored.clean_steps == saved.clean_steps);
    CHECK(restored.optimizer_step == saved.optimizer_step);
    CHECK(run.low_is_current());
    run.steps(9);
    resumed[r] = run.numbers();
  });
  CHECK(resumed == straight);
  CHECK(straight[0] != straight[1]);
}

/// Trains to the end in fp16 on two ranks, of which rank 1 starts with a scale of its own.
ExitCode train_two(const nlohmann::json& json, const LossScaleSettings& wild,
                   const std::string& folder) {
  std::filesystem::create_directories(folder);
  ExitCode result = ExitCode::kInternal;
  FakeWorld(2).run([&](Transport& transport) {
    RunInPrecision run(json, transport, transport.rank() == 1 ? wild : LossScaleSettings{});
    const ExitCode code = TrainingRun(*run.trainer, folder).run();
    if (transport.rank() == 0) result = code;
  });
  return result;
}

TEST_CASE(
    "precision: fp16, skipped steps are no divergence; an endless row of them is, and so is a loss "
    "that is not finite") {
  register_builtins();
  const test::Folder folder;
  const nlohmann::json json = config_of("fp16", R"({"log_every": 1, "tensorboard": false})");
  CHECK(train_two(json, {.initial = 0x1p24}, (folder / "a")) == ExitCode::kOk);
  const nlohmann::json summary = read_json_file((folder / "a") + "/summary.json");
  CHECK(summary["precision"] == "fp16");
  CHECK(summary["steps"] == 30);
  CHECK(summary["skipped_steps"] >= 4);
  CHECK(summary["skipped_steps"] < 15);

  const auto fails = [&](const nlohmann::json& config, const LossScaleSettings& wild,
                         const char* name) {
    return test::error_of(ExitCode::kDiverged, [&] { train_two(config, wild, folder / name); });
  };
  const std::string endless = fails(json, {.initial = 0x1p60, .least = 0x1p58}, "b");
  CHECK(test::contains(endless, "step 3"));
  CHECK(test::contains(endless, "overflow fp16"));
  const std::string nan = fails(
      config_of(
          "fp16",
          R"({"log_every": 1, "tensorboard": false, "optimizer": {"type": "sgd", "lr": 1e30}})"),
      {}, "c");
  CHECK(test::contains(nan, "the loss of step"));
}

TEST_CASE("precision: a run goes on in the checkpoint's format, whatever word led to it") {
  SafetensorsFile file;
  file.metadata = {{"format", "starling-checkpoint-1"}, {"ranks", "2"}};
  // What a checkpoint of a config with the word `saved` that computed in `made` ("": does not say)
  // tells a run of `given` that computes `now`.
  const auto answer = [&](const char* saved, const std::string& made, const char* given,
                          DType now) -> std::string {
    file.metadata["config"] = config_of(saved).dump();
    file.metadata.erase("precision");
    if (!made.empty()) file.metadata["precision"] = made;
    return test::error_text(ExitCode::kUsage, [&] {
      check_resumable(file, "state", config_of(given), config_of(given), 2, now);
    });
  };
  const auto refused_for = [](const std::string& text, const std::string& remedy) {
    CHECK(test::contains(
        text, "precision: the checkpoint was made in " + remedy + ", this run computes in"));
    CHECK(test::contains(text, "add --set precision=" + remedy));
  };
  for (const std::string made : {"fp32", ""}) {  // older checkpoints do not say
    CAPTURE(made);
    CHECK(answer("auto", made, "auto", DType::kFloat32).empty());
    refused_for(answer("auto", made, "auto", DType::kBFloat16), "fp32");
    CHECK(answer("auto", made, "fp32", DType::kFloat32).empty());
    CHECK(answer("fp32", made, "auto", DType::kFloat32).empty());
    refused_for(answer("fp32", made, "bf16", DType::kBFloat16), "fp32");
  }
  CHECK(answer("fp64", "", "fp64", DType::kFloat64).empty());
  refused_for(answer("fp64", "", "fp32", DType::kFloat32), "fp64");
  refused_for(answer("auto", "bf16", "auto", DType::kFloat32), "bf16");
  CHECK(answer("auto", "bf16", "bf16", DType::kBFloat16).empty());
  // Everything else is compared as ever.
  nlohmann::json other = config_of("auto");
  other["accumulate"] = 4;
  CHECK_THROWS_WITH_AS(check_resumable(file, "state", other, other, 2, DType::kBFloat16),
                       doctest::Contains("accumulate"), Error);
}

TEST_CASE(
    "device: auto says why it takes the CPU where some rank has a GPU or a driver, and nothing "
    "elsewhere") {
  CHECK(why_not_gpus({"-"}).empty());
  CHECK(why_not_gpus({"-", "-", "-"}).empty());
  CHECK(why_not_gpus({"+"}).empty());
  CHECK(why_not_gpus({"+", "+"}).empty());
  CHECK(why_not_gpus({"+", "-", "-"}) ==
        "device auto: the CPU, because 2 of 3 ranks cannot use a GPU; rank 1: its host has no "
        "NVIDIA driver");
  CHECK(why_not_gpus({"+", "!no free GPU"}) ==
        "device auto: the CPU, because 1 of 2 ranks cannot use a GPU; rank 1: no free GPU");
  CHECK(why_not_gpus({"!no plug-in"}) ==
        "device auto: the CPU, because 1 of 1 rank cannot use a GPU; rank 0: no plug-in");
  CHECK(test::contains(why_not_gpus({"-", "!no plug-in"}), "2 of 2 ranks"));
}

TEST_CASE("precision: what a config's word means") {
  register_builtins();
  const auto read = [](const char* precision, const char* patch = "{}") {
    return read_train_config(config_of(precision, patch), "test", {2, 2});
  };
  CHECK(read("fp32").device.compute == DType::kFloat32);
  CHECK(read("fp64").device.compute == DType::kFloat64);
  CHECK(read("fp64").device.dtype == DType::kFloat64);
  CHECK(read("bf16").device.compute == DType::kBFloat16);
  CHECK(read("bf16").device.dtype == DType::kFloat32);
  CHECK(read("fp16").device.compute == DType::kFloat16);
  CHECK(read("bf16").sync.in_backward);
  CHECK_FALSE(read("fp16").sync.in_backward);
  CHECK(read("fp16").resolved["sync"]["update"] == "after_backward");
  CHECK(read("auto", R"({"device": "cuda"})").device.compute == DType::kBFloat16);
  CHECK(read("auto").resolved["precision"] == "auto");
  const TrainConfig gpu =
      read("fp32", R"({"tf32": true, "cudnn_benchmark": true, "deterministic": false})");
  CHECK(gpu.device.tf32);
  CHECK(gpu.device.cudnn_benchmark);
  CHECK_FALSE(gpu.device.deterministic);
}

}  // namespace
}  // namespace starling
