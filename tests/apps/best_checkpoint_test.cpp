// The checkpoint that tested best, `checkpoint.best`.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/apps/data_test_support.h"
#include "tests/apps/recipe_run.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

namespace starling {
namespace {

using test::contains;
using test::Folder;
using test::lines_with;
using test::recipe_config;
using test::train_to_end;

}  // namespace

TEST_CASE("recipe/best: the best test's checkpoint is kept, and a run that goes on knows it") {
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const Folder folder;
    const nlohmann::json json = recipe_config(
        R"({"checkpoint": {"every_steps": 4, "best": true}, "steps": 12, "optimizer": {"lr": 0.3}})");
    CHECK(train_to_end(json, folder.path(), ranks) == ExitCode::kOk);
    const auto tests = lines_with(folder.path(), "test_accuracy");
    REQUIRE(tests.size() == 6);
    const auto first_best = [](const std::vector<nlohmann::json>& lines) {
      return *std::max_element(lines.begin(), lines.end(), [](const auto& a, const auto& b) {
        return a["test_accuracy"] < b["test_accuracy"];
      });
    };
    const nlohmann::json best = first_best(tests);
    const CheckpointFolder checkpoints(folder.path());
    REQUIRE(checkpoints.best());
    CHECK(checkpoints.best()->step == best["step"]);
    CHECK(checkpoints.best()->metric == "test_accuracy");
    CHECK(checkpoints.best()->value == best["test_accuracy"]);
    CHECK(checkpoints.newest() == 12);
    const nlohmann::json summary = nlohmann::json::parse(test::read_text(folder / "summary.json"));
    CHECK(summary["best"] ==
          nlohmann::json{{"step", best["step"]}, {"test_accuracy", best["test_accuracy"]}});
    CHECK(std::filesystem::is_regular_file(folder / "checkpoints/best/model.safetensors"));
    for (int rank = 0; rank < ranks; ++rank) {
      const SafetensorsFile file = read_safetensors(folder.path() + "/checkpoints/best/rank-" +
                                                    std::to_string(rank) + ".safetensors");
      CHECK(file.metadata.at("step") == std::to_string(best["step"].get<int>()));
    }
    CHECK_FALSE(std::filesystem::exists(folder / "checkpoints/best.new"));
    CHECK_FALSE(std::filesystem::exists(folder / "checkpoints/best.old"));
    // A longer run goes on after step 12, and whatever was best stays so unless it is beaten.
    nlohmann::json longer = json;
    longer["steps"] = 18;
    CHECK(train_to_end(longer, folder.path(), ranks, true) == ExitCode::kOk);
    const nlohmann::json of_all = first_best(lines_with(folder.path(), "test_accuracy"));
    CHECK(checkpoints.best()->step == of_all["step"]);
    CHECK(checkpoints.best()->value == of_all["test_accuracy"]);
  }
}

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
