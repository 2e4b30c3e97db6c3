// The files of the checkpoint that tested best, `checkpoint.best`. Which one that is is
// changed_resume_test.cpp's.
#include <doctest/doctest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/apps/data_test_support.h"
#include "tests/apps/recipe_run.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace starling {
namespace {

using test::contains;
using test::Folder;
using test::recipe_config;
using test::train_to_end;

}  // namespace

TEST_CASE("recipe/best: one that is being written, or of a run that is no more, does not count") {
  const Folder folder;
  const CheckpointFolder checkpoints(folder.path());
  CHECK_FALSE(checkpoints.best());
  SafetensorsFile file;
  file.metadata["step"] = "4";
  checkpoints.begin_best();
  checkpoints.write_best(0, file);
  CHECK_FALSE(checkpoints.best());
  checkpoints.begin_best();  // again, after an interruption
  checkpoints.complete_best({4, "test_loss", 0.5}, {checkpoints.write_best(0, file)});
  CHECK(checkpoints.best()->value == 0.5);
  CHECK_FALSE(checkpoints.newest());  // --resume does not look at it
  checkpoints.begin_best();
  checkpoints.complete_best({6, "test_loss", 0.25}, {});
  CHECK(checkpoints.best()->step == 6);
  // Stopped between its two renames: the one before is there under another name.
  std::filesystem::rename(folder / "checkpoints/best", folder / "checkpoints/best.old");
  CHECK(checkpoints.best()->step == 6);
  checkpoints.begin_best();
  checkpoints.complete_best({8, "test_loss", 0.125}, {});
  CHECK(checkpoints.best()->step == 8);
  CHECK_FALSE(std::filesystem::exists(folder / "checkpoints/best.old"));
  // What was best after the step that a run goes on from is not its best.
  folder.write("checkpoints/best/DONE",
               R"({"step": 1000, "metric": "test_accuracy", "value": 2.0})");
  CHECK(train_to_end(recipe_config(R"({"checkpoint": {"best": true}})"), folder.path(), 1) ==
        ExitCode::kOk);
  CHECK(checkpoints.best()->step <= 8);
}

TEST_CASE("recipe/best: a damaged one is named and set aside, and the next test makes a new one") {
  const Folder folder;
  const CheckpointFolder checkpoints(folder.path());
  SafetensorsFile file;
  file.metadata["step"] = "4";
  const auto fill = [&] {
    checkpoints.begin_best();
    checkpoints.complete_best({4, "test_accuracy", 0.5}, {checkpoints.write_best(0, file)});
  };
  fill();
  const std::string name = "checkpoints/best/DONE", done = test::read_text(folder / name);
  const auto error = [&] {
    return test::error_of(ExitCode::kUsage, [&] { (void)checkpoints.best(); });
  };
  // other damage is output_checkpoint_test.cpp's
  for (const std::string& text : {std::string(), std::string("step 4\n"), done + "\n"}) {
    CAPTURE(text);
    folder.write(name, text);
    CHECK(contains(error(), folder / name));
  }
  std::filesystem::remove(folder / name);
  CHECK(contains(error(), folder / name));
  fill();
  const std::string rank_file = folder / "checkpoints/best/rank-0.safetensors";
  std::filesystem::resize_file(rank_file, 3);
  CHECK(contains(error(), rank_file));
  std::filesystem::remove(rank_file);
  CHECK(contains(error(), rank_file));
  CHECK(checkpoints.set_best_aside().empty());
  CHECK_FALSE(checkpoints.best());
  CHECK(std::filesystem::exists(folder / "checkpoints/best.damaged/DONE"));
  fill();
  CHECK(checkpoints.best()->step == 4);
  // Of an older version, without a checksum.
  folder.write(name, R"({"step": 3, "metric": "test_loss", "value": 2.0})");
  CHECK(checkpoints.best()->step == 3);
  folder.write(name, R"({"step": 3, "metric": "test_loss", "value": 2.0, "checksun": "0"})");
  CHECK(contains(error(), "'checksun'"));
}

}  // namespace starling
