#include "apps/training/trainer.h"

#include <doctest/doctest.h>

#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/config/habits.h"
#include "apps/training/config/plugins.h"
#include "apps/training/estimates/memory.h"
#include "examples/plugin/slow_average.h"
#include "tests/apps/program.h"
#include "tests/apps/trainer_run.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"

namespace starling {
namespace {

using test::check_resumed;
using test::TrainerRun;

nlohmann::json small_config() {
  return nlohmann::json::parse(R"({
    "model": {"type": "resnet20", "num_classes": 4},
    "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 128, "test_limit": 16},
    "batch_size": 4, "steps": 30, "optimizer": {"type": "accum_adamw", "lr": 0.001}, "sync": {"bucket_mb": 0.25}, "threads": 1})");
}

TEST_CASE("trainer: no allocation from the system after the second step") {
  register_builtins();
  for (const auto& [ranks, precision] :
       {std::pair{1, "fp32"}, {2, "fp32"}, {3, "fp32"}, {2, "bf16"}, {2, "fp16"}}) {
    CAPTURE(ranks);
    CAPTURE(std::string(precision));
    nlohmann::json json = small_config();
    json["precision"] = precision;
    if (json["precision"] != "fp32")
      json["model"] = nlohmann::json::parse(R"({"type": "mlp", "num_classes": 4, "hidden": [16]})");
    FakeWorld(ranks).run([&](Transport& transport) {
      TrainerRun run(json, transport);
      for (int i = 0; i < 2; ++i) run.trainer->step();
      const MemoryStats before = run.backend->memory_stats();
      for (int i = 0; i < 20; ++i) run.trainer->step();
      const MemoryStats after = run.backend->memory_stats();
      CHECK(after.system_allocations == before.system_allocations);
      CHECK(after.allocations > before.allocations);  // the counter counts
      run.trainer->finish();
    });
  }
}

/// ω of both ranks after so many rounds of the topology that the test of push-sum's weights has.
std::vector<double> weights_after(int rounds) {
  double first = 1.0, second = 1.0;
  for (int k = 0; k < rounds; ++k) {
    const double kept = 0.5 * first + 0.25 * second;
    second = 0.5 * first + 0.75 * second;
    first = kept;
  }
  return {first, second};
}

/// Algorithms of the tests.
void register_test_algorithms() {
  register_builtins();
  static const bool done = [] {
    algorithms().add("slow_average", mine::plan_slow_average, "");
    algorithms().add("choosy", [](ConfigSection& config) -> AlgorithmPlan {
      return {.topology = TopologyKind::kSymmetricFixed,
              .needs = {.optimizers = {"sgd", "adamw"}},
              .steps = {.keys = {{"start", config.integer("start", 1, Range::closed(1, 1e6), ""),
                                  false}}},
              .make = [](const AlgorithmSite&) { return nullptr; }};
    });
    return true;
  }();
  static_cast<void>(done);
}

TEST_CASE("trainer: the resolved config reads back to itself") {
  register_builtins();
  const nlohmann::json first = read_train_config(small_config(), "test", {2, 2}).resolved;
  CHECK(read_train_config(first, "test", {2, 2}).resolved == first);
  CHECK(first["sync"]["topology"]["type"] == "base-2");
  CHECK(first["sync"]["algorithm"]["type"] == "gossip");
  CHECK(first["sync"]["algorithm"]["interval"] == 1);
  CHECK(first["optimizer"]["decay"] == "weights");
  CHECK(first["cuda_graphs"] == "auto");
}

TEST_CASE("trainer: steps and epochs replace each other in settings") {
  nlohmann::json config = small_config();
  apply_settings(config, {"epochs=3"});
  CHECK_FALSE(config.contains("steps"));
  CHECK(config["epochs"] == 3);
}

TEST_CASE("trainer: a key of the algorithm is set beside a text, which is its type") {
  nlohmann::json config = small_config();
  apply_settings(config, {"sync.algorithm=mine", "sync.algorithm.period=3"});
  CHECK(config["sync"]["algorithm"] == nlohmann::json{{"type", "mine"}, {"period", 3}});
  apply_settings(config, {"sync.algorithm.period=4", "sync.algorithm.type=theirs"});
  CHECK(config["sync"]["algorithm"] == nlohmann::json{{"type", "theirs"}, {"period", 4}});
  apply_settings(config, {"sync.algorithm=mine"});
  CHECK(config["sync"]["algorithm"] == "mine");
}

TEST_CASE("trainer: what algorithms and optimizers ask of the rest is checked by name") {
  register_test_algorithms();
  const test::Program program;
  program.write("run.json", small_config().dump());
  program.play(R"table(
2 4 | another optimizer | sync\.algorithm: .*choosy.*accum_adamw.*sgd, adamw | sync.algorithm=choosy
2 4 | another topology | 'base-2'.*choosy.*static-ring | sync.algorithm=choosy | optimizer.type=sgd
let star = sync.topology.type=star | optimizer.type=sgd
2 4 | a start beyond the run | sync\.algorithm\.start: is 30.*30 steps.*<= 29 | sync.algorithm={"type": "choosy", "start": 30} | $star
0 4 | one within | memory | sync.algorithm={"type": "choosy", "start": 29} | $star
2 4 | a topology that is chosen | sync\.topology\.type: .*auto | sync.algorithm=choosy | optimizer.type=sgd | sync.topology.type=auto
2 4 | buckets that are chosen | sync\.bucket_mb: .*slow_average.*a number | sync.algorithm=slow_average | sync.bucket_mb=auto
2 4 | an exchange | sync\.exchange: .*slow_average.*gossip | sync.algorithm=slow_average | sync.exchange=bf16
2 4 | for all-reduce too | sync\.exchange: .*all-reduce.*fp32.*gossip | sync.algorithm=allreduce | sync.exchange=bf16
2 4 | a key of another | sync\.algorithm\.start: .*not a key of allreduce.*choosy | sync.algorithm={"type": "allreduce", "start": 1}
2 4 | graphs without a period | cuda_graphs: .*slow_average does not say after how many steps | cuda_graphs=true | device=cuda | sync.algorithm=slow_average
2 4 | rounds that never repeat | cuda_graphs: .*rounds never repeat.*auto, false | cuda_graphs=true | device=cuda | sync.topology.type=random-matching
0 4 | where graphs may be left out | memory | cuda_graphs=auto | device=cuda | sync.topology.type=random-matching
0 4 | on a CPU | memory | cuda_graphs=true | device=cpu | sync.topology.type=random-matching
2 4 | a transport of the host | cuda_graphs: .*staged.*through the host | cuda_graphs=true | device=cuda | sync.transport=staged
2 4 | too many graphs | cuda_graphs: .*130 graphs.*64 | cuda_graphs=true | device=cuda | optimizer.accum_iter=65
0 4 | few enough | memory | cuda_graphs=true | device=cuda
2 4 | a word for a truth | cuda_graphs: .*auto, true, false | cuda_graphs="false"
2 4 | a key of other optimizers | optimizer\.noise_correction: is not a key of sgd, but of adam, adamw | optimizer={"type": "sgd", "noise_correction": "ranks"}
2 4 | of one other | optimizer\.centered: is not a key of adamw, but of rmsprop | optimizer={"type": "adamw", "centered": true}
2 4 | in a group | optimizer\.groups\[0\]\.noise_correction: is not a key of sgd, but of adam, adamw | optimizer={"type": "sgd", "groups": [{"match": "weight", "noise_correction": "ranks"}]}
2 4 | a key like one of others | optimizer\.momentun: unknown key; did you mean 'momentum' of .*sgd | optimizer={"type": "adamw", "momentun": 0.9}
0 4 | where it belongs | memory | optimizer={"type": "adamw", "noise_correction": "ranks"} | sync.algorithm=gossip
2 4 | a padding as large as the image | data\.augment\.crop_padding: .*8 | data.augment.crop_padding=8
2 4 | a schedule's key | schedule\.warmup: .*'warmup_steps' | schedule={"type": "cosine", "warmup": 3}
2 4 | a topology by another name | sync\.topology\.type: .*'ring' | sync.topology.type=Ring
)table",
               "run.json --dry-run");
}

