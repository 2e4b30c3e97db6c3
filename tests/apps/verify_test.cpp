#include "apps/training/verify.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/training/config/plugins.h"
#include "comm/agreement.h"
#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"
#include "trainer_run.h"

using namespace starling;
using nlohmann::json;
using test::contains;
using test::TrainerRun;

namespace {

json verified_run(const json& algorithm, const std::string& topology = "") {
  register_builtins();
  json config = json::parse(R"({
    "model": {"type": "mlp", "hidden": [16]},
    "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 512, "test_limit": 16},
    "batch_size": 4, "steps": 60, "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9}, "threads": 1,
    "sync": {"bucket_mb": 0.001, "verify": 1}, "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}})");
  config["sync"]["algorithm"] = algorithm;
  if (algorithm.is_object() && algorithm["type"] == "qadam")
    config["optimizer"] = {{"type", "adam"}, {"lr", 0.001}};
  if (!topology.empty()) config["sync"]["topology"] = {{"type", topology}};
  return config;
}

void flip(const Tensor& tensor, std::int64_t element, int bit) {
  reinterpret_cast<std::uint32_t*>(tensor.raw())[element] ^= 1u << bit;
}

/// What all ranks say after 3 steps and `change`; empty: nothing is wrong.
std::vector<std::string> said(const json& config, int ranks,
                              const std::function<void(Trainer&, int rank)>& change,
                              int* named = nullptr) {
  std::vector<std::string> texts(static_cast<std::size_t>(ranks));
  FakeWorld(ranks).run([&](Transport& transport) {
    TrainerRun run(config, transport);
    for (int i = 0; i < 3; ++i) {
      run.trainer->step();
      verify_replicas(*run.trainer);  // nothing is wrong yet
    }
    change(*run.trainer, transport.rank());
    try {
      verify_replicas(*run.trainer);
    } catch (const AgreedError& error) {
      texts[static_cast<std::size_t>(transport.rank())] = error.what();
      if (named && transport.rank() == 0) *named = error.rank();
      CHECK(error.code() == ExitCode::kLost);
    }
    transport.world().barrier();
  });
  for (const std::string& text : texts) CHECK(text == texts[0]);
  return texts;
}

}  // namespace

TEST_CASE("verify: a bit that flips in one of the equal replicas is found, and the rank named") {
  int named = -2;
  const std::string text = said(
      verified_run("allreduce"), 4,
      [](Trainer& trainer, int rank) {
        if (rank == 2) flip(trainer.buckets().back().parameters, 5, 0);
      },
      &named)[0];
  CHECK(contains(text, "after step 3 rank 2 on host "));
  CHECK(contains(text, "is not what the other 3 ranks hold, "));
  CHECK(contains(text, "in '1.bias',"));
  CHECK(named == 2);
  const std::string state = said(verified_run("allreduce"), 3, [](Trainer& trainer, int rank) {
    if (rank == 0) flip(trainer.buckets()[0].states.at(0), 0, 31);
  })[0];
  CHECK(contains(state, "rank 0 on host"));
  CHECK(contains(state, "state 0 of the optimizer, bucket 0"));
}

TEST_CASE("verify: of two ranks nobody can know which is wrong, and of two pairs neither") {
  int named = -2;
  const std::string two = said(
      verified_run("allreduce"), 2,
      [](Trainer& trainer, int rank) {
        if (rank == 1) flip(trainer.buckets()[0].parameters, 0, 3);
      },
      &named)[0];
  CHECK(contains(two, "rank 0 on host"));
  CHECK(contains(two, "and rank 1 on host"));
  CHECK(contains(two, "cannot be known which is right"));
  CHECK(named == -1);
  const std::string four = said(verified_run("allreduce"), 4, [](Trainer& trainer, int rank) {
    if (rank % 2 == 1) flip(trainer.buckets()[0].parameters, 0, 3);
  })[0];
  CHECK(contains(four, "cannot be known which is right"));
}

TEST_CASE("verify: all algorithms that keep ranks equal do") {
  // Error feedback keeps what each rank's own encoding left out.
  for (const json& algorithm : {json("allreduce"), json{{"type", "qadam"}, {"warmup", 1}},
                                json{{"type", "qadam"}, {"warmup", 1}, {"error_feedback", true}},
                                json{{"type", "allreduce"}, {"scatter_gather", true}}}) {
    CAPTURE(algorithm.dump());
    CHECK(said(verified_run(algorithm), 3, [](Trainer&, int) {})[0].empty());
  }
}

