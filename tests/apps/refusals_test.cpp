// What a user can get wrong in arguments and config: exit status 2 and one line that says what,
// where, and what would be right. And what a dry run says of configs that are right.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/apps/program.h"

namespace starling {
namespace {

using test::Program;

const char* const kSmallKeys =
    R"("batch_size": 16, "steps": 12, "optimizer": {"type": "sgd", "lr": 0.02}, "checkpoint": {"every_epochs": 0},)";
std::string small() { return test::short_config(R"({"type": "mlp", "hidden": [32]})", kSmallKeys); }

TEST_CASE("refusals: arguments") {
  const Program program;
  program.write("small.json", small());
  program.check("no config", 1, 2, "[Cc]onfig", "");
  program.check("a folder as config", 1, 2, "configs", program.root() + "/configs");
  program.play(R"table(
2 1 | a config that is not there | no-such\.json | no-such.json
2 1 | an unknown option | --no-such | small.json --no-such
2 1 | a misspelt option | did you mean '--output'.*see starling-train --help | small.json --ouput x
2 1 | options of other trainers | --epochs, --lr, --batch-size .*give --set epochs=3 --set optimizer.lr=0.1 --set batch_size=64$ | small.json --epochs 3 --lr=0.1 --batch-size 64
2 1 | in short | give --set batch_size=8 --set optimizer.momentum=0.9 --device cuda$ | small.json -b 8 --momentum 0.9 --gpu 0
2 1 | of nanoGPT | give --set steps=100 --set model.layers=4 --set model.context=64 --set data.sequence_length=64$ | small.json --max_iters=100 --n_layer 4 --block_size=64
2 1 | names of types | give --set model.type=resnet18 --set data.path=/x$ | small.json --arch resnet18 --data /x
2 1 | one that nothing here stands for | not known: --local-rank 0; see | small.json --local-rank 0
2 1 | --long needs --list | --long requires --list | --long
2 1 | an unknown kind of --list | models | --list modles
2 1 | --confusion needs --evaluate | confusion | small.json --confusion x.csv
2 1 | --elastic alone | --elastic requires --resume | small.json --elastic
2 1 | --secret alone | --secret requires --join | small.json --secret x
2 1 | a config of one's own | --join excludes|excludes --join | small.json --join x
2 1 | a missing GPU | cuda|GPU | small.json --device cuda --output gpu | steps=1
2 2 | a missing GPU on two ranks, told once | \[cuda\] | small.json --device cuda --output gpu
2 1 | fp16 on a CPU | precision: fp16 needs a GPU; use (bf16 or )?fp32 | small.json --device cpu --output refused | precision=fp16
2 1 | fp16 on a CPU, planned | precision: fp16 needs a GPU | small.json --device cpu --dry-run | precision=fp16
2 2 | fp16 on a CPU, 2 ranks | precision: fp16 needs a GPU | small.json --device cpu --output refused | precision=fp16
2 1 | fp16 where auto finds no GPU | precision: fp16 needs a GPU | small.json --device auto --output refused | precision=fp16
2 1 | init that is not there | none\.safetensors | small.json --output refused | init=none.safetensors
2 1 | init of something else | small\.json | small.json --output refused | init=small.json
2 2 | no data, on two ranks | nowhere | small.json --output refused | data={"type": "mnist", "path": "nowhere"}
2 2 | fewer samples than ranks | 1 training sample for 2 ranks; start fewer ranks, or give more$ | small.json --output refused | data.limit=1 | batch_size=1
unsaid <= 0
)table");
  using Arguments = Program::Arguments;
  const auto empty = [&](const Arguments& arguments, const std::string& pattern) {
    const auto ended = program.train({arguments});
    CHECK(ended.status == 2);
    CHECK_MESSAGE(starling::test::matches(ended.err, pattern), ended.err);
  };
  empty({"small.json", "--output", ""},
        R"(--output is given without a value; .* variable is empty)");
  // it is not the next argument
  empty({"--output=", "small.json"}, R"(--output is given without a value)");
  empty({"small.json", "--resume=latest", "", "--output", "refused"}, R"(argument 3 is empty)");
  program.write("huge.safetensors", std::string("\377\377\377\377\377\377\377\177{}", 10));
  program.check("init with a header of 2^63", 1, 2, R"(huge\.safetensors)",
                "small.json --output refused", {"init=huge.safetensors"});
  program.play("lacks refused gpu");
}

TEST_CASE("refusals: ranks that were told different devices, and texts of any length and content") {
  const Program program;
  program.write("small.json", small());
  using Arguments = Program::Arguments;
  const auto told = [&](const std::vector<Arguments>& ranks, const std::string& pattern) {
    const test::Ended ended = program.train(ranks);
    const std::string said = ended.out + ended.err;
    CHECK(ended.status == 2);
    CHECK_MESSAGE(test::matches(said, pattern), said);
    CHECK(said.size() < 2500);
    CHECK(std::none_of(said.begin(), said.end(),
                       [](unsigned char c) { return (c < ' ' && c != '\n') || c == 0x7F; }));
  };
  const Arguments any{"small.json", "--output", "out", "--set", "sync.transport=mpi", "--device"};
  for (const std::string first : {"auto", "cuda"}) {
    std::vector<Arguments> ranks{any, any};
    ranks[0].push_back(first);
    ranks[1].push_back(first == "auto" ? "cuda" : "auto");
    told(ranks, "cuda|driver");
  }
  const std::string big = "\x1b[31m" + std::string(500'000, 'a');
  for (const std::string key : {"plugins", "init", "data.path", "model.type", "data.type"}) {
    CAPTURE(key);
    const nlohmann::json value = key == "plugins" ? nlohmann::json{big} : nlohmann::json(big);
    told({{"small.json", "--output", "out", "--set",
           key == "data.path"
               ? nlohmann::json{{"type", "cifar10"}, {"path", big}}.dump().insert(0, "data=")
               : key + "=" + value.dump()}},
         "a{20}");
  }
  for (const char* option : {"--list", "--resume", "--evaluate", "--set"})
    told({{"small.json", option, big}}, "a{20}");
  told({{"small.json", "--no" + big}}, "a{20}");
}

TEST_CASE("refusals: names, types and ranges of a config") {
  const Program program;
  program.write("small.json", small());
  program.write("libempty.so", "");
  program.play(R"table(
2 1 | --set without a value | steps | steps
2 1 | unknown key | batchsize.*batch_size | batchsize=4
2 1 | nanoGPT's name of a key | model\.block_size: unknown key; give --set model.context=64 --set data.sequence_length=64; known: | model={"type": "gpt2", "layers": 1, "block_size": 64}
2 1 | another one | model\.n_embd: unknown key; give --set model.width=64; known: | model={"type": "gpt2", "layers": 1, "n_embd": 64}
2 1 | another trainer's, at the top | max_iters: unknown key; give --set steps=9; known: | max_iters=9
2 1 | such a name where it means another thing | loss\.weights: unknown key; known: | loss.weights=1
2 1 | unknown model | model\.type.*resnet21.*resnet20 | model={"type": "resnet21"}
2 1 | unknown topology | topology\.type.*rnig.*ring | sync.topology.type=rnig
2 1 | unknown optimizer | optimizer\.type.*adamww.*adamw | optimizer={"type": "adamww"}
2 1 | unknown schedule | schedule\.type.*cosin.*cosine | schedule.type=cosin
2 1 | unknown data | data\.type.*cifar11.*cifar10 | data={"type": "cifar11"}
2 1 | unknown layer | layers\[0\]\.type.*conv2.*conv2d | model={"type": "sequential", "layers": [{"type": "conv2"}]}
2 1 | unknown key of a layer | layers\[1\]\.bais.*bias | model={"type": "sequential", "layers": [{"type": "flatten"}, {"type": "linear", "out_features": 10, "bais": false}]}
2 1 | a misspelt key that is required | layers\[1\]\.out_features | model={"type": "sequential", "layers": [{"type": "flatten"}, {"type": "linear", "out_feature": 10}]}
2 1 | a text for a number | batch_size.*(number|integer) | batch_size="many"
2 1 | a fraction for an integer | batch_size.*integer | batch_size=1.5
2 1 | a number for an object | model.*object | model=3
2 1 | a misspelt key that others follow | data\.chanels: unknown key.*channels | data.chanels=1 | data.normalize={"mean": [0.5], "std": [0.2]}
2 1 | numbers that are not the channels' | data\.normalize\.mean: has 1 entries, the images have 3 | data.normalize={"mean": [0.5], "std": [0.2]}
2 1 | too many of them | data\.normalize\.std: .*3 channels|data\.normalize\.std | data.normalize={"std": [1, 1, 1, 1]}
2 1 | a deviation of 0 | data\.normalize\.std | data.normalize={"std": [1, 0, 1]}
2 1 | a data set that there is not | data\.type: .*'cifar10' | data={"type": "cifar1"}
2 1 | an object given as text | data.*object | data=synthetic
2 1 | zero batch size | batch_size.*>= *1|batch_size.*1 | batch_size=0
2 1 | negative learning rate | optimizer\.lr.*>= 0.*-1 | optimizer.lr=-1
2 1 | an infinite number | 1e999|optimizer\.lr|finite | optimizer.lr=1e999
2 1 | a list's bad value | optimizer\.betas | optimizer={"type": "adamw", "betas": [0.9, 1.5]}
2 1 | label smoothing of 1 | label_smoothing | loss.label_smoothing=1
2 1 | bucket_mb of 0 | bucket_mb | sync.bucket_mb=0
2 1 | an absurd batch | batch_size | batch_size=1000000
2 1 | accumulate above an epoch | accumulate | accumulate=100
2 1 | too few classes | num_classes | model.num_classes=5
2 1 | a global clip_norm in the backward pass | update.*(after_backward|clip) | clip_norm=1 | sync.update=in_backward
2 1 | a precision that does not exist | precision.*bf32.*bf16 | precision=bf32
2 1 | a layer that does not fit | 1|conv | model={"type": "sequential", "layers": [{"type": "flatten"}, {"type": "conv2d", "out_channels": 4, "kernel_size": 3}]}
2 1 | a plug-in that is not there | plugins.*libnone\.so | plugins=["./libnone.so"]
2 1 | a plug-in that is no library | plugins.*libempty\.so | plugins=["./libempty.so"]
2 3 | a world size that does not fit | one-peer-exp.*3.*base-2 | sync.topology.type=one-peer-exp
2 1 | fp16 checks the whole gradient | sync\.update.*fp16.*after_backward | precision=fp16 | sync.update=in_backward
2 1 | blocks of a model that has none | recompute: is block, but the model has no blocks; allowed: none, cheap | recompute=block
2 1 | an unknown way to recompute | recompute.*did you mean 'block' | recompute=blocks
2 1 | a key of another loss | loss\.delta: | loss={"type": "l1", "delta": 1}
2 1 | an unknown loss has a near name | did you mean 'focal' | loss.type=vocal
2 1 | a momentum of 1e-320 | optimizer\.momentum: .*too small | optimizer.momentum=1e-320
0 1 | a momentum of 0 is one | "momentum": 0 | optimizer.momentum=0
2 1 | an unknown way to go on | elastic\.keep: .*global_batch, rank_batch | elastic.keep=batch
2 1 | nobody joins over MPI | elastic\.join: .*over sync\.transport zeromq alone, not mpi | elastic.join=true | sync.transport=mpi
2 1 | nor an all-reduce | elastic\.join: .*cannot join all-reduce; allowed: gossip, gossip_diloco, or diloco | elastic.join=true | sync.transport=zeromq | sync.algorithm=allreduce
2 1 | nor what is measured | elastic\.join: .*is auto | elastic.join=true | sync.transport=zeromq | sync.topology.type=auto
0 1 | gossip is joined | "join": true | elastic.join=true | sync.transport=zeromq
2 2 | no replica of GPUs is joined | elastic\.join: .*with sync\.replica 2 each GPU of a replica | elastic.join=true | sync.transport=zeromq | sync.replica=2 | device=cuda
)table",
               "small.json --dry-run --json");
  for (const std::string setting :
       {"seed=-1", "seed=nan", "seed=1e30", "steps=1e30", "steps=99999999999999999999", "steps=1.5",
        "batch_size=-1", "optimizer.lr=nan", "optimizer.lr=1e400",
        "data.limit=99999999999999999999", "epochs=nan", "log_every=0"})
    program.check(setting, 1, 2, setting.substr(0, setting.find('=')), "small.json --dry-run",
                  {setting});
}

TEST_CASE("refusals: what is no config") {
  const Program program;
  const auto refuses = [&](const char* name, const std::string& pattern, const std::string& text) {
    program.write("given.json", text);
    program.check(name, 1, 2, pattern, "given.json --dry-run");
  };
  refuses("the same key twice", R"(given\.json.*batch_size)",
          R"({"batch_size": 1, "batch_size": 2})");
  refuses("malformed JSON names the line", R"(given\.json.*(line )?2)",
          "{\"steps\": 1,\n \"batch_size\": }");
  refuses("an empty file", R"(given\.json)", "");
  refuses("a list at the top", R"(given\.json.*object)", "[1]");
  refuses("a hundred thousand levels", R"(given\.json)", std::string(100'000, '['));
  refuses("epochs and steps", "steps.*epochs|epochs.*steps",
          R"({"model": {"type": "mlp"}, "data": {"type": "synthetic"}, "steps": 1, "epochs": 1})");
  const std::string parts = R"("model": {"type": "mlp"}, "data": {"type": "synthetic"})";
  refuses("neither epochs nor steps",
          "epochs: is required and missing; expected a number, or steps", "{" + parts + "}");
  refuses("no steps", R"(epochs: is required and missing \(steps is null\))",
          R"({"steps": null, )" + parts + "}");
  refuses("epochs misspelt", R"(missing \('epchs' stands there, unknown\))",
          "{" + parts + R"(, "epchs": 1})");
  refuses("steps misspelt", R"(missing \('stpes' stands there, unknown\))",
          "{" + parts + R"(, "stpes": 1})");
  refuses("no model", R"(model: .*missing; expected an object such as \{)",
          R"({"data": {"type": "synthetic"}, "steps": 1})");
  refuses("model misspelt", R"(model: .*missing \('modl' stands)",
          R"({"data": {"type": "synthetic"}, "modl": {}, "steps": 1})");
  refuses("no data", R"(data: .*missing; expected an object such as \{)",
          R"({"model": {"type": "mlp"}, "steps": 1})");
  refuses("data misspelt", R"(data: .*missing \('dtaa' stands)",
          R"({"model": {"type": "mlp"}, "dtaa": {}, "steps": 1})");
}

TEST_CASE("refusals: groups, samplers, caches, augmentations and what is chosen by measurement") {
  const Program program;
  program.write("small.json", small());
  program.play(R"table(
2 1 | no regular expression | groups\[0\]\.match: 'bn\(' is no regular expression .*e\.g\. bn\|bias | optimizer.groups=[{"match":"bn("}]
2 1 | a name that is not there | groups\[0\]\.match: 'conv' is in the name of no parameter; names are  | optimizer.groups=[{"match":"conv"}]
2 1 | a key that groups do not have | groups\[0\]\.momentum | optimizer.type=adamw | optimizer.groups=[{"match":"bias","momentum":0.5}]
2 1 | without a pattern | groups\[0\]\.match | optimizer.groups=[{"lr_scale":0.5}]
2 1 | an algorithm that has the optimizer's formulas | quasi-global momentum has the optimizer | optimizer.groups=[{"match":"bias"}] | sync.algorithm=qgm | sync.topology.type=complete
2 1 | a key that changes the states | groups\[0\]\.match: 'bias' changes which tensors | optimizer.groups=[{"match":"bias","momentum":0.5}]
2 1 | too few weights | loss\.class_weights: has 3 numbers; needed: 10, one for each output | loss.class_weights=[1, 2, 3]
2 1 | a weight below 0 | loss\.class_weights: expected a list of numbers >= 0, found -1 as item 2 of 2 | loss.class_weights=[1, -1]
2 1 | weights that come to nothing | loss\.class_weights: has zeros alone, so nothing would count | loss.class_weights=[0,0,0,0,0,0,0,0,0,0]
2 1 | one number for all | loss\.class_weights: expected a list of numbers >= 0, found 2 | loss.class_weights=2
2 1 | a loss that has no classes | loss\.class_weights: is not for bce_with_logits; allowed with cross_entropy, focal | loss.class_weights=balanced | loss.type=bce_with_logits
0 2 | weights of classes | "class_weights": "balanced" | loss.class_weights=balanced | loss.label_smoothing=0.1 | data.augment.mixup=0.2
2 1 | a key of load_balanced with shuffle | data.sampler.random_level: is not a key of shuffle, but of load_balanced | data.sampler.random_level=0.1
2 1 | a data set that says no cost | data.sampler.complexity: is declared, but the samples of synthetic say no cost; allowed: measured | data.sampler=load_balanced
2 1 | ranks that have samples of their own | data.sampler.type: is load_balanced.*data.partition.type is dirichlet; allowed: shuffle | data.sampler={"type": "load_balanced", "complexity": "measured"} | data.partition.type=dirichlet
2 1 | a limit below a sample | data.cache.limit_mib: is 0.001.*needed: >= 0.003 | data.cache={"type": "memory", "limit_mib": 0.001}
0 1 | a text is a type, and its keys can be set | "limit_mib": 3 | data.cache=memory | data.cache.limit_mib=3
0 2 | a cache is counted | cache: 1280 of 1280 samples, 3.0 KiB each; 1.9 MiB of host memory a rank, 3.8 MiB a host | data.cache=memory
0 2 | and is in the memory of a rank | 3.8 MiB cached samples;|1.9 MiB cached samples; | data.cache=memory
2 1 | a batch of one has no neighbour | batch_size: is 1, but data.augment.* mixes the images of a batch; needed: >= 2 | batch_size=1 | data.augment.mixup=0.2
2 1 | grey images have no hue | data.augment.color_jitter.hue: is for colours, the images are grey .28×28×1.; leave it out | data={"type": "fashion_mnist", "augment": {"color_jitter": {"hue": 0.1}}}
2 1 | an unknown flip | data.augment.flip: .*"alternating" | data.augment.flip=often
2 1 | an unknown padding | data.augment.padding_mode: .*zero, reflect | data.augment={"crop_padding": 2, "padding_mode": "edge"}
2 1 | auto chooses the topology too | sync.topology.type: is ring, but sync.algorithm auto chooses the topology too; allowed: auto, or a sync.algorithm | sync.algorithm=auto | sync.topology.type=ring
2 1 | and has no keys | interval | sync.algorithm={"type": "auto", "interval": 2}
2 1 | a topology is chosen where all-reduce would do as well | may choose all-reduce, but DecentLaM computes something else | sync.topology.type=auto | sync.algorithm=decentlam | optimizer={"type": "sgd", "momentum": 0.9}
0 1 | a dry run leaves the choice open | topology: auto \(chosen at the start, by measurement\) | sync.topology.type=auto | sync.bucket_mb=auto
)table",
               "small.json --dry-run --json");
}

TEST_CASE("refusals: recipes, and what they do not go with") {
  const Program program;
  program.write("net.json", test::short_config(R"({"type": "sequential", "layers": [
    {"type": "batch_norm"}, {"type": "conv2d", "out_channels": 4, "kernel_size": 3},
    {"type": "flatten"}, {"type": "linear", "out_features": 10}]})",
                                               kSmallKeys));
  program.play(R"table(
let free = optimizer={"type": "schedule_free_adamw"}
0 2 | as it is | moving average.*|memory | ema={} | lookahead={} | sync.batch_norm=sync | optimizer.groups=[{"match": "bias", "until_epoch": 1}] | evaluate.tta=mirror
2 2 | steps that are no common ones | sync\.batch_norm: is sync, but the steps of | sync.batch_norm=sync | sync.algorithm=async | deterministic=false
2 2 | nor later ones | differ from rank to rank; allowed here: local, recalibrate | sync.batch_norm=sync | sync.switch=[{"step": 2, "algorithm": "async"}] | deterministic=false
2 2 | batches of nothing | sync\.recalibrate_batches: | sync.recalibrate_batches=3
2 2 | a model without statistics | the model has no batch norm; allowed here: local | sync.batch_norm=recalibrate | model={"type": "mlp"}
2 2 | an average of an average | ema: .*leave it out | ema={} | $free
2 2 | an algorithm without a common model | lookahead: .*allowed: gossip, allreduce | lookahead={} | sync.algorithm=push_sum | sync.topology.type=directed-exp
2 2 | a rule that looks ahead by itself | lookahead: .*leave it out | lookahead={} | $free
2 2 | whose rate is one | schedule\.type: .*cosine.*schedule_free_adamw.*allowed: constant | $free | schedule={"type": "cosine"}
2 2 | and warms up by itself | schedule\.warmup_steps: is 5.*optimizer\.warmup_steps | $free | schedule={"warmup_steps": 5}
2 2 | with gossip of one scale | sync\.lr_scale: .*schedule_free_adamw.*allowed: 1 | $free | sync={"algorithm": {"type": "local_sgd", "start": 4}, "lr_scale": 2}
2 2 | from a switch on | sync\.lr_scale: | $free | sync={"lr_scale": 2, "switch": [{"step": 3, "algorithm": "allreduce"}]}
0 2 | which all may have | memory | $free | schedule={"type": "constant", "warmup_steps": 0} | sync={"algorithm": "local_sgd", "lr_scale": 2}
0 2 | by their number | memory | $free | sync.lr_scale=sqrt_ranks
2 2 | a first beta of none | optimizer\.betas: .*> 0 | optimizer={"type": "schedule_free_adamw", "betas": [0, 0.9]}
2 2 | and holds nothing still | until_epoch | optimizer={"type": "schedule_free_adamw", "groups": [{"match": "bias", "until_epoch": 1}]}
2 2 | nothing to skip of | init\.file: is missing beside skip | init={"skip": ["fc.*"]}
)table",
               "net.json --dry-run");
}

