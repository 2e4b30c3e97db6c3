// A run that goes on with another number of ranks: which samples are left of an epoch, where steps
// lie, and what the ranks' mean is.
#include "apps/training/state/elastic.h"

#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/data/loader.h"
#include "apps/training/config/plugins.h"
#include "apps/training/joining.h"
#include "apps/training/state/state_transfer.h"
#include "apps/training/training_run.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
#include "trainer_run.h"

using namespace starling;
using nlohmann::json;
using test::contains;
using test::error_of;
using test::fails;
using test::TrainerRun;
using Place = RunLength::Place;

namespace {

FileTensor fp32(const std::vector<float>& values) {
  FileTensor tensor{DType::kFloat32, Shape{static_cast<std::int64_t>(values.size())}, {}};
  tensor.bytes.resize(values.size() * sizeof(float));
  std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
  return tensor;
}

std::string text(double value) { return fmt::format("{:a}", value); }

/// Rank i of `made` had x = i + 1, loss sums of i, and a weight of its own.
SafetensorsFile file_of(int rank) {
  SafetensorsFile file;
  const auto x = static_cast<float>(rank + 1);
  file.tensors["model.w"] = fp32({x, 0.1F});
  file.tensors["model.mean"] = fp32({x});
  file.tensors["optimizer.m.w"] = fp32({-x, 0.0F});
  file.tensors["sync.residual.w"] = fp32({x});
  file.metadata = {{"loss_sum", text(rank)},
                   {"loss_count", "3"},
                   {"train_seconds", text(10 + rank)},
                   {"loss_scale", text(1024 >> rank)},
                   {"optimizer_step", std::to_string(7 + rank)},
                   {"mean_weight", text(rank == 0   ? 1.5
                                        : rank == 1 ? 0.5
                                                    : 1.0)},
                   {"ranks", "4"}};
  return file;
}

/// The mean of four ranks' files on so many.
void on_ranks(int ranks, const std::function<void(const SafetensorsFile&, int rank)>& look) {
  FakeWorld(ranks).run([&](Transport& transport) {
    RankFiles files;
    for (int i = transport.rank(); i < 4; i += ranks)
      files.emplace_back("file " + std::to_string(i), file_of(i));
    look(mean_of_ranks(std::move(files), 4, {"w"}, true, transport.world()), transport.rank());
  });
}

json elastic_run(const json& sync, const json& more = json::object()) {
  register_builtins();
  json config = json::parse(R"({
    "model": {"type": "mlp", "hidden": [8]}, "precision": "fp64",
    "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 240, "test_limit": 16},
    "batch_size": 6, "epochs": 3, "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9}, "schedule": {"type": "cosine"}, "threads": 1,
    "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}})");
  config["sync"] = sync;
  config.update(more, true);
  return config;
}

/// All ranks' files after `count` steps of a run on so many ranks.
std::vector<SafetensorsFile> files_after(const json& config, int ranks, int count) {
  std::vector<SafetensorsFile> files(static_cast<std::size_t>(ranks));
  FakeWorld(ranks).run([&](Transport& transport) {
    files[static_cast<std::size_t>(transport.rank())] =
        TrainerRun(config, transport).state_after(count);
  });
  return files;
}

/// The same after they went on from `from` with other ranks.
std::vector<SafetensorsFile> continued_files(const json& config,
                                             const std::vector<SafetensorsFile>& from, int ranks,
                                             int count) {
  std::vector<SafetensorsFile> files(static_cast<std::size_t>(ranks));
  FakeWorld(ranks).run([&](Transport& transport) {
    const int made = static_cast<int>(from.size());
    RankFiles own;
    for (int i = transport.rank(); i < made; i += ranks)
      own.emplace_back("file", from[static_cast<std::size_t>(i)]);
    const SafetensorsFile mean =
        mean_of_ranks(std::move(own), made, {"1.weight", "1.bias", "3.weight", "3.bias"}, true,
                      transport.world());
    const RankLayout site{ranks, ranks};
    TrainConfig read = read_train_config(config, "test", site);
    std::vector<Stretch> stretches = saved_stretches(mean, "file");
    if (stretches.empty()) stretches = {{.ranks = made, .batch_size = read.length.batch_size}};
    stretches = continued(std::move(stretches), steps_in(mean, "file"), ranks, read.state.elastic);
    TrainerRun run(config, transport, [&](TrainConfig& of_run) {
      of_run.length.batch_size = stretches.back().batch_size;
      of_run.length.stretches = stretches;
    });
    run.trainer->resume(mean, "file");
    files[static_cast<std::size_t>(transport.rank())] = run.state_after(count);
  });
  return files;
}

using Kept = std::vector<std::optional<SafetensorsFile>>;

/// What all ranks keep when one is lost after so many steps.
Kept kept_after(const json& config, int ranks, int count) {
  Kept kept(static_cast<std::size_t>(ranks));
  FakeWorld(ranks).run([&](Transport& transport) {
    TrainerRun run(config, transport);
    for (int i = 0; i < count; ++i) run.trainer->step();
    auto& own = kept[static_cast<std::size_t>(transport.rank())] = run.trainer->handover_state();
    own->metadata[TrainingRun::kLost] = "1";
  });
  return kept;
}

/// The states of the ranks that go on with this in memory, as many steps later.
std::vector<SafetensorsFile> went_on(const json& config, Kept kept, int count) {
  std::vector<SafetensorsFile> files(kept.size());
  FakeWorld(static_cast<int>(kept.size())).run([&](Transport& transport) {
    auto& own = kept[static_cast<std::size_t>(transport.rank())];
    load_deferred_tensors(*own);
    const RankLayout site{transport.size(), transport.size()};
    const TrainConfig read = read_train_config(config, "test", site);
    const std::optional<Handover> handover = plan_handover(&*own, read, transport);
    REQUIRE(handover);
    TrainerRun run(config, transport, [&](TrainConfig& of_run) {
      of_run.length.stretches = handover->stretches;
      if (handover->stretches.empty()) return;
      of_run.length.batch_size = handover->stretches.back().batch_size / handover->replica;
    });
    hand_over(*handover, own, *run.backend, transport);
    run.trainer->resume(*own, "test", handover->after_loss);
    files[static_cast<std::size_t>(transport.rank())] = run.state_after(count);
  });
  return files;
}

}  // namespace

