// What a run makes of classes that differ in size: weights of the loss, and a sampler.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "apps/data/sampler.h"
#include "apps/training/tasks/task_settings.h"
#include "tests/apps/program.h"

namespace starling {
namespace {

using test::Program;

/// 96 rows, 12 of the class "b", 4 of "c" and the others of "a", which two columns almost tell; a
/// run of 12 steps on them.
void make_uneven(const Program& program) {
  std::string table = "x,y,kind,number\n";
  for (int r = 0; r < 96; ++r) {
    const char* kind = r % 24 == 5 ? "c" : r % 8 == 3 ? "b" : "a";
    table += fmt::format("{},{},{},{}\n", (r * 37 % 96) * 0.05 + (kind[0] - 'a') * 2, r * 53 % 96,
                         kind, r);
  }
  program.write("t.csv", table);
  program.write("n.csv", "x,number\n1,2\n2,3\n3,5\n4,8\n5,9\n6,11\n7,15\n8,16\n");
  program.write("run.json", R"({
    "data": {"type": "csv", "path": "t.csv", "target": "kind", "val_fraction": 0.25},
    "task": {"type": "classification"}, "model": {"type": "mlp", "hidden": [6]},
    "batch_size": 6, "steps": 12, "optimizer": {"type": "adamw", "lr": 0.02}, "threads": 1,
    "log_every": 1, "tensorboard": false, "evaluate": {"every_epochs": 0},
    "checkpoint": {"every_steps": 4}, "sync": {"transport": "mpi"}})");
}

}  // namespace

TEST_CASE("classes: balanced weights are scikit-learn's, and 0 where there are no samples") {
  // compute_class_weight("balanced", classes=[0, 1, 3], y=[0]*6 + [1]*3 + [3])
  const std::vector<double> weights = balanced_weights({6, 3, 0, 1}, 5);
  const std::vector<double> expected{10.0 / 18.0, 10.0 / 9.0, 0.0, 10.0 / 3.0, 0.0};
  REQUIRE(weights.size() == expected.size());
  for (std::size_t c = 0; c < weights.size(); ++c)
    CHECK(weights[c] == doctest::Approx(expected[c]).epsilon(1e-15));
}

TEST_CASE("classes: balanced weights are those of the training samples, on every rank") {
  const Program program;
  make_uneven(program);
  program.play(R"table(
0 1 | weights by the table | class weights: balanced, from 0.4 \(a, 60 samples\) to 8 \(c, 3\) | run.json --output one | loss.class_weights=balanced
0 1 | the same as numbers | done | run.json --output list | loss.class_weights=[0.4, 2.6666666666666665, 8]
same one list
losses one list
)table");
}

TEST_CASE("classes: weights with smoothing, mixed tables of ranks, micro-batches and a resume") {
  const Program program;
  make_uneven(program);
  program.play(R"table(
let numbers = data.path=n.csv | data.target=number | task.type=regression
let weighted = loss.class_weights=balanced | loss.label_smoothing=0.1 | accumulate=2
0 2 | as they are | done | run.json --output plain | loss.label_smoothing=0.1 | accumulate=2
0 2 | weighted | class weights: balanced | run.json --output whole | $weighted
0 2 | stopped in an epoch | done | run.json --output part | $weighted | steps=8
copy part other
0 2 | and resumed | continuing after step 8 | run.json --output part --resume latest | $weighted
same whole part
differ whole plain
0 3 | with other ranks | from step 8 on 3 ranks in place of 2 | run.json --resume other --elastic | $weighted
2 2 | other weights | the config now says \[1.0,2.0,3.0\] for loss.class_weights, the checkpoint was made with "balanced" | run.json --output whole --resume latest | loss.class_weights=[1,2,3] | loss.label_smoothing=0.1 | accumulate=2
2 1 | numbers have no classes | loss\.class_weights: is not for mse; allowed with cross_entropy, focal | run.json --output refused | $numbers | loss.class_weights=balanced
0 1 | evaluation needs no weights | "test_loss" | --evaluate whole
)table");
}