TEST_CASE("dry runs: every config of configs/, alone and on 4 ranks, without data files") {
  const Program program;
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(program.root() + "/configs")) {
    if (entry.path().extension() != ".json") continue;
    ++count;
    // A file of initial values is looked at as training would, and this one is not there.
    const bool begins = test::read_text(entry.path()).find("\"init\"") != std::string::npos;
    for (const int ranks : {1, 4}) {
      if (begins)
        program.check(entry.path().filename(), ranks, 2, "safetensors: cannot be read",
                      entry.path().string() + " --dry-run");
      program.check(entry.path().filename(), ranks, 0, "parameters",
                    entry.path().string() + " --dry-run" + (begins ? " --set init=" : ""));
    }
  }
  CHECK(count >= 10);
  CHECK(std::filesystem::is_empty("."));  // nothing is left behind
}

TEST_CASE("dry runs: what a report says") {
  const Program program;
  program.write("small.json", small());
  const auto report = [&](int ranks, const std::string& arguments,
                          std::initializer_list<const char*> patterns) {
    const test::Ended ended =
        program.check(arguments, ranks, 0, "bucket", arguments + " --dry-run");
    for (const char* pattern : patterns) CHECK_MESSAGE(test::matches(ended.out, pattern), pattern);
  };
  const std::string configs = program.root() + "/configs/";
  report(4, configs + "cifar10_resnet18.json",
         {"11,?173,?962", "one-peer-exp", "spectral gap", "[Mm]emory"});
  report(4, configs + "imagenet_resnet50.json --device cuda",
         {"25,?557,?032", "^devices: ", "local rank 3 → GPU 3", "precision bf16",
          "low-precision parameters", "receive buffers", "activations", "GiB in all",
          "^floor on one H200", "as they are issued: [0-9.]+ ms", "images/s a rank", "bound by",
          "NCCL: [0-9]+ communicators? a rank", "an estimate, not measured"});
  report(
      8,
      configs +
          "imagenet_resnet50.json --device cuda --set sync.topology.type=alternating-exp-ring "
          "--set sync.max_ctas=4",
      {R"(NCCL: 3 communicators a rank, the world's and 2 of groups; .*4 channels \(sync.max_ctas\))"});
  report(2, "small.json --json --device cuda --set precision=fp16",
         {R"("update": "after_backward")"});
  for (const std::string precision : {"fp32", "fp64", "bf16", "fp16", "auto"})
    program.check(precision, 1, 0, R"("precision": ")" + precision + '"',
                  "small.json --dry-run --json", {"precision=" + precision});
}