TEST_CASE("elastic/length: a run on one number of ranks lies in its epochs as before") {
  const RunLength length({{0, 4, 8}}, 1000, 1, 3.0, 0);
  CHECK(length.steps_per_epoch == 31);
  CHECK(length.total_steps == 93);
  CHECK(length.place(30) == Place{0, 30});
  CHECK(length.place(31) == Place{1, 0});
  CHECK(length.whole_epochs(62) == 2);
  CHECK(length.whole_epochs(61) == 0);
  CHECK(length.whole_epochs(0) == 0);
  CHECK(length.epochs_at(62) == 2.0);
  CHECK(length.step_of_epoch(1.5) == 47);
  CHECK(length.planned_step(92) == 92);
  CHECK(length.taken().empty());
  CHECK(length.samples_seen(10) == 320);
}

TEST_CASE("elastic/length: other ranks go on in the midst of an epoch") {
  // 4 ranks took 20 · 32 of 1000 samples; 3 ranks with 11 each make 10 updates of the 360 that are
  // left, and 30 of a whole epoch.
  const RunLength length({{0, 4, 8}, {20, 3, 11}}, 1000, 1, 3.0, 0);
  CHECK(length.steps_per_epoch == 30);
  CHECK(length.total_steps == 20 + 10 + 60);
  CHECK(length.place(19) == Place{0, 19});
  CHECK(length.place(20) == Place{0, 0});
  CHECK(length.place(29) == Place{0, 9});
  CHECK(length.place(30) == Place{1, 0});
  CHECK(length.whole_epochs(20) == 0);
  CHECK(length.whole_epochs(30) == 1);
  CHECK(length.whole_epochs(60) == 2);
  CHECK(length.epochs_at(20) == doctest::Approx(0.64));
  CHECK(length.epochs_at(25) == doctest::Approx(0.82));
  CHECK(length.epochs_at(45) == doctest::Approx(1.5));
  CHECK(length.step_of_epoch(0.5) == 16);
  CHECK(length.step_of_epoch(0.82) == 25);
  CHECK(length.step_of_epoch(2.0) == 60);
  CHECK(length.planned_step(20) == 20);
  CHECK(length.planned_step(50) == 51);  // 20 + 30 · 31/30
  CHECK(length.planned_step(89) == 91);
  CHECK(length.taken() == std::vector<TakenBatches>{{4, 8, 20}});
  CHECK(length.continued_epoch() == 0);
  CHECK(length.rest_batches() == 10);
  CHECK(length.batch_ratio(19) == 1.0);
  CHECK(length.batch_ratio(20) == doctest::Approx(33.0 / 32.0));
  CHECK(length.samples_seen(22) == 640 + 66);
  const Interval interval{.every_epochs = 1, .every_steps = 0};
  CHECK(interval.due(30, length));
  CHECK_FALSE(interval.due(31, length));
  CHECK(interval.first_due(20, length) == 30);
  CHECK(interval.first_due(30, length) == 60);
}

