// Data of a run: ranks and checkpoints that have other data, bad pictures, shards, samplers, caches
// and augmentations. What is wrong with files is data_files_test.cpp's, image_folder_test.cpp's and
// shards_test.cpp's.
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/data/shards/prepare_images.h"
#include "apps/inference/checkpoint_file.h"
#include "core/safetensors.h"
#include "tests/apps/program.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using test::Program;

/// Ten training and four test pictures of each of two classes, under first/, and a run of 12 steps.
void make_pictures(const Program& program) {
  const std::string golden = program.root() + "/tests/golden/pictures/";
  for (const std::string name : {"a", "b"}) {
    for (int i = 0; i < 10; ++i)
      program.play("copy " + golden + "rgb8.png first/train/" + name + "/" + std::to_string(i) +
                   ".png");
    for (int i = 0; i < 4; ++i)
      program.play("copy " + golden + "420.jpg first/val/" + name + "/" + std::to_string(i) +
                   ".jpg");
  }
  program.write("run.json", R"({
    "model": {"type": "mlp", "hidden": [4]}, "threads": 1,
    "data": {"type": "image_folder", "path": "first", "image_size": 8, "test_resize": 8, "test_crop": 8},
    "batch_size": 2, "steps": 12, "log_every": 1, "tensorboard": false, "optimizer": {"type": "sgd", "lr": 0.01},
    "checkpoint": {"every_steps": 4}, "evaluate": {"every_epochs": 0}, "sync": {"transport": "mpi"}})");
}

// In which things data may differ is data_contents_test.cpp's.
TEST_CASE("data: a run goes on with the same data at another place, and with no others") {
  const Program program;
  make_pictures(program);
  program.play(R"table(
copy first moved
copy first names
copy names/train/b names/train/zebra
copy names/val/b names/val/zebra
remove names/train/a names/val/a
copy first renamed
copy renamed/train/b/3.png renamed/train/b/3x.png
remove renamed/train/b/3.png
0 2 | a run | done | run.json --output whole
0 2 | a part of it | done | run.json --output part | steps=8
copy part other
2 2 | classes of other names | rank-0\.safetensors: the data set in names has 'b' as class 0, at the checkpoint it had 'a'; go on with the same data | run.json --resume other | data.path=names
2 1 | the same with --elastic | rank-0\.safetensors: the data set in names has 'b' as class 0 | run.json --resume other --elastic | data.path=names
2 2 | another name | names of pictures in train/ of checksum [0-9a-f]{8}, at the checkpoint it had as many of checksum | run.json --resume other | data.path=renamed
copy moved/train/a/0.png moved/train/a/more.png
2 2 | data that changed where they lie | the data set in moved has 21 training samples, at the checkpoint it had 20 | run.json --resume other | data.path=moved
remove moved/train/a/more.png
0 2 | the same data at another place | continuing after step 8 | run.json --resume other | data.path=moved
same whole other
copy part old
write old/checkpoints/step-8/DONE step 8
)table");
  for (const char* rank : {"0", "1"}) {  // as older versions wrote it
    const std::string path = std::string("old/checkpoints/step-8/rank-") + rank + ".safetensors";
    SafetensorsFile file = read_safetensors(path);
    file.metadata.erase("data");
    write_safetensors(path, file);
  }
  program.play(R"table(
0 2 | a checkpoint that does not say what its data were | continuing after step 8 | run.json --resume old | data.path=renamed
copy first more
copy first/train/a/0.png more/train/a/more.png
copy first three
copy first/train/a three/train/c
copy first/val/a three/val/c
)table");
  const auto apart = [&](const std::string& folder, int status, const std::string& pattern,
                         const std::string& option, const std::string& value) {
    const test::Ended ended = program.train(
        {{"run.json", option, value},
         {"run.json", option, value, "--set", "data.path=" + folder, "--set", "data.threads=3"}});
    CHECK(ended.status == status);
    CHECK_MESSAGE(test::matches(ended.out + ended.err, pattern), ended.err);
  };
  apart(
      "more", 2,
      R"(the ranks' data are not the same: rank 1 \(host [^ ]+, data.path more\) has 21 training samples, rank 0 \(host [^ ]+, data.path first\) has 20)",
      "--output", "apart");
  apart(
      "three", 2,
      R"(data.classes is 2 on rank 0 \(host [^ ]+, data.path first\) and 3 on rank 1 \(host [^ ]+, data.path three\))",
      "--output", "apart");
  apart("names", 2, "the ranks' data are not the same: rank 1", "--evaluate", "whole");
  program.play("lacks apart");
  apart("moved", 0, "done", "--output", "copies");
  program.play("same whole copies");
}