TEST_CASE(
    "trainer: another trainer's name of a key is told with its value, whatever bytes it has") {
  CHECK(hint_of_key("", "arch", "a b") == "; give --set model.type='a b'");
  CHECK(hint_of_key("data", "workers", 4) == "; give --set data.threads=4");
  CHECK(hint_of_key("loss", "workers", 4).empty());
  CHECK(
      hint_of_key("", "arch", nlohmann::json{{"\xff", 1}}).starts_with("; give --set model.type="));
}

TEST_CASE(
    "trainer: an algorithm's states count as memory, are saved, and a resumed run goes on to the "
    "bit") {
  register_test_algorithms();
  nlohmann::json json = small_config();
  json["sync"]["algorithm"] = {{"type", "slow_average"}, {"period", 3}};
  FakeWorld(2).run([&](Transport& transport) {
    SafetensorsFile saved, straight;
    {
      TrainerRun run(json, transport);
      double elements = 0.0;
      for (const Parameter* parameter : run.config.model->parameters())
        elements += static_cast<double>(parameter->shape.elements());
      const MemoryNeed need = memory_need(run.config, run.site, run.trace);
      CHECK(need.sync == 2.0 * need.parameters);
      CHECK(need.sync >= 2.0 * 4.0 * elements);
      saved = run.state_after(4);
      straight = run.state_after(4);
    }
    for (const char* name : {"sync.anchor.conv1.weight", "sync.slow_momentum.conv1.weight"}) {
      REQUIRE(saved.tensors.count(name) == 1);
      CHECK(saved.tensors.at(name).bytes != straight.tensors.at(name).bytes);
      CHECK(saved.tensors.at(name).shape == saved.tensors.at("model.conv1.weight").shape);
    }
    check_resumed(json, transport, saved, 4, straight);
    TrainerRun run(json, transport);
    saved.tensors.erase("sync.anchor.conv1.weight");
    CHECK_THROWS_WITH_AS(run.trainer->resume(saved, "test"),
                         doctest::Contains("sync.anchor.conv1.weight is missing"), Error);
  });
}