TEST_CASE("elastic/length: at an epoch's end, in one epoch twice, and with micro-batches") {
  CHECK(RunLength({{0, 4, 8}, {31, 2, 16}}, 1000, 1, 3.0, 0).taken().empty());
  CHECK(RunLength({{0, 4, 8}, {31, 2, 16}}, 1000, 1, 3.0, 0).place(31) == Place{1, 0});
  const RunLength twice({{0, 4, 8}, {33, 2, 16}, {35, 8, 4}}, 1000, 1, 3.0, 0);
  CHECK(twice.taken() == std::vector<TakenBatches>{{4, 8, 2}, {2, 16, 2}});
  CHECK(twice.continued_epoch() == 1);
  CHECK(twice.total_steps == 93);
  const RunLength micro({{0, 4, 8}, {5, 2, 16}}, 1000, 3, 2.0, 0);
  CHECK(micro.steps_per_epoch == 10);
  CHECK(micro.taken() == std::vector<TakenBatches>{{4, 8, 15}});
  CHECK(micro.rest_batches() == 15);
  // Where nothing is left that all ranks could share, the next epoch begins.
  const RunLength over({{0, 4, 8}, {30, 3, 20}}, 1000, 1, 3.0, 0);
  CHECK(over.rest_batches() == 0);
  CHECK(over.place(30) == Place{1, 0});
  // A run of so many steps has them, and its schedule too.
  const RunLength steps({{0, 4, 8}, {20, 2, 8}}, 1000, 1, 0.0, 93);
  CHECK(steps.total_steps == 93);
  CHECK(steps.planned_step(92) == 92);
}