TEST_CASE(
    "data: a test picture that is cut off, of one rank's part alone, costs no checkpoint that was "
    "due") {
  const Program program;
  make_pictures(program);  // val/a/1.jpg is sample 1
  program.play(R"table(
let tests = evaluate.every_steps=4 | data.path=bad
copy first bad
cut bad/val/a/1.jpg 600
0 2 | a whole run with tests | test accuracy | run.json --output tested | evaluate.every_steps=4
2 2 | ends the run by name | ^rank 1: .*bad/val/a/1.jpg: cannot be decoded | run.json --output cut | $tests
said 1
has cut/checkpoints/step-4/DONE
2 2 | at the last step | ^rank 1: .*1.jpg: cannot be decoded | run.json --output last | data.path=bad | checkpoint.best=true
has last/checkpoints/step-12/DONE
lacks last/checkpoints/best
2 2 | where no checkpoint is due | ^rank 1: .*1.jpg | run.json --output undue | $tests | checkpoint.every_steps=5
lacks undue/checkpoints/step-4 undue/checkpoints/step-5
2 1 | one rank | 1.jpg: cannot be decoded | run.json --output alone | $tests
has alone/checkpoints/step-4/DONE
2 2 | of two ranks' averages | ^rank 1: .*1.jpg | run.json --output ema | $tests | ema.decay=0.9
has ema/checkpoints/step-4/DONE
2 2 | a test alone ends on all ranks | ^rank 1: .*1.jpg | run.json --evaluate tested | data.path=bad
copy first/val/a/1.jpg bad/val/a/1.jpg
0 2 | goes on once the picture is mended | continuing after step 4 | run.json --resume cut | $tests
same tested cut
losses tested cut
0 2 | or needs its test alone | done | run.json --resume last | data.path=bad | checkpoint.best=true
same tested last
)table");
}