TEST_CASE("verify: gossip keeps the mean, and what a rank received is what was sent") {
  for (const auto& [topology, ranks] : {std::pair{"ring", 4},
                                        {"base-2", 5},
                                        {"complete", 3},
                                        {"static-exp", 5},
                                        {"hierarchical", 4}}) {
    CAPTURE(std::string(topology));
    CHECK(said(verified_run("gossip", topology), ranks, [](Trainer&, int) {})[0].empty());
  }
  const std::string wrong = said(verified_run("gossip", "ring"), 4, [](Trainer& trainer, int rank) {
    if (rank != 3) return;
    const Mixer::Arrived arrived = trainer.mixer().arrived(0);
    REQUIRE(arrived.exchange);
    flip(arrived.received->at(0), 0, 0);
  })[0];
  CHECK(contains(wrong, "after step 3 rank 3 on host "));
  CHECK(contains(wrong, "holds other numbers of bucket 0 than rank "));
  const std::string mean =
      said(verified_run("gossip", "complete"), 3, [](Trainer& trainer, int rank) {
        if (rank != 1) return;
        const Mixer::Arrived arrived = trainer.mixer().arrived(1);
        REQUIRE(arrived.exchange);
        REQUIRE(arrived.exchange->kind == Exchange::Kind::kGroupSum);
        flip(arrived.received->at(0), 7, 22);
      })[0];
  CHECK(contains(mean, "the mix after step 3 does not keep the mean over the ranks in bucket 1"));
}

TEST_CASE(
    "verify: where ranks meet now and then, what they met in is equal, and an anchor always") {
  const json local{{"type", "local_sgd"}, {"period", 3}},
      slow{{"type", "slowmo"}, {"period", 3}, {"states", "average"}},
      outer{{"type", "diloco"}, {"period", 6}, {"fragments", 2}},
      late{{"type", "diloco"}, {"period", 6}, {"delay", 2}},
      post{{"type", "local_sgd"}, {"period", 2}, {"start", 1}},
      late_local{{"type", "local_sgd"}, {"period", 3}, {"delay", 2}};
  for (const json& algorithm : {local, slow, outer, late, post, late_local}) {
    CAPTURE(algorithm.dump());
    CHECK(said(verified_run(algorithm), 3, [](Trainer&, int) {})[0].empty());
  }
  const auto flip_parameter = [](Trainer& trainer, int rank) {
    if (rank == 1) flip(trainer.buckets()[0].parameters, 2, 1);
  };
  // After step 3 they have met; half of DiLoCo's buckets, too.
  CHECK(contains(said(verified_run(local), 3, flip_parameter)[0], "rank 1 on host"));
  CHECK(contains(said(verified_run(post), 3, flip_parameter)[0], "rank 1 on host"));
  CHECK(contains(said(verified_run(late_local), 3, flip_parameter)[0], "rank 1 on host"));
  CHECK(contains(said(verified_run(slow), 3, flip_parameter)[0], "rank 1 on host"));
  CHECK(contains(said(verified_run(outer), 3, flip_parameter)[0], "rank 1 on host"));
  CHECK(said(verified_run(late), 3, flip_parameter)[0].empty());  // not yet
  CHECK(said(verified_run({{"type", "local_sgd"}, {"period", 2}}), 3, flip_parameter)[0].empty());
  const std::string anchor = said(verified_run(late), 3, [](Trainer& trainer, int rank) {
    if (rank == 2) flip(trainer.buckets()[1].sync[0].numbers, 0, 0);
  })[0];
  CHECK(contains(anchor, "rank 2 on host"));
  CHECK(contains(anchor, "sync.anchor, bucket 1"));
  CHECK(contains(said(verified_run(slow), 3,
                      [](Trainer& trainer, int rank) {
                        if (rank == 0) flip(trainer.buckets()[0].states.at(0), 0, 30);
                      })[0],
                 "state 0 of the optimizer"));
}

TEST_CASE("verify: looking changes no bit of a run") {
  for (const json& algorithm :
       {json("allreduce"), json("gossip"), json{{"type", "diloco"}, {"period", 2}}}) {
    FakeWorld(4).run([&](Transport& transport) {
      SafetensorsFile looked, not_looked;
      for (const bool looks : {true, false}) {
        TrainerRun run(verified_run(algorithm), transport);
        for (int i = 0; i < 6; ++i) {
          run.trainer->step();
          if (looks) verify_replicas(*run.trainer);
        }
        (looks ? looked : not_looked) = run.state_after(0);
      }
      test::check_same_tensors(looked, not_looked);
    });
  }
}