TEST_CASE(
    "elastic/data: together the ranks take each sample of an epoch once at most, and leave less "
    "than an update") {
  register_builtin_samplers();
  std::vector<float> costs;
  for (int i = 0; i < 500; ++i) costs.push_back(static_cast<float>(1 + i * i % 37));
  for (const char* type : {"shuffle", "load_balanced", "class_balanced"}) {
    CAPTURE(type);
    const json described{{"type", type}};
    ConfigSection section(described, "test.json");
    const std::shared_ptr<Sampler> sampler =
        samplers().make(section.required_text("type", ""), "data.sampler.type", section);
    if (sampler->complexity() != Sampler::Complexity::kNone) sampler->set_complexities(costs);
    std::vector<std::int32_t> classes;
    for (int i = 0; i < 500; ++i) classes.push_back(i % 9 == 0 ? 1 : i % 50 == 1 ? 3 : 0);
    sampler->set_classes(classes);
    REQUIRE(sampler->takes_rest());
    const RunLength length({{0, 4, 8}, {5, 3, 11}, {8, 2, 16}}, 500, 1, 2.0, 0);
    std::multiset<std::int64_t> seen;
    std::int64_t count = 0;
    const auto take = [&](EpochInputs inputs, const TakenBatches& batches,
                          std::span<const std::int64_t> left) {
      inputs.left = left;
      inputs.ranks = batches.ranks;
      inputs.batch_size = batches.batch_size;
      for (inputs.rank = 0; inputs.rank < inputs.ranks; ++inputs.rank) {
        const std::vector<std::int64_t> own = sampler->epoch(inputs);
        REQUIRE(static_cast<std::int64_t>(own.size()) >= batches.batches * batches.batch_size);
        for (std::int64_t i = 0; i < batches.batches * batches.batch_size; ++i, ++count)
          seen.insert(own[static_cast<std::size_t>(i)]);
      }
    };
    const EpochInputs inputs{.seed = 3, .epoch = 0, .samples = 500};
    const std::vector<TakenBatches> taken = length.taken();
    REQUIRE(taken.size() == 2);
    take(inputs, taken[0], {});
    take(inputs, taken[1], left_of_epoch(*sampler, inputs, {taken.data(), 1}));
    take(inputs, {2, 16, length.rest_batches()}, left_of_epoch(*sampler, inputs, taken));
    CHECK(500 - count < 32);
    std::multiset<std::int64_t> all;
    for (const std::int64_t sample : sampler->order(inputs)) all.insert(sample);
    CHECK(all.size() == 500);
    CHECK(std::includes(all.begin(), all.end(), seen.begin(), seen.end()));
    CHECK((std::set(all.begin(), all.end()).size() == 500) == !sampler->repeats());
  }
}

TEST_CASE(
    "elastic/mean: parameters by weight, states and buffers by number, and nothing of one rank's "
    "own") {
  for (const int ranks : {1, 2, 3, 4, 6}) {
    CAPTURE(ranks);
    double losses = 0.0, counts = 0.0;
    std::mutex mutex;
    on_ranks(ranks, [&](const SafetensorsFile& mean, int) {
      const std::lock_guard lock(mutex);
      CHECK(test::numbers_in<float>(mean, "model.w") ==
            std::vector<float>{(1.5F * 1 + 0.5F * 2 + 3 + 4) / 4, 0.1F});
      CHECK(test::numbers_in<float>(mean, "model.mean") == std::vector<float>{2.5F});
      CHECK(test::numbers_in<float>(mean, "optimizer.m.w") == std::vector<float>{-2.5F, 0.0F});
      CHECK(mean.tensors.count("sync.residual.w") == 0);
      CHECK(is_mean_of_ranks(mean));
      CHECK(mean.metadata.at("ranks") == std::to_string(ranks));
      CHECK(std::strtod(mean.metadata.at("train_seconds").c_str(), nullptr) == 13.0);
      CHECK(std::strtod(mean.metadata.at("loss_scale").c_str(), nullptr) == 128.0);
      CHECK(mean.metadata.at("optimizer_step") == "10");
      losses += std::strtod(mean.metadata.at("loss_sum").c_str(), nullptr);
      counts += std::strtod(mean.metadata.at("loss_count").c_str(), nullptr);
    });
    CHECK(losses == 6.0);
    CHECK(counts == 12.0);
  }
}