TEST_CASE(
    "data: the order of a sampler goes on in the middle of an epoch to the bit, and a cache "
    "changes none") {
  const Program program;
  program.write("run.json", test::short_config(R"({"type": "mlp", "hidden": [32]})",
                                               R"("batch_size": 16, "steps": 40,
    "optimizer": {"type": "sgd", "lr": 0.02}, "checkpoint": {"every_steps": 20, "keep": 9},)"));  // 32 steps an epoch on two ranks
  program.play(R"table(
let measured = data.sampler={"type": "load_balanced", "complexity": "measured", "random_level": 0.1}
0 2 | without a sampler | done | run.json --output plain
0 2 | with shuffle | done | run.json --output named | data.sampler=shuffle
same plain named
0 2 | by measured complexities | ^reading a training sample takes .* measured on 1024 samples | run.json --output straight | $measured
differ plain straight
copy straight again
forget again 40
0 2 | resumed in the middle of an epoch | continuing after step 20 | run.json --output again --resume latest | $measured
unsaid reading a training sample
same straight again
2 2 | with another sampler | data.sampler | run.json --output again --resume latest | steps=41
2 2 | with more noise | data.sampler.random_level | run.json --output again --resume latest | $measured | data.sampler.random_level=0.2 | steps=41
0 2 | two epochs and a half | done | run.json --output uncached | steps=80
0 2 | with a cache | ^cache: room for 1280 of 1280 samples, 3.8 MiB shared by the 2 ranks of a host | run.json --output cached | steps=80 | data.cache=memory
same uncached cached
losses uncached cached
0 2 | with a cache for some | room for 340 of 1280 samples | run.json --output some | steps=80 | data.cache=memory | data.cache.limit_mib=1
same uncached some
0 2 | resumed without it | continuing | run.json --output cached --resume latest | steps=100
0 2 | and with it | continuing | run.json --output uncached --resume latest | steps=100 | data.cache=memory
same uncached cached
0 3 | with measured complexities, three ranks | done | run.json --output both | data.cache=memory | $measured
0 1 | a test reads each sample once, and keeps none | "samples":256 | run.json --evaluate cached/model.safetensors | data.cache=memory
)table");
  const CheckpointFile checkpoint("straight/checkpoints/step-20");
  const FileTensor first = checkpoint.read(0).tensors.at("data.complexity"),
                   second = checkpoint.read(1).tensors.at("data.complexity");
  CHECK((first.dtype == DType::kFloat32 && first.shape == Shape{1024}));
  CHECK(first.bytes == second.bytes);
  const nlohmann::json cache = program.summary("some")["cache"];
  CHECK((cache["samples"] == 340 && cache["bytes"] <= 1 << 20 && cache["hits"] > 500));
}

TEST_CASE("data: augmented images on two ranks, resumed to the bit, with mixed targets") {
  const Program program;
  program.write("run.json", R"({
    "model": {"type": "sequential", "layers": [
      {"type": "conv2d", "out_channels": 4, "kernel_size": 3, "padding": 1, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
      {"type": "global_avg_pool"}, {"type": "linear", "out_features": 4}]},
    "data": {"type": "synthetic", "image_size": 8, "classes": 4, "limit": 256, "test_limit": 64, "augment": {
      "crop_padding": 2, "padding_mode": "reflect", "flip": "alternating",
      "color_jitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1}, "rand_augment": {"n": 2, "magnitude": 9},
      "trivial_augment": true, "random_erasing": {"p": 0.25}, "cutout": 2, "mixup": 0.2, "cutmix": 1.0}},
    "loss": {"type": "cross_entropy", "label_smoothing": 0.1}, "batch_size": 8, "steps": 24, "threads": 1, "tensorboard": false,
    "optimizer": {"type": "sgd", "lr": 0.05, "momentum": 0.9}, "checkpoint": {"every_steps": 10, "keep": 9}, "log_every": 1})");
  program.play(R"table(
0 2 | two ranks | done | run.json --output straight
line straight/summary.json "test_accuracy": (0|1)
copy straight again
forget again 20 24
0 2 | resumed in the middle of an epoch | continuing after step 10 | run.json --output again --resume latest
same straight again
0 2 | with three threads that read | done | run.json --output threads | data.threads=3
same straight threads
0 2 | without mixing | done | run.json --output plain | data.augment.mixup=0 | data.augment.cutmix=0
differ straight plain
0 1 | bce_with_logits takes mixed targets | done | run.json --output bce | loss={"type": "bce_with_logits"} | steps=2
)table");
}

/// Two classes of twelve training pictures and two for tests, under pets/, and a run of 24 steps.
void make_pets(const Program& program) {
  const std::string golden = "copy " + program.root() + "/tests/golden/pictures/";
  for (int i = 1; i <= 12; ++i) {
    program.play(golden + "420.jpg pets/train/ant/" + std::to_string(i) + ".jpg");
    program.play(golden + "rgb8.png pets/train/bee/" + std::to_string(i) + ".PNG");
  }
  for (const std::string name : {"444.jpg", "progressive.jpg"})
    program.play(golden + name + " pets/val/ant/" + name);
  for (const std::string name : {"rgb_alpha8.png", "rgb16.png"})
    program.play(golden + name + " pets/val/bee/" + name);
  program.write("pets.json", R"({
    "model": {"type": "resnet20"}, "threads": 1, "tensorboard": false,
    "data": {"type": "image_folder", "path": "pets", "image_size": 16, "test_resize": 24, "test_crop": 20,
             "augment": {"random_resized_crop": {"scale": [0.3, 1]}, "flip": true}},
    "batch_size": 4, "steps": 24, "optimizer": {"type": "adamw", "lr": 5e-3}, "sync": {"topology": {"type": "ring"}, "transport": "mpi"}, "log_every": 4})");
}