TEST_CASE(
    "trainer: push-sum's weights are saved, and a resumed run whose rounds give others refuses "
    "them by their file") {
  register_test_algorithms();
  nlohmann::json json = small_config();
  // Rank 0 keeps half of what it has and gives half, rank 1 keeps three quarters: columns sum to 1,
  // rows do not.
  json["sync"]["algorithm"] = "push_sum";
  json["sync"]["topology"] = nlohmann::json::parse(
      R"({"type": "custom", "rounds": [{"rows": [[[0, 0.5], [1, 0.25]], [[0, 0.5], [1, 0.75]]]}]})");
  const std::vector<double> expected = weights_after(4);
  FakeWorld(2).run([&](Transport& transport) {
    SafetensorsFile saved, straight;
    {
      TrainerRun run(json, transport);
      saved = run.state_after(4);
      straight = run.state_after(4);
    }
    const double weight = expected[static_cast<std::size_t>(transport.rank())];
    CHECK(test::numbers_in(saved, "sync.omega") == std::vector<double>{weight});
    CHECK(weight != 1.0);
    check_resumed(json, transport, saved, 4, straight);
    SafetensorsFile older = saved;  // made before weights were saved
    older.tensors.erase("sync.omega");
    check_resumed(json, transport, older, 4, straight);
    if (transport.rank() == 1) {
      const double other = weight * (1.0 + 1e-6);
      std::memcpy(saved.tensors.at("sync.omega").bytes.data(), &other, sizeof other);
    }
    TrainerRun run(json, transport);
    const std::string error = test::error_text(ExitCode::kUsage, [&] {
      run.trainer->resume(saved, transport.rank() == 0 ? "zero" : "one");
    });
    CHECK(test::contains(error, "one: sync.omega: this rank's weight was"));
    CHECK(test::contains(error, "after 4 steps on this topology it is"));
  });
}