TEST_CASE("dry runs: what matters stands last, and all of it is JSON") {
  const Program program;
  program.write("small.json", small());
  const test::Ended plain =
      program.check("plain", 2, 0, "^parameters: ", "small.json --dry-run --set seed=7");
  const auto lines = std::count(plain.out.begin(), plain.out.end(), '\n');
  CHECK(lines <= 12);
  const std::string last = plain.out.substr(plain.out.find("\nlength: "));
  for (const char* const matters : {"length", "parameters", "buckets", "memory a rank"})
    CHECK_MESSAGE(last.find(fmt::format("\n{}: ", matters)) != std::string::npos, matters);
  const test::Ended all = program.check("as JSON", 2, 0, "", "small.json --dry-run --json");
  const nlohmann::json json = nlohmann::json::parse(all.out);
  CHECK(json["ranks"] == 2);
  CHECK(json["config"]["batch_size"] == 16);
  CHECK(json["config"].contains("optimizer"));  // keys that were not given, too
  std::int64_t elements = 0, memory = 0;
  for (const nlohmann::json& bucket : json["buckets"]) {
    elements += bucket["elements"].get<std::int64_t>();
    CHECK(bucket["bytes"] == bucket["elements"].get<std::int64_t>() * 4);
  }
  CHECK(json["parameters"] <= elements);  // with what fills up a bucket's tensors
  for (const auto& [part, bytes] : json["memory"].items())
    memory += part == "in_all" ? 0 : bytes.get<std::int64_t>();
  CHECK(json["memory"]["in_all"] == memory);
  const std::int64_t batch = json["config"]["batch_size"], samples = json["train_samples"];
  CHECK(json["updates_per_epoch"] == samples / 2 / batch);
  CHECK(json["text"].size() == static_cast<std::size_t>(lines));
  program.check("alone", 1, 2, "--json requires --dry-run", "small.json --json");
}