TEST_CASE("data: a run on pictures stops and goes on, with images that grow too") {
  const Program program;
  make_pets(program);
  program.play(R"table(
0 2 | a run on pictures | test accuracy | pets.json --output run
lacks pets/train/.starling-index
line run/metrics.jsonl "data_wait_ms":
line run/config.json "classes": 2
0 2 | another number of threads that decode | done | pets.json --output threads | data.threads=3
same run threads
let grow = data.progressive={"from": 8, "start_epoch": 1, "end_epoch": 5, "multiple": 4}
0 2 | images that grow | epoch 3: training images of 12×12 | pets.json --output grow | $grow
differ run grow
0 2 | a run that stops at a middle size | done | pets.json --output grow-half | $grow | steps=10
0 2 | goes on, and to the full size | epoch 4: training images of 16×16 | pets.json --output grow-half --resume latest | $grow
same grow grow-half
0 1 | what there is, counted in a dry run too | ^pictures: 24 for training \+ 4 for tests: ant 12 \+ 2, bee 12 \+ 2$ | pets.json --dry-run
copy pets mixed
copy pets/train/ant/1.jpg mixed/train/loose.jpg
write mixed/train/ant/1.webp x
write mixed/train/bee/2.WEBP x
write mixed/val/bee/notes x
0 1 | and what is not | ^files that are left out: 1 .jpg beside the class folders, 2 .webp, 1 without an ending; | pets.json --dry-run | data.path=mixed
remove mixed/val
0 1 | no test picture of a class | ^classes without a test picture: bee$ | pets.json --output share | data.path=mixed | data.val_fraction=0.05 | data.test_limit=1 | steps=1
0 1 | a test takes the share of the run, and says so | ^data: tests take 1 of the 2 pictures of mixed/train that the model's run held out$ | --evaluate share
let on = data.path=mixed | data.val_fraction=0.05 | steps=1 | init=share/model.safetensors
0 1 | training goes on from it | done | pets.json --output further | $on
unsaid warning
0 1 | beside other tests | ^warning: init: share/model.safetensors was trained on some .* give its seed, 1, and no larger data.val_fraction | pets.json --output leak | $on | seed=7
0 1 | or more of them | ^warning: init: share/model.safetensors was trained on some | pets.json --output more | $on | data.val_fraction=0.5
copy pets/train/ant mixed/train/ant/more
copy pets/train/ant mixed/train/ant/again
0 1 | and what came since | ^data: tests take [3-9] of the 48 pictures of mixed/train, by the share that the model's run drew when it held out 2; .* --test PATH$ | --evaluate share | data.test_limit=0
let mlp = model={"type": "mlp", "hidden": [4]} | steps=1
copy pets/train turned/train
copy pets/val turned/val
remove turned/train/ant turned/val/ant
copy pets/train/ant turned/train/cat
copy pets/val/ant turned/val/cat
0 1 | a model of classes in another order | ^warning: init: run/model\.safetensors: its class 0 is 'ant', the data's is 'bee'; .*"skip": \["[a-z0-9.]+\.\*"\] in init | pets.json --output turn | data.path=turned | steps=1 | init=run/model.safetensors
copy turned/val turned/valid
remove turned/val
2 1 | tests that lie elsewhere | needed: these, or "val_fraction".*aside, or "val_path": "turned/valid"$ | pets.json --output no | data.path=turned
2 1 | a folder that is not there comes before what its pictures would be | image_folder: there is no pest; did you mean 'pets'\?; needed: pest/train/<class> | pets.json --output no | $mlp | data.path=pest
2 1 | or a part of it that is not | image_folder: there is no pets/val/train; needed: | pets.json --output no | $mlp | data.path=pets/val
2 1 | or one for tests | there is no pest; did you mean 'pets'\?; needed: a folder of classes | pets.json --output no | $mlp | data.val_path=pest
2 1 | and in a test of a model | there is no pest; did you mean 'pets'\?; needed: | --evaluate run | data.path=pest
2 1 | or shards | there is no pest; did you mean 'pets'\?; needed: a folder that starling-prepare | pets.json --output no | $mlp | data={"type": "shards", "path": "pest", "image_size": 16}
2 1 | or a folder that has none | there is no pets/[^ ;]*; needed: a folder that starling-prepare | pets.json --output no | $mlp | data={"type": "shards", "path": "pets", "image_size": 16}
0 1 | a dry run goes by what is declared | in all | pets.json --dry-run | data={"type": "image_folder", "path": "pest", "image_size": 16, "classes": 3, "train_samples": 40, "test_samples": 8}
0 1 | of shards too | in all | pets.json --dry-run | data={"type": "shards", "path": "pest", "image_size": 16, "classes": 3, "train_samples": 40, "test_samples": 8}
2 1 | images that shrink | data.progressive.from: is 17, larger than image_size 16 | pets.json --dry-run | data.progressive={"from": 17}
2 1 | a growth without epochs | data.progressive.end_epoch: is 3, not after start_epoch 3 | pets.json --dry-run | data.progressive={"from": 8, "start_epoch": 3, "end_epoch": 3}
copy pets others
copy others/train/bee others/train/wasp
copy others/val/bee others/val/wasp
remove others/train/bee others/val/bee
2 1 | a test on other classes | its class 1 is .bee., the data.s is .wasp.; needed: data of the model.s classes | pets.json --evaluate run | data.path=others
copy pets single
remove single/train/bee single/val/bee
0 1 | one class only is worth a line | ^warning: data: image_folder: single/train has one class, ant: the model will say it of everything; add a folder for each other class$ | pets.json --output single-run | data.path=single | steps=1
said 1
)table");
  for (const std::string folder : {"train", "val"}) {
    for (const std::string name : {"caf\xc3\xa9", "cafe\xcc\x81"})
      program.play("copy pets/" + folder + "/ant twins/" + folder + "/" + name);
  }
  program.play(R"table(
0 1 | so are two of one look | ^warning: data: image_folder: twins/train has the classes '.*' .cafe.xcc.x81. and '.*' .caf.xc3.xa9., which look the same | pets.json --output twins-run | data.path=twins | steps=1
)table");
}