TEST_CASE("elastic/mean: a file that does not fit is named") {
  FakeWorld world(2, {30.0, 0.0, 0, 2});
  const auto said = [&](const std::function<void(SafetensorsFile&)>& change) {
    std::vector<std::string> texts(2);
    world.run([&](Transport& transport) {
      RankFiles files;
      for (int i = transport.rank(); i < 4; i += 2)
        files.emplace_back("file " + std::to_string(i), file_of(i));
      if (transport.rank() == 1) change(files[1].second);
      texts[static_cast<std::size_t>(transport.rank())] = error_of(ExitCode::kUsage, [&] {
        mean_of_ranks(std::move(files), 4, {"w"}, true, transport.world());
      });
    });
    CHECK(texts[0] == texts[1]);
    return texts[0];
  };
  CHECK(contains(said([](SafetensorsFile& file) { file.tensors.erase("model.w"); }),
                 "file 3: tensor model.w is missing"));
  CHECK(contains(said([](SafetensorsFile& file) {
                   file.tensors["model.mean"] = fp32({1, 2});
                 }),
                 "file 3: tensor model.mean has another shape"));
  CHECK(contains(said([](SafetensorsFile& file) { file.tensors["model.more"] = fp32({1}); }),
                 "file 3: tensor model.more is in no file of rank 0"));
  CHECK(contains(said([](SafetensorsFile& file) { file.metadata.erase("mean_weight"); }),
                 "go on with 4 ranks"));
}

TEST_CASE("elastic/stretches: they are saved, read and continued") {
  SafetensorsFile file;
  CHECK(saved_stretches(file, "f").empty());
  const std::vector<Stretch> stretches{{0, 4, 32}, {6, 3, 43}};
  save_stretches(stretches, file);
  CHECK(saved_stretches(file, "f") == stretches);
  for (
      const char* bad :
      {"", "[]", "{}", R"([{"step": 1, "ranks": 2, "batch_size": 3}])",
       R"([{"step": 0, "ranks": 0, "batch_size": 3}])", R"([{"step": 0, "ranks": 1}])",
       R"([{"step": 0, "ranks": 1, "batch_size": 1}, {"step": 0, "ranks": 2, "batch_size": 1}])"}) {
    file.metadata["stretches"] = bad;
    CHECK(fails(ExitCode::kUsage, "damaged", [&] { saved_stretches(file, "f"); }));
  }
  // The batch of the run's beginning is what is kept, so that it does not wander.
  CHECK(continued(stretches, 9, 4, {}) == std::vector<Stretch>{{0, 4, 32}, {6, 3, 43}, {9, 4, 32}});
  CHECK(continued(stretches, 6, 2, {}) == std::vector<Stretch>{{0, 4, 32}, {6, 2, 64}});
  CHECK(continued(stretches, 9, 2, {.keep_global_batch = false}).back() == Stretch{9, 2, 43});
  CHECK(continued({{0, 2, 1}}, 9, 8, {}).back() == Stretch{9, 8, 1});
}

TEST_CASE("elastic/run: all-reduce on other ranks takes the same steps") {
  const json config = elastic_run({{"algorithm", "allreduce"}}, {{"ema", {{"decay", 0.9}}}});
  const std::vector<SafetensorsFile> straight = files_after(config, 4, 25),
                                     before = files_after(config, 4, 7);
  for (const int ranks : {1, 2, 3, 8}) {
    CAPTURE(ranks);
    const std::vector<SafetensorsFile> after = continued_files(config, before, ranks, 18);
    CHECK(test::farthest_in(straight[0], after[0]) < 1e-12);
    if (ranks != 2) continue;
    // And back again, in the midst of another epoch.
    const std::vector<SafetensorsFile> middle = continued_files(config, before, 2, 6);
    CHECK(test::farthest_in(straight[0], continued_files(config, middle, 4, 12)[0]) < 1e-12);
  }
}