TEST_CASE("trainer: adafactor keeps a row and a column of a matrix") {
  register_builtins();
  nlohmann::json json = small_config(), adamw = json;
  json["optimizer"] = {{"type", "adafactor"}};
  adamw["optimizer"] = {{"type", "adamw"}};
  FakeWorld(2).run([&](Transport& transport) {
    TrainerRun run(json, transport), other(adamw, transport);
    const MemoryNeed need = memory_need(run.config, run.site, run.trace),
                     plain = memory_need(other.config, other.site, other.trace);
    CHECK(plain.states == plain.parameters);  // two states, and two buffers of parameters
    CHECK(need.states < 0.5 * plain.states);
    const SafetensorsFile saved = run.state_after(1);
    // conv1 has 16 rows and 27 columns, each beginning a block of 32.
    CHECK(saved.tensors.at("optimizer.variance.conv1.weight").shape == Shape{64});
    CHECK(saved.tensors.at("optimizer.variance.bn1.weight").shape ==
          saved.tensors.at("model.bn1.weight").shape);
  });
}

TEST_CASE("trainer: a checkpoint whose config has the algorithm as a text goes on") {
  register_test_algorithms();
  const auto resolved = [](const nlohmann::json& algorithm) {
    nlohmann::json json = small_config();
    json["sync"]["algorithm"] = algorithm;
    return read_train_config(json, "test", {2, 2}).resolved;
  };
  const auto check = [](nlohmann::json saved, const nlohmann::json& algorithm,
                        const nlohmann::json& given) {
    saved["sync"]["algorithm"] = algorithm;
    SafetensorsFile file;
    file.metadata = {{"format", "starling-checkpoint-1"},
                     {"ranks", "2"},
                     {"precision", "fp32"},
                     {"config", saved.dump()}};
    check_resumable(file, "saved", given, given, 2, DType::kFloat32);
  };
  const nlohmann::json gossip = resolved("gossip"), allreduce = resolved("allreduce"),
                       slow = resolved("slow_average");
  check(gossip, "gossip", gossip);
  check(allreduce, "allreduce", allreduce);
  // of a version that knew no momentum
  check(slow, {{"type", "slow_average"}, {"period", 8}}, slow);
  CHECK_THROWS_WITH_AS(check(gossip, "allreduce", gossip), doctest::Contains("sync.algorithm.type"),
                       Error);
  CHECK_THROWS_WITH_AS(check(slow, {{"type", "slow_average"}, {"period", 4}}, slow),
                       doctest::Contains("sync.algorithm.period"), Error);
}

TEST_CASE("trainer: keys newer than a checkpoint are no hindrance where nobody writes them") {
  nlohmann::json json = small_config();
  const auto check = [](const nlohmann::json& saved, const nlohmann::json& given) {
    const TrainConfig config = read_train_config(given, "test", {2, 2});
    SafetensorsFile file;
    file.metadata = {{"format", "starling-checkpoint-1"},
                     {"ranks", "2"},
                     {"precision", "fp32"},
                     {"config", saved.dump()}};
    check_resumable(file, "saved", config.resolved, config.written, 2, DType::kFloat32);
  };
  nlohmann::json old = read_train_config(json, "test", {2, 2}).resolved;
  REQUIRE(old.erase("clip_norm") == 1);
  REQUIRE(old["optimizer"].erase("weight_decay") == 1);
  CHECK_NOTHROW(check(old, json));
  nlohmann::json clipped = json;
  clipped["clip_norm"] = 1.0;
  CHECK_THROWS_WITH_AS(check(old, clipped), doctest::Contains("clip_norm"), Error);
  nlohmann::json decayed = json;
  decayed["optimizer"]["weight_decay"] = 0.5;
  CHECK_NOTHROW(check(old, decayed));  // which may change
  REQUIRE(old["optimizer"].erase("accum_iter") == 1);
  nlohmann::json slower = json;
  slower["optimizer"]["accum_iter"] = 8;
  CHECK_THROWS_WITH_AS(check(old, slower), doctest::Contains("optimizer.accum_iter"), Error);
  old["clip_norm"] = 2.0;  // what the old run had still counts, written or not
  CHECK_THROWS_WITH_AS(check(old, json), doctest::Contains("clip_norm"), Error);
}

}  // namespace
}  // namespace starling
