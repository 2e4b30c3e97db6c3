// What a run leaves, and runs that go on from it: output folders, damaged checkpoints, other
// numbers of ranks, recipes, groups of parameters.
#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "apps/inference/checkpoint_file.h"
#include "core/safetensors.h"
#include "tests/apps/program.h"

namespace starling {
namespace {

using test::Program;

TEST_CASE("runs: groups of parameters, by names, with a rate and a weight decay of their own") {
  const Program program;
  program.write("run.json", test::short_config(R"({"type": "mlp", "hidden": [32]})",
                                               R"("batch_size": 16, "steps": 12,
    "optimizer": {"type": "adamw", "lr": 0.02, "weight_decay": 0.1}, "sync": {"bucket_mb": 0.001, "topology": {"type": "ring"}},)"));
  program.play(R"table(
let bias_slow = optimizer.groups=[{"match":"bias$","lr_scale":0.1}]
0 2 | one rate for all | step 12/12 | run.json --output plain
0 2 | a group like the rest | step 12/12 | run.json --output alike | optimizer.groups=[{"match":"bias"}]
same plain alike
0 2 | half the rate for all | step 12/12 | run.json --output half | optimizer.groups=[{"match":".","lr_scale":0.5}] | optimizer.lr=0.04
same plain half
0 2 | no decay for all | step 12/12 | run.json --output bare | optimizer.groups=[{"match":"weight","weight_decay":0}]
0 2 | no decay | step 12/12 | run.json --output none | optimizer.weight_decay=0
same bare none
differ plain none
0 2 | the first that matches wins | step 12/12 | run.json --output first | optimizer.groups=[{"match":"weight"},{"match":"weight|bias","lr_scale":0.1}]
0 2 | biases alone | step 12/12 | run.json --output biases | $bias_slow
same first biases
differ plain biases
0 2 | decay on biases, because the group says so | step 12/12 | run.json --output decayed | optimizer.groups=[{"match":"bias","weight_decay":0.1}]
0 2 | as with decay on all | step 12/12 | run.json --output everywhere | optimizer.decay=all
same decayed everywhere
0 2 | a run that is saved | step 12/12 | run.json --output saved | $bias_slow | checkpoint.every_steps=5
forget saved 12
0 2 | and resumed | continuing after step 10 | run.json --output saved --resume latest | $bias_slow | checkpoint.every_steps=5
same saved biases
forget saved 12
0 2 | without the config, which is in its folder | continuing after step 10 | --resume saved
same saved biases
forget saved 12
0 2 | at another rate, which is told | changed since the checkpoint: optimizer\.lr 0\.02 → 0\.01$ | --resume saved | optimizer.lr=0.01
differ saved biases
)table");
  for (const std::string rule : {"lars", "lamb", "muon", "adafactor"}) {
    const std::string settings = " | optimizer.type=" + rule + " | optimizer.eps=" +
                                 (rule == "adafactor" ? "[1e-6, 1e-3]" : "1e-6");
    program.play("0 2 | one rate for all | step 12/12 | run.json --output " + rule + settings +
                 "\n0 2 | a group like the rest | step 12/12 | run.json --output alike-" + rule +
                 settings + R"( | optimizer.groups=[{"match":"bias"}])" + "\nsame " + rule +
                 " alike-" + rule);
  }
  program.play(R"table(
differ plain lamb
differ lamb adafactor
let adafactor = optimizer.type=adafactor | optimizer.eps=[1e-6, 1e-3]
0 2 | adafactor, half the rate for all | step 12/12 | run.json --output half-adafactor | $adafactor | optimizer.groups=[{"match":".","lr_scale":0.5}] | optimizer.lr=0.04 | optimizer.weight_decay=0
0 2 | adafactor, without decay | step 12/12 | run.json --output bare-adafactor | $adafactor | optimizer.groups=[{"match":"weight","weight_decay":0}]
same half-adafactor bare-adafactor
differ adafactor bare-adafactor
let muon = optimizer.type=muon | optimizer.eps=1e-6
0 2 | muon, a matrix that is adamw's | step 12/12 | run.json --output muon-some | $muon | optimizer.groups=[{"match":"^1","orthogonal":false}]
differ muon muon-some
0 2 | muon, all of it adamw's | step 12/12 | run.json --output muon-none | $muon | optimizer.orthogonal=false | optimizer.weight_decay=0.1
0 2 | adamw itself | step 12/12 | run.json --output adamw | optimizer.eps=1e-6
same muon-none adamw
)table");
}

// That the numbers are right is elastic_test.cpp's.
TEST_CASE("runs: they go on with another number of ranks, and say so") {
  const Program program;
  program.write("run.json", R"({
    "model": {"type": "mlp", "hidden": [16]}, "precision": "fp64", "threads": 1,
    "data": {"type": "synthetic", "limit": 1000, "test_limit": 64, "image_size": 8},
    "batch_size": 8, "epochs": 2, "log_every": 1, "tensorboard": false,
    "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9}, "schedule": {"type": "cosine"}, "sync": {"algorithm": "allreduce"},
    "checkpoint": {"every_steps": 10, "keep": 99}, "evaluate": {"every_epochs": 1}})");
  program.play(R"table(
0 4 | 4 ranks | done | run.json --output straight
copy straight/checkpoints/step-20 two/checkpoints/step-20
2 2 | 2 ranks without --elastic | made by 4 ranks, this run has 2; start as many, or add --elastic | run.json --resume two
0 2 | 2 ranks go on | elastic: from step 20 on 2 ranks in place of 4, batch_size 16 in place of 8, 32 samples an update as before, 31 updates an epoch | run.json --resume two --elastic
copy two/checkpoints/step-40 again/checkpoints/step-40
0 2 | they are resumed without the word | continuing after step 40 | run.json --resume again
same two again
copy two/checkpoints/step-40 back/checkpoints/step-40
0 4 | and 4 ranks after them | from step 40 on 4 ranks in place of 2, batch_size 8 in place of 16 | run.json --resume back --elastic
copy straight/checkpoints/step-20 many/checkpoints/step-20
0 5 | more ranks than before | on 5 ranks in place of 4, batch_size 6 in place of 8, 30 samples an update in place of 32, 33 updates an epoch | run.json --resume many --elastic
line many/metrics.jsonl "epoch": ?2\.0,"test_loss"
copy straight/checkpoints/step-20 as-many/checkpoints/step-20
0 4 | as many ranks as before | continuing after step 20 | run.json --resume as-many --elastic
same straight as-many
copy straight/checkpoints/step-20 other/checkpoints/step-20
2 2 | another model | the config now says \[8\] for model\.hidden | run.json --resume other --elastic | model.hidden=[8]
2 2 | more samples than there are | batch_size: 512 on 2 ranks is more than the 1000 | run.json --resume other --elastic | elastic.keep=rank_batch | batch_size=512
0 1 | each rank's batch kept | on 1 rank in place of 4, batch_size 8 as before, 8 samples an update in place of 32, the rate 0\.25 times the schedule's | run.json --resume other --elastic | elastic.keep=rank_batch
line other/metrics.jsonl "lr": ?0\.0(0[5-9]|1[0-2])[0-9]*,.*"step": ?21,|"step": ?21,.*"lr": ?0\.0(0[5-9]|1[0-2])
copy straight/checkpoints/step-20 hurt/checkpoints/step-20
copy straight/checkpoints/step-30 hurt/checkpoints/step-30
flip hurt/checkpoints/step-30/rank-3.safetensors 100
0 2 | a damaged file of a rank that is no more | rank-3\.safetensors.*going on from step 20 | run.json --resume hurt --elastic
remove hurt
copy straight/checkpoints/step-30 hurt/checkpoints/step-30
flip hurt/checkpoints/step-30/rank-3.safetensors 100
2 2 | none left that is whole | rank-3\.safetensors: its header | run.json --resume hurt --elastic
let gossip = sync.algorithm=gossip | sync.topology.type=one-peer-exp | precision=fp32
0 4 | 4 ranks, one-peer-exp | done | run.json --output peers | $gossip
copy peers/checkpoints/step-20 three/checkpoints/step-20
2 3 | another topology must fit, too | power of two | run.json --resume three --elastic | $gossip | elastic.topology=hypercube
2 3 | and is a name | elastic\.topology: .*(text|string) | run.json --resume three --elastic | $gossip | elastic.topology=5
0 3 | 3 ranks cannot have it | one-peer-exp needs a power of two.*going on with elastic\.topology, base-2 | run.json --resume three --elastic | $gossip
remove three
copy peers/checkpoints/step-20 three/checkpoints/step-20
0 3 | and have what they want | gossip over static-ring, 3 ranks | run.json --resume three --elastic | $gossip | elastic.topology=static-ring
)table");
  CHECK(program.summary("two")["elastic"] == nlohmann::json{{"from_ranks", 4}, {"step", 20}});
}

/// Of the tensors in the files of so many ranks.
std::size_t tensor_bytes(const std::string& path, int ranks) {
  std::size_t bytes = 0;
  for (int rank = 0; rank < ranks; ++rank) {
    for (const auto& [name, tensor] :
         read_safetensors(fmt::format(fmt::runtime(path), rank)).tensors)
      bytes += tensor.bytes.size();
  }
  return bytes;
}

// Kinds of damage are output_checkpoint_test.cpp's, recipe_test.cpp's and safetensors_test.cpp's.
TEST_CASE(
    "runs: what ranks have alike is in one file of a checkpoint, and all of them go on from it") {
  const Program program;
  program.write("run.json", test::short_config(R"({"type": "mlp", "hidden": [32]})",
                                               R"("batch_size": 8, "steps": 12,
    "optimizer": {"type": "adamw", "lr": 0.01}, "ema": {"decay": 0.9}, "sync": {"algorithm": "allreduce"},
    "checkpoint": {"every_steps": 4, "keep": 3, "best": true},)"));
  program.play(R"table(
0 3 | three ranks | done | run.json --output whole | evaluate.every_steps=4
0 3 | without a stop | done | run.json --output straight | steps=14
copy whole resumed
0 3 | resumed | continuing after step 12 | run.json --output resumed --resume latest | steps=14
same straight resumed
losses straight resumed
copy whole two
0 2 | on two ranks | from step 12 on 2 ranks in place of 3 | run.json --output two --resume latest --elastic | steps=14
copy whole hurt
flip hurt/checkpoints/step-12/rank-0.safetensors model.1.weight
0 3 | the one copy is damaged | step-12/rank-0\.safetensors: tensor 'model.1.weight'.*going on from step 8 | run.json --output hurt --resume latest | steps=14
same straight hurt
copy whole gone
remove gone/checkpoints/step-12/rank-0.safetensors
0 3 | or gone | step-12/rank-0\.safetensors.*going on from step 8 | run.json --output gone --resume latest | steps=14
same straight gone
0 3 | gossip's ranks differ | done | run.json --output gossip | sync.algorithm=gossip
)table");
  for (const std::string folder : {"step-12", "best"}) {
    CAPTURE(folder);
    const auto file = [&](int rank) {
      return read_safetensors("whole/checkpoints/" + folder + "/" + rank_file_name(rank));
    };
    const std::size_t all = file(0).tensors.size();
    CHECK(all > 8);
    for (const int rank : {1, 2}) {
      CHECK(file(rank).tensors.empty());
      CHECK(shared_tensors(file(rank), "").size() == all);
      CHECK(CheckpointFile("whole/checkpoints/" + folder).read(rank).tensors.size() == all);
    }
  }
  CHECK(read_safetensors("gossip/checkpoints/step-12/rank-1.safetensors")
            .tensors.contains("model.1.weight"));
  // --dry-run says beforehand what the tensors in a checkpoint's files take.
  for (const std::string algorithm : {"allreduce", "gossip"}) {
    CAPTURE(algorithm);
    const std::size_t written =
        tensor_bytes(algorithm == "gossip" ? "gossip/checkpoints/step-12/rank-{}.safetensors"
                                           : "whole/checkpoints/step-12/rank-{}.safetensors",
                     3);
    const test::Ended told = program.check("dry", 3, 0, "", "run.json --dry-run --json",
                                           {"sync.algorithm=" + algorithm});
    const auto disk = nlohmann::json::parse(told.out)["disk"];
    const auto model = disk["model"].get<std::size_t>();
    CHECK(disk["checkpoint"] == written);
    CHECK(disk["kept"] == 3 * written + (written + model) + 2 * model);
    CHECK(disk["while_writing"] == disk["kept"].get<std::size_t>() + written + model);
  }
}

TEST_CASE("runs: damage is found before the first step, and the checkpoint before it taken") {
  const Program program;
  program.write("run.json", test::short_config(R"({"type": "mlp", "hidden": [32]})",
                                               R"("batch_size": 16, "steps": 12,
    "optimizer": {"type": "adamw", "lr": 0.01}, "checkpoint": {"every_steps": 4, "keep": 3},)"));
  program.play(R"table(
0 1 | a run | done | run.json --output good
has good/checkpoints/step-4 good/checkpoints/step-8 good/checkpoints/step-12
0 2 | two ranks | done | run.json --output two
line two/checkpoints/step-12/DONE "rank-1.safetensors": \{
0 1 | a run without a stop | done | run.json --output straight | steps=14
lacks straight/checkpoints/step-4
copy good over
remove over/checkpoints
2 1 | a finished run is not begun anew where its checkpoints are gone | over has no complete checkpoint .*, but holds what a run has made \(summary\.json\); give another --output | run.json --output over --resume latest
has over/model.safetensors
copy good flipped
flip flipped/checkpoints/step-12/rank-0.safetensors model.1.weight
copy flipped none
0 1 | a flipped bit | step-12/rank-0\.safetensors: tensor 'model.1.weight'.*damaged.*going on from step 8 | run.json --output flipped --resume latest | steps=14
said 1
losses straight flipped
same straight flipped
has flipped/checkpoints/step-12.damaged
0 1 | it is damaged no more | done | run.json --output flipped --resume latest | steps=14
said 0
flip none/checkpoints/step-8/rank-0.safetensors model.1.weight
copy none twice
0 1 | two flipped bits | step-12/rank-0.*going on from step 4 | run.json --output twice --resume latest | steps=14
flip none/checkpoints/step-4/rank-0.safetensors model.1.weight
2 1 | no whole one is left | step-12/rank-0\.safetensors: tensor 'model.1.weight' | run.json --output none --resume latest | steps=14
has none/checkpoints/step-4 none/checkpoints/step-8 none/checkpoints/step-12
2 3 | another number of ranks is no damage | made by 2 ranks, this run has 3 | run.json --output two --resume latest | steps=14
2 1 | nor is one fewer | made by 2 ranks, this run has 1 | run.json --output two --resume latest | steps=14
2 2 | another accumulation is refused | accumulate | run.json --output two --resume latest | steps=14 | accumulate=2
has two/checkpoints/step-12/DONE
copy two other
0 2 | another log interval is not | continuing after step 12 | run.json --output other --resume latest | steps=14 | log_every=2
copy two other
0 2 | nor a length in epochs, which is said | ^changed since the checkpoint: epochs null → 0.5$ | run.json --output other --resume latest | epochs=0.5
remove other
copy two other
flip other/checkpoints/step-12/rank-1.safetensors 100
0 2 | a header of another rank | step-12/.*going on from step 8 | run.json --output other --resume latest | steps=14
copy two other
remove other/checkpoints/step-12/rank-1.safetensors
0 2 | no file | step-12/.*going on from step 8 | run.json --output other --resume latest | steps=14
copy two other
write other/checkpoints/step-12/DONE
0 2 | an empty DONE | step-12/.*going on from step 8 | run.json --output other --resume latest | steps=14
copy good old
write old/checkpoints/step-12/DONE step 12
0 1 | of an older version, without checksums | continuing after step 12 | run.json --output old --resume latest | steps=14
losses straight old
0 1 | latest without a checkpoint starts afresh | no checkpoint|afresh|from the start | run.json --output fresh --resume latest
2 1 | a folder without a checkpoint cannot be resumed | nowhere | run.json --output fresh2 --resume nowhere
forget straight 8 12
cut straight/checkpoints/step-14/rank-0.safetensors 100
2 1 | a damaged checkpoint and no other | rank-0\.safetensors | run.json --output straight --resume latest | steps=16
let best = checkpoint.best=true | evaluate.every_steps=4
0 2 | two ranks with a best checkpoint | done | run.json --output best | $best
write best/checkpoints/best/DONE {"step": 12, "metric": "test_accuracy", "value": 9, "checksun": "0"}
0 2 | which is damaged | warning: .*best/checkpoints/best/DONE: .*damaged; it is kept as best\.damaged | run.json --output best --resume latest | $best | steps=16
said 1
line best/checkpoints/best.damaged/DONE "value": 9
line best/checkpoints/best/DONE "step": 16
0 2 | of which a later run says nothing | continuing after step 16 | run.json --output best --resume latest | $best | steps=17
said 0
0 1 | a whole model is read | "test_accuracy" | --evaluate best
copy best/model.safetensors model.safetensors
flip model.safetensors 1.weight
2 1 | a flipped bit in a model | model\.safetensors: tensor '1.weight'.*damaged | --evaluate model.safetensors
2 1 | init finds it | model\.safetensors: tensor '1.weight'.*damaged | run.json --output init | init=model.safetensors
lacks init
copy best/model.safetensors model.safetensors
flip model.safetensors 100
2 1 | a changed header of it | model\.safetensors | --evaluate model.safetensors
)table");
}

TEST_CASE("runs: numbers that are not finite go nowhere, and a longer schedule is told") {
  const Program program;
  program.write("run.json", test::short_config(R"({"type": "mlp", "hidden": [32]})",
                                               R"("batch_size": 16, "steps": 12,
    "optimizer": {"type": "sgd", "lr": 0.02}, "checkpoint": {"every_steps": 4, "keep": 3},)"));
  program.play(R"table(
let wild = data.limit=64 | schedule={"type": "multistep", "milestones": [1.75], "gamma": 1e60}
4 1 | a last update that overflows | step 8 gives test_loss .*the last good checkpoint is overflow/checkpoints/step-4 | run.json --output overflow | $wild | steps=8
4 1 | before a checkpoint without a test | step-8/rank-0.safetensors: is not written: tensor '[a-z0-9.]*' holds numbers that are not finite.*untested/checkpoints/step-4 | run.json --output untested | $wild
lacks overflow/model.safetensors overflow/checkpoints/step-8/DONE untested/model.safetensors untested/checkpoints/step-8/DONE
let cosine = schedule={"type": "cosine"}
0 1 | a cosine of 8 steps | done | run.json --output longer | $cosine | steps=8
0 1 | made longer | spans 16 steps now and 8 before: the rate of step 9 is 0\.01[0-9]*, where it would have been 1e-06$ | run.json --output longer --resume latest | $cosine | steps=16
line longer/config.json "steps": 16
copy longer before
0 1 | fewer steps than are done | longer has done 16 steps; 3 were requested, so there is nothing to do | run.json --output longer --resume latest | $cosine | steps=3
2 1 | fewer steps of another run | now says 5 for seed, the checkpoint was made with | run.json --output longer --resume latest | $cosine | steps=3 | seed=5
same longer before
alike longer/metrics.jsonl before/metrics.jsonl
0 1 | other threads | made with 1 thread a rank, now there are 2 | run.json --output longer --resume latest | $cosine | steps=17 | threads=2
)table");
  const std::string model = program.read("longer/model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, model.data(), sizeof length);
  nlohmann::json header = nlohmann::json::parse(model.substr(8, length));
  header.erase("__metadata__");  // which would tell damage
  std::string data = model.substr(8 + length);
  const float none = std::nanf("");
  std::memcpy(data.data() + header["1.weight"]["data_offsets"][0].get<std::size_t>(), &none,
              sizeof none);
  const std::string head = header.dump();
  length = head.size();
  program.write("nan.safetensors",
                std::string(reinterpret_cast<const char*>(&length), sizeof length) + head + data);
  program.check("an initial file with such a number", 1, 2,
                "nan.safetensors: tensor 1.weight holds numbers that are not finite",
                "run.json --output initial", {"init=nan.safetensors"});
}

TEST_CASE(
    "runs: moving averages, statistics and best checkpoints of a recipe, and tests of a model file "
    "alone") {
  const Program program;
  program.write(
      "net.json",
      test::short_config(R"({"type": "sequential", "layers": [
    {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "stride": 4}, {"type": "batch_norm"}, {"type": "relu"}, {"type": "flatten"},
    {"type": "linear", "out_features": 10}]})",
                         R"("batch_size": 16, "steps": 12, "optimizer": {"type": "sgd", "lr": 0.02},
    "checkpoint": {"every_epochs": 0},)"));
  const test::Ended alone = program.play(R"table(
let recipe = ema.decay=0.9 | sync.batch_norm=recalibrate | sync.recalibrate_batches=4 | checkpoint.best=true | evaluate.every_steps=4
0 2 | two ranks | test ema_accuracy | net.json --output a | $recipe
has a/model.ema.safetensors a/checkpoints/best/DONE a/checkpoints/best/model.safetensors a/checkpoints/best/rank-1.safetensors
line a/metrics.jsonl "step": ?12.*"test_ema_accuracy"|"test_ema_accuracy".*"step": ?12
line a/summary.json "best"
0 2 | they go on | done | net.json --output a --resume latest | $recipe | steps=16
0 2 | 16 steps at once | done | net.json --output b | $recipe | steps=16
alike a/model.ema.safetensors b/model.ema.safetensors
same a b
2 2 | another decay on resume is named | ema\.decay | net.json --output a --resume latest | $recipe | ema.decay=0.5 | steps=20
0 2 | replicas | done | net.json --output replicas | $recipe | sync.algorithm=allreduce
0 3 | a model file on another number of ranks | ^9  | --evaluate a --confusion confusion.csv
)table");
  // Averages have statistics of batch norm too, and each rank has its own.
  const test::Ended told =
      program.check("dry", 2, 0, "", "net.json --dry-run --json",
                    {"ema.decay=0.9", "sync.batch_norm=recalibrate", "sync.algorithm=allreduce"});
  CHECK(nlohmann::json::parse(told.out)["disk"]["checkpoint"] ==
        tensor_bytes("replicas/checkpoints/step-12/rank-{}.safetensors", 2));
  CHECK(test::last_line(alone)["test_accuracy"] == program.summary("a")["test_accuracy"]);
  CHECK(test::last_line(alone).contains("test_loss"));
  std::istringstream table(program.read("confusion.csv"));
  std::string line;
  int sum = 0, right = 0;
  for (int row = -1; std::getline(table, line); ++row) {
    std::istringstream cells(line.substr(line.find(',') + 1));
    int column = 0;
    for (std::string cell; row >= 0 && std::getline(cells, cell, ','); ++column) {
      sum += std::stoi(cell);
      if (column == row) right += std::stoi(cell);
    }
  }
  CHECK(sum == 256);
  CHECK(right / 256.0 == doctest::Approx(test::last_line(alone)["test_accuracy"].get<double>()));
  const auto tested = [&](const std::string& line_of_story) {
    return test::last_line(program.play(line_of_story));
  };
  CHECK(tested("0 1 | the average | test_accuracy | --evaluate a/model.ema.safetensors")
            ["test_accuracy"] == program.summary("a")["test_ema_accuracy"]);
  CHECK(tested("0 1 | own data | test_accuracy | net.json --evaluate a/model.safetensors | "
               "data.test_limit=64")["samples"] == 64);
  program.play(R"table(
copy net.json kept.json
0 1 | the best checkpoint's | "test_accuracy" | --evaluate a/checkpoints/best/model.safetensors
0 1 | in the precision that is fast | "test_accuracy" | --evaluate a | precision=auto
2 1 | a checkpoint is no model file | rank-0\.safetensors: is one rank.s part of a checkpoint | --evaluate a/checkpoints/best/rank-0.safetensors
2 1 | nor is a folder that holds none | a/checkpoints is a folder of checkpoints; give the run | --evaluate a/checkpoints
2 1 | a file that holds something else is left alone | --confusion net.json: the file is there already and holds no confusion table; name another one | --evaluate a --confusion net.json
alike net.json kept.json
0 1 | an older table is replaced | "test_accuracy" | --evaluate a --confusion confusion.csv
5 1 | a device that is full takes the table, not the numbers | "test_accuracy" | --evaluate a --confusion /dev/full
5 1 | a table that cannot be written | nowhere/x\.csv | --evaluate a --confusion nowhere/x.csv
unsaid test_accuracy
let two = data.classes=2 | model.layers.4.out_features=2
2 1 | a head of another shape is named, with what skips it | skip": \["4\.\*"\] | net.json --output c | $two | init=a/model.safetensors
0 1 | with that it trains | done | net.json --output c | $two | init.file=a/model.safetensors | init.skip=["4.*"]
2 1 | a pattern that matches nothing is named | init\.skip: 'fc\.\*' | net.json | init.file=a/model.safetensors | init.skip=["fc.*"]
)table");
}

TEST_CASE("runs: the output folder, what keeps it safe, and that its config.json repeats the run") {
  const Program program;
  program.write("small.json", test::short_config(R"({"type": "mlp", "hidden": [32]})",
                                                 R"("batch_size": 16, "steps": 12,
    "optimizer": {"type": "sgd", "lr": 0.02}, "checkpoint": {"every_epochs": 0},)"));
  program.play(R"table(
0 2 | two ranks train | done | small.json --output a
has a/config.json a/metrics.jsonl a/summary.json a/model.safetensors a/checkpoints/step-12/DONE a/checkpoints/step-12/rank-1.safetensors
0 2 | its config.json trains again | done | a/config.json --output b
losses a b
same a b
alike a/config.json b/config.json
copy a done
0 2 | a finished run that is resumed has nothing to add | done: model | small.json --output done --resume latest
alike a/metrics.jsonl done/metrics.jsonl
same a done
write foreign/notes.txt mine
folder empty
write plain
2 1 | a folder in use is refused | not empty | small.json --output a
alike a/metrics.jsonl done/metrics.jsonl
2 1 | a foreign folder is refused | foreign.*not empty | small.json --output foreign
lacks foreign/.lock foreign/config.json
0 1 | an empty folder is taken | done | small.json --output empty
5 1 | a folder that cannot be made | plain | small.json --output plain/folder
0 1 | no output option: runs/<name>-<time> | done: model .*runs/small- | small.json
0 1 | init from a model | done | small.json --output c | init=a/model.safetensors
2 1 | a model of another shape is refused | 1\.weight | small.json --evaluate a/model.safetensors | model.hidden=[16]
copy a/model.safetensors short.safetensors
cut short.safetensors 1000
2 1 | a truncated model is refused | short\.safetensors | small.json --evaluate short.safetensors
4 1 | a diverging run names the step | step [0-9]+ | small.json --output e | optimizer.lr=1e30
lacks e/checkpoints/step-12
0 1 | TensorBoard's events are written | done | small.json --output twelve | tensorboard=true | data.classes=12 | steps=2
)table");
  const nlohmann::json about = program.summary("a");
  for (const char* key : {"steps", "epochs", "test_accuracy", "train_seconds", "samples_per_second",
                          "images_per_second", "peak_memory_bytes", "version"})
    CHECK_MESSAGE(about.contains(key), key);
  CHECK(about["ranks"] == 2);
  CHECK(about["parameters"] == 98666);
  const auto tested = [&](const std::string& story) {
    return test::last_line(program.play(story));
  };
  CHECK(tested("0 1 | --evaluate | accuracy | small.json --evaluate a/model.safetensors")
            ["test_accuracy"] == about["test_accuracy"]);
  CHECK(tested("0 1 | top 5 | test_top5 | small.json --evaluate twelve/model.safetensors | "
               "data.classes=12")["test_top5"] == program.summary("twelve")["test_top5"]);
}

}  // namespace
}  // namespace starling