TEST_CASE("elastic/run: gossip goes on from the mean model") {
  for (const json& algorithm :
       {json("gossip"), json("push_sum"), json{{"type", "slowmo"}, {"period", 3}}, json("choco")}) {
    CAPTURE(algorithm.dump());
    json sync{{"algorithm", algorithm},
              {"topology", {{"type", algorithm == "push_sum" ? "directed-exp" : "static-ring"}}}};
    const json config = elastic_run(sync);
    const std::vector<SafetensorsFile> before = files_after(config, 4, 7);
    const std::vector<SafetensorsFile> now = continued_files(config, before, 3, 0);
    for (const auto& [name, tensor] : now[0].tensors) {
      if (tensor.dtype != DType::kFloat64 || name.starts_with("sync.")) continue;
      CAPTURE(name);
      std::vector<double> mean(test::numbers_in(now[0], name).size(), 0.0);
      for (const SafetensorsFile& file : before) {
        const double weight = name.starts_with("model.")
                                  ? std::strtod(file.metadata.at("mean_weight").c_str(), nullptr)
                                  : 1.0;
        const std::vector<double> own = test::numbers_in(file, name);
        for (std::size_t i = 0; i < mean.size(); ++i) mean[i] += weight * own[i] / 4.0;
      }
      for (const SafetensorsFile& file : now) {
        const std::vector<double> own = test::numbers_in(file, name);
        for (std::size_t i = 0; i < mean.size(); ++i)
          CHECK(own[i] == doctest::Approx(mean[i]).epsilon(1e-13));
      }
    }
    // Its own checkpoints are resumed as any.
    const std::vector<SafetensorsFile> straight = continued_files(config, before, 3, 9),
                                       half = continued_files(config, before, 3, 4);
    FakeWorld(3).run([&](Transport& transport) {
      const SafetensorsFile& own = half[static_cast<std::size_t>(transport.rank())];
      const std::vector<Stretch> stretches = saved_stretches(own, "file");
      REQUIRE(stretches.size() == 2);
      TrainerRun run(config, transport, [&](TrainConfig& of_run) {
        of_run.length.batch_size = stretches.back().batch_size;
        of_run.length.stretches = stretches;
      });
      run.trainer->resume(own, "file");
      test::check_same_tensors(straight[static_cast<std::size_t>(transport.rank())],
                               run.state_after(5));
    });
  }
}

TEST_CASE("elastic/memory: ranks go on in the memory that they have, to the same bits") {
  for (const char* algorithm :
       {R"({"type": "diloco", "period": 5})", R"({"type": "diloco", "period": 5, "delay": 2})",
        R"({"type": "gossip_diloco", "period": 5})", R"({"type": "gossip"})"}) {
    // In the midst of a period, on the way to an outer step, after it
    for (const int steps : {7, 9, 10}) {
      CAPTURE(algorithm);
      CAPTURE(steps);
      const json config =
          elastic_run({{"algorithm", json::parse(algorithm)}}, {{"ema", {{"decay", 0.5}}}});
      FakeWorld(2).run([&](Transport& transport) {
        std::optional<TrainerRun> before(std::in_place, config, transport);
        before->steps(steps);
        const std::shared_ptr<Backend> backend = before->backend;
        const SafetensorsFile kept = *before->trainer->handover_state();
        std::vector<const std::byte*> places;
        const auto note = [&](const TrainerRun& run) {
          for (const Bucket& bucket : run.trainer->buckets()) {
            places.push_back(bucket.parameters.raw());
            for (const Tensor& state : bucket.states) places.push_back(state.raw());
            // The anchor and the momentum, which no exchange is to change
            for (std::size_t k = 0; k < 2 && json::parse(algorithm)["type"] == "diloco"; ++k)
              places.push_back(bucket.sync[k].numbers.raw());
          }
        };
        note(*before);
        before.reset();
        const std::vector<const std::byte*> had = std::exchange(places, {});
        TrainerRun run(config, transport, {}, &kept, backend);
        note(run);
        CHECK(places == had);
        run.trainer->resume(kept, "test");
        const SafetensorsFile went = run.state_after(4);
        TrainerRun straight(config, transport);
        test::check_same_tensors(straight.state_after(steps + 4), went);
      });
    }
  }
}

