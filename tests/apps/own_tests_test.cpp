// A test set of one's own: pictures that no training has seen, and what other data says to it.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/apps/program.h"

namespace starling {
namespace {

using test::Program;

/// Golden pictures in folders of classes.
void add(const Program& program, const std::string& folder, const std::string& name,
         const std::string& golden) {
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(program.root() + "/tests/golden/pictures/" + golden,
                             folder + "/" + name,
                             std::filesystem::copy_options::overwrite_existing);
}

TEST_CASE(
    "own tests: of pictures, whose classes are known by name, without the training pictures") {
  const Program program;
  const char *const ant = "rgb8.png", *const bee = "grey1.png", *const cat = "palette2.png";
  for (const char* name : {"1.png", "2.png"}) {
    add(program, "pets/train/ant", name, ant);
    add(program, "pets/train/bee", name, bee);
    add(program, "pets/train/cat", name, cat);
  }
  add(program, "pets/val/ant", "x.png", ant);
  add(program, "pets/val/bee", "y.png", bee);
  add(program, "pets/val/cat", "z.png", cat);
  // cat is another number here than there
  for (const char* name : {"1.png", "2.png", "3.png"}) add(program, "new/cat", name, cat);
  add(program, "new/bee", "1.png", bee);
  add(program, "odd/dog", "1.png", bee);
  program.write(
      "pets.json",
      R"({"data": {"type": "image_folder", "path": "pets", "image_size": 16, "test_resize": 20, "test_crop": 16},
    "model": {"type": "mlp", "hidden": [32]}, "batch_size": 2, "steps": 200, "threads": 1, "tensorboard": false,
    "optimizer": {"type": "adam", "lr": 0.001}, "evaluate": {"every_epochs": 0}, "checkpoint": {"every_epochs": 0}})");
  program.play(R"table(
0 1 | a run that knows its pictures by heart | test accuracy 100.00 % | pets.json --output run
0 1 | tests of one's own | ^pictures: 4 for tests, of new: ant 0, bee 1, cat 3$ | --evaluate run --test new --confusion new.csv --samples new-samples.csv
line new.csv ^cat,0,0,3$
line new-samples.csv ^new/cat/3.png,cat,cat,
0 1 | each class is its own | ^cat +3 +100.00 % | --evaluate run --test new
0 1 | in training too | ^pictures: 6 for training \+ 4 for tests, of new: ant 2 \+ 0, bee 2 \+ 1, cat 2 \+ 3$ | pets.json --output during | data.val_path=new | steps=1
2 1 | the training pictures | pets/train: data\.val_path: is trained on too | pets.json --output out | data.val_path=pets/../pets/train
2 1 | beside a drawn share | data\.val_fraction: is given beside data.val_path | pets.json --output out | data.val_path=new | data.val_fraction=0.5
2 1 | a class that nobody knows | odd: data\.val_path: has the class 'dog', which the model has not.*known: ant, bee, cat | --evaluate run --test odd
2 1 | at training too | has the class 'dog', which pets/train has not | pets.json --output out | data.val_path=odd
2 1 | a folder that is not there | there is no nwe; did you mean 'new'\?; needed: a folder of classes | --evaluate run --test nwe
2 1 | one without classes | new/cat: data\.val_path: has no class folders | --evaluate run --test new/cat
remove pets
0 1 | once the pictures are gone | ^cat +3 +100.00 % | --evaluate run --test new
0 2 | by two ranks | ^cat +3 +100.00 % | --evaluate run --test new
)table");
  CHECK(test::last_line(program.train(1, "--evaluate run --test new"))["samples"] == 4);
  CHECK(test::last_line(program.train(1, "--evaluate run --test new"))["test_accuracy"] == 1.0);
}

TEST_CASE("own tests: shards take a folder of classes, other data says that it has none") {
  const Program program;
  program.write("run.json", test::short_config(R"({"type": "mlp", "hidden": [4]})",
                                               R"("batch_size": 16, "steps": 2,)"));
  program.play(R"table(
0 1 | a run | done | run.json --output run
2 1 | of made-up data | --test x: data of type synthetic has tests of its own and takes no others; leave it out | --evaluate run --test x
)table");
}

}  // namespace
}  // namespace starling