TEST_CASE("data: bad pictures and folders are named, or others of their class stand in") {
  const Program program;
  make_pets(program);
  program.play(R"table(
let skip = data.on_bad_image=skip
copy pets bad
copy bad/train/ant/1.jpg bad/train/bee/0.jpg
cut bad/train/bee/0.jpg 900
2 2 | a picture that is cut off | bad/train/bee/0.jpg: cannot be decoded as JPEG: Premature end | pets.json --output out | data.path=bad
remove out
0 2 | or another stands in for it | bee/0.jpg: .*the next of its class stands in for it | pets.json --output skipped | data.path=bad | $skip
line skipped/summary.json "bad_pictures": 1
copy pets badval
cut badval/val/ant/444.jpg 100
0 2 | a test goes on without it | "bad_pictures":1,"samples":3 | pets.json --evaluate skipped | data.path=badval | $skip
copy pets allbad
cut allbad/val/ant/444.jpg 100
cut allbad/val/ant/progressive.jpg 100
cut allbad/val/bee/rgb_alpha8.png 40
cut allbad/val/bee/rgb16.png 40
2 4 | but not without all | none of the 4 test samples can be read | pets.json --evaluate skipped | data.path=allbad | $skip
2 1 | a part of train/ set aside beside val/ | but there is .*pets/val; leave one of them out: with --set data.val_fraction=0 .*pets/val is for tests | pets.json --output out | data.val_fraction=0.1
2 2 | a batch that is too large, and what to do | 32 on 2 ranks is more than the 24 training samples; allowed: <= 12, as by --set batch_size=12 | pets.json --output out | batch_size=32
2 1 | a model that takes one size only | does not take 20×20×3 | pets.json --output out | model={"type": "mlp", "hidden": [4]}
2 1 | kept samples beside random crops | data.cache.type: is memory, but pictures are cut anew | pets.json --output out | data.cache=memory
copy pets/val/ant/444.jpg bad/val/cow/444.jpg
2 1 | folders that differ | .cow. is in val/ alone; needed: the same folders in both | pets.json --output out | data.path=bad
lacks out
copy pets piped
pipe piped/train/bee/0.png
2 1 | a pipe as a picture, for which nobody waits | bee/0.png: cannot be read: it is a pipe | pets.json --output out | data.path=piped
remove out
0 2 | or the next stands in for it | bee/0.png: .*the next of its class stands in for it | pets.json --output skipped-pipe | data.path=piped | $skip
line skipped-pipe/summary.json "bad_pictures": 1
2 1 | a pipe as a model | 0.png: cannot be read: it is a pipe | pets.json --evaluate piped/train/bee/0.png
)table");
  program.check("bytes that JSON cannot keep", 1, 2,
                R"(: trace: is t\\xe9.json, which is not UTF-8)", "pets.json --dry-run",
                {"trace=t\xe9.json"});
  fs::create_symlink("unmounted/1.jpg", "pets/train/ant/away.jpg");
  program.play(R"table(
2 1 | a link to nothing | pets/train/ant/away.jpg: cannot be read: No such file or directory | pets.json --output out
remove out
0 1 | or is counted | data: 1 picture could not be decoded; in training others of the class stood in, tests left them out | pets.json --output skipped-link | data.on_bad_image=skip
)table");
}