TEST_CASE("classes: in an epoch each class comes equally often, and its samples in turn") {
  register_builtin_samplers();
  const nlohmann::json json{{"type", "class_balanced"}};
  ConfigSection section(json, "test.json");
  section.required_text("type", "");
  const std::shared_ptr<Sampler> sampler =
      samplers().make("class_balanced", "data.sampler.type", section);
  std::vector<std::int32_t> classes;  // of class 2 there is none
  for (int i = 0; i < 101; ++i) classes.push_back(i % 20 == 7 ? 3 : i % 5 == 1 ? 1 : 0);
  sampler->set_classes(classes);
  std::map<std::int32_t, int> more;
  std::set<std::vector<std::int64_t>> orders;
  for (const std::int64_t epoch : {0, 1, 2, 3, 4, 5}) {
    EpochInputs inputs{.seed = 9, .epoch = epoch, .samples = 101, .batch_size = 4};
    const std::vector<std::int64_t> order = sampler->order(inputs);
    REQUIRE(order.size() == 101);
    CHECK(sampler->order(inputs) == order);
    orders.insert(order);
    std::map<std::int32_t, std::map<std::int64_t, int>> counts;
    for (const std::int64_t sample : order)
      ++counts[classes[static_cast<std::size_t>(sample)]][sample];
    REQUIRE(counts.size() == 3);
    for (const auto& [c, of_class] : counts) {
      int sum = 0, least = 101, most = 0;
      for (const auto& [sample, count] : of_class) {
        sum += count;
        least = std::min(least, count);
        most = std::max(most, count);
      }
      CHECK(sum >= 33);
      CHECK(sum <= 34);
      more[c] += sum - 33;
      CHECK(most - least <= 1);
      // all come before any comes again
      CHECK(of_class.size() == std::min<std::size_t>(static_cast<std::size_t>(sum),
                                                     static_cast<std::size_t>(std::count(
                                                         classes.begin(), classes.end(), c))));
    }
    // ranks have it between them, place by place
    std::vector<std::int64_t> together(99);
    inputs.ranks = 3;
    for (inputs.rank = 0; inputs.rank < 3; ++inputs.rank) {
      const std::vector<std::int64_t> own = sampler->epoch(inputs);
      REQUIRE(own.size() == 33);
      for (std::size_t k = 0; k < 33; ++k)
        together[k * 3 + static_cast<std::size_t>(inputs.rank)] = own[k];
    }
    CHECK(std::equal(together.begin(), together.end(), order.begin()));
  }
  CHECK(orders.size() == 6);
  for (const auto& [c, count] : more) CHECK(count == 4);  // 2 of 3 classes in each of 6 epochs
  EpochInputs other{.seed = 10, .epoch = 0, .samples = 101, .batch_size = 4};
  CHECK(orders.count(sampler->order(other)) == 0);
  other.shuffle = false;
  CHECK(classes[static_cast<std::size_t>(sampler->order(other)[1])] == 1);
}

TEST_CASE("classes: a run by the balanced sampler, resumed, with other ranks, by its old name") {
  const Program program;
  make_uneven(program);
  program.play(R"table(
let even = data.sampler=class_balanced
0 2 | as they come | done | run.json --output plain
0 2 | balanced | done | run.json --output whole | $even
0 2 | stopped in an epoch | done | run.json --output part | $even | steps=8
copy part other
0 2 | and resumed | continuing after step 8 | run.json --output part --resume latest | $even
same whole part
differ whole plain
0 3 | with other ranks | from step 8 on 3 ranks in place of 2 | run.json --resume other --elastic | $even
0 2 | in two micro-batches | done | run.json --output micro | $even | accumulate=2
2 1 | no classes | data.sampler.type: is class_balanced, but the samples of csv have no class; allowed: shuffle | run.json --output refused | $even | data.path=n.csv | data.target=number | task.type=regression
2 2 | shares of ranks | data.sampler.type: is class_balanced, which deals samples to all ranks.*allowed: shuffle | run.json --output refused | $even | data.partition.type=dirichlet
let old = data.sampler={"type": "balanced", "complexity": "measured"}
0 2 | the old name of another | ^warning: data.sampler.type balanced is called load_balanced now | run.json --output old | $old | steps=8
unsaid rank 1
line old/config.json "type": "load_balanced"
0 2 | goes on by the new one | continuing after step 8 | run.json --output old --resume latest | data.sampler={"type": "load_balanced", "complexity": "measured"}
unsaid balanced is called
)table");
}

}  // namespace starling