TEST_CASE("--list names what there is") {
  const Program program;
  program.play(R"table(
0 1 | models | ^resnet20( |$) | --list models
0 1 | layers | ^conv2d( |$) | --list layers
0 1 | topologies | ^one-peer-exp( |$) | --list topologies
0 1 | algorithms | ^gossip( |$) | --list algorithms
0 1 | optimizers | ^accum_adamw( |$) | --list optimizers
0 1 | schedules | ^cosine( |$) | --list schedules
0 1 | data | ^fashion_mnist( |$) | --list data
0 1 | data | ^shards$ | --list data
0 1 | samplers | ^class_balanced( |$) | --list samplers
0 1 | tasks | ^classification( |$) | --list tasks
0 1 | losses | ^cross_entropy( |$) | --list losses
0 1 | metrics | ^loss( |$) | --list metrics
0 1 | keys | ^sync.algorithm.order( |$) | --list keys
0 1 | words of keys | ^schedule.type .*constant, cosine, | --list keys --long
)table");
  for (const std::string name :
       {"color_jitter", "crop_padding", "cutmix", "cutout", "flip", "mixup", "rand_augment",
        "random_erasing", "random_resized_crop", "trivial_augment"})
    program.check(name, 1, 0, "^" + name + "$", "--list augmentations");
}

}  // namespace
}  // namespace starling