TEST_CASE(
    "data: a run on shards has the numbers of one on the pictures, and goes on with no others") {
  const Program program;
  make_pets(program);
  const auto prepare = [](const char* source, const char* destination,
                          const std::function<void(PrepareOptions&)>& change) {
    PrepareOptions options;
    options.source = source;
    options.destination = destination;
    change(options);
    prepare_images(options, {});
  };
  program.play(
      "copy pets renamed\ncopy renamed/train/bee/3.PNG renamed/train/bee/3x.PNG\nremove "
      "renamed/train/bee/3.PNG");
  prepare("pets", "shards", [](PrepareOptions&) {});
  prepare("pets", "own", [](PrepareOptions& options) { options.raw = true; });
  for (const char* name : {"raw", "many"})
    prepare("pets", name, [](PrepareOptions& options) {
      options.size = 24, options.raw = true, options.shard_pictures = 4;
    });
  prepare("renamed", "raw-renamed",
          [](PrepareOptions& options) { options.size = 24, options.raw = true; });
  prepare("pets", "raw-small",
          [](PrepareOptions& options) { options.size = 20, options.raw = true; });
  program.play(R"table(
let short = steps=12 | log_every=1
0 2 | on folders | test accuracy | pets.json --output folder | $short
0 2 | on shards | test accuracy | pets.json --output run | $short | data.type=shards | data.path=shards | data.threads=2
losses folder run
same folder run
0 2 | on pixels of the pictures' own size | test accuracy | pets.json --output own-run | data.type=shards | data.path=own | steps=2
0 1 | on pixels | test accuracy | pets.json --output raw-run | data.type=shards | data.path=raw | steps=2
2 1 | goes on with no others | in raw-renamed has names and sizes of prepared pictures | pets.json --resume raw-run | data.type=shards | data.path=raw-renamed
2 1 | nor those of another size | in raw-small has pictures by settings of starling-prepare | pets.json --resume raw-run | data.type=shards | data.path=raw-small
0 1 | but in files of any size | continuing after step 2 | pets.json --resume raw-run | data.type=shards | data.path=many
0 1 | the test of the model file | "test_accuracy" | --evaluate run --confusion confusion.csv
line confusion.csv ^true class,ant,bee
0 1 | a plan without files | 12 classes | pets.json --dry-run | data.type=shards | data.path=nowhere | data.classes=12
2 1 | training needs them | there is no nowhere in /.*; needed: a folder that starling-prepare images SRC DEST has made | pets.json --output out | data.type=shards | data.path=nowhere
flip shards/train-00000.shard 800
2 2 | a flipped byte | shards/train-00000.shard: record 0 \(ant/1.jpg\): is damaged | pets.json --output bad | data.type=shards | data.path=shards
0 2 | or another stands in for it | record 0 \(ant/1.jpg\): is damaged.*the next of its class stands in for it | pets.json --output skipped | data.type=shards | data.path=shards | data.on_bad_image=skip
lacks out
)table");
}

}  // namespace
}  // namespace starling