TEST_CASE("elastic/memory: what is offered to joiners stays as it was") {
  FakeWorld(1).run([&](Transport& transport) {
    TrainerRun run(elastic_run({{"algorithm", "gossip"}}), transport);
    run.steps(3);
    const auto bytes_of = [](const OfferedState& state) {
      std::vector<std::byte> bytes(state.bytes);
      state.read(0, bytes.data(), bytes.size());
      return bytes;
    };
    const SafetensorsFile kept = *run.trainer->handover_state();
    const OfferedState offered = offered_state(kept, memory_for(kept, *run.backend).get());
    const std::vector<std::byte> then = bytes_of(offered);
    // With memory of another size, as after a switch, it is the same
    CHECK(bytes_of(offered_state(kept, {Tensor(*run.backend, Shape{1}, DType::kUInt8)})) == then);
    run.steps(1);
    CHECK(bytes_of(offered) == then);
    CHECK(bytes_of(offered_state(kept, {})) != then);
    // Any part of it
    std::vector<std::byte> part(then.size() / 2);
    offered.read(then.size() / 3, part.data(), part.size());
    CHECK(std::equal(part.begin(), part.end(),
                     then.begin() + static_cast<std::ptrdiff_t>(then.size() / 3)));
  });
}

TEST_CASE("elastic/replica: replicas go on without one as ranks do, to the same numbers") {
  for (const char* algorithm :
       {R"({"type": "diloco", "period": 5})", R"({"type": "gossip_diloco", "period": 5})",
        R"({"type": "gossip"})"}) {
    // In the midst of a period, after an outer step, before the first one; 3 replicas and 2
    for (const auto& [steps, replicas] : {std::pair{7, 3}, {5, 3}, {0, 3}, {6, 2}}) {
      CAPTURE(algorithm);
      CAPTURE(steps);
      CAPTURE(replicas);
      const json sync{{"algorithm", json::parse(algorithm)}}, one{{"batch_size", 12}};
      json two = sync;
      two["replica"] = 2;
      Kept of_ranks = kept_after(elastic_run(sync, one), replicas, steps),
           of_replicas = kept_after(elastic_run(two), 2 * replicas, steps);
      of_ranks.erase(of_ranks.begin());
      of_replicas.erase(of_replicas.begin(), of_replicas.begin() + 2);
      const std::vector<SafetensorsFile> a = went_on(elastic_run(sync, one), of_ranks, 6),
                                         b = went_on(elastic_run(two), of_replicas, 6);
      for (std::size_t k = 0; k < a.size(); ++k) CHECK(test::farthest_in(a[k], b[2 * k]) < 1e-10);
    }
  }
}

TEST_CASE(
    "elastic/replica: one of which a rank alone has taken an outer step takes another's state") {
  const json config =
      elastic_run({{"algorithm", {{"type", "diloco"}, {"period", 5}}}, {"replica", 2}});
  Kept kept = kept_after(config, 4, 7);
  for (const int torn : {0, 1}) {
    CAPTURE(torn);
    Kept of_one = kept;
    of_one[static_cast<std::size_t>(2 * torn + 1)]->metadata[Trainer::kLastSynchronised] = "10";
    FakeWorld(4).run([&](Transport& transport) {
      const TrainConfig read = read_train_config(config, "test", {4, 4});
      const auto handover =
          plan_handover(&*of_one[static_cast<std::size_t>(transport.rank())], read, transport);
      REQUIRE(handover);
      CHECK(handover->from == 1 - torn);
      CHECK(handover->to == std::vector<int>{torn});
      CHECK(handover->step == 7);
    });
    for (const SafetensorsFile& file : went_on(config, of_one, 3))
      CHECK(file.metadata.at("step") == "10");
  }
}
