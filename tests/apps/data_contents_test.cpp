// What a checkpoint says of its data, and ranks of theirs.
#include "apps/training/state/data_contents.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "apps/training/state/training_state.h"
#include "tests/support/errors.h"

namespace starling {
namespace {

using test::contains;

DatasetInfo two_classes() {
  return {.classes = 2,
          .train_samples = 40,
          .test_samples = 8,
          .class_names = {"a", "b"},
          .checksums = {{"names of files", 0xabc}}};
}

/// "mine / other", or nothing.
std::string differing(const DatasetInfo& mine, const std::string& other) {
  const auto found = difference_of(contents_of(mine), other, "c.safetensors");
  return found ? found->mine + " / " + found->other : "";
}

template <class Change>
std::string changed(const Change& change) {
  DatasetInfo mine = two_classes();
  change(mine);
  return differing(mine, contents_of(two_classes()));
}

}  // namespace

TEST_CASE("data_contents: the first thing in which data differ is told") {
  CHECK(changed([](DatasetInfo&) {}).empty());
  CHECK(changed([](DatasetInfo& mine) { mine.task = "another"; }).empty());  // the config's affair
  CHECK(changed([](DatasetInfo& mine) { mine.train_samples = 41; }) == "41 training samples / 40");
  CHECK(changed([](DatasetInfo& mine) { mine.test_samples = 0; }) == "0 test samples / 8");
  CHECK(changed([](DatasetInfo& mine) { mine.classes = 3, mine.train_samples = 60; }) ==
        "3 classes / 2");
  CHECK(changed([](DatasetInfo& mine) {
          mine.class_names = {"a", "zebra"};
        }) == "'zebra' as class 1 / 'b'");
  CHECK(changed([](DatasetInfo& mine) { mine.checksums["names of files"] = 0xdef; }) ==
        "names of files of checksum 00000def / as many of checksum 00000abc");
}

TEST_CASE("data_contents: what only one of them says is no difference") {
  CHECK(changed([](DatasetInfo& mine) { mine.class_names.clear(); }).empty());
  CHECK(changed([](DatasetInfo& mine) { mine.checksums = {{"sizes of files", 1}}; }).empty());
  CHECK(differing(two_classes(), "{}").empty());
  CHECK(differing(two_classes(), R"({"train_samples": 41, "later": [1]})") ==
        "40 training samples / 41");
}

TEST_CASE("data_contents: names that are no UTF-8 are no obstacle") {
  DatasetInfo odd = two_classes();
  odd.class_names = {"a\xff", "b"};
  CHECK(differing(odd, contents_of(odd)).empty());
  CHECK(contains(differing(odd, contents_of(two_classes())), "as class 0 / 'a'"));
}

TEST_CASE(
    "data_contents: a checkpoint of other data is refused with the folder's name, one that says "
    "nothing is not") {
  SafetensorsFile file;
  CHECK_FALSE(has_contents(file));
  CHECK_NOTHROW(check_same_contents(file, "c.safetensors", two_classes(), "pets"));
  save_contents(two_classes(), file);
  CHECK(has_contents(file));
  CHECK_NOTHROW(check_same_contents(file, "c.safetensors", two_classes(), "elsewhere"));
  DatasetInfo more = two_classes();
  more.train_samples = 41;
  const auto refusal = [&](const std::string& path) {
    return test::error_of(ExitCode::kUsage,
                          [&] { check_same_contents(file, "c.safetensors", more, path); });
  };
  CHECK(contains(refusal("pets"),
                 "c.safetensors: the data set in pets has 41 training samples, at the checkpoint "
                 "it had 40; "));
  CHECK(contains(refusal(""), "the data set has 41 training samples"));
  for (const char* damaged : {"", "{", "[1]", "7", R"({"train_samples": "x"})",
                              R"({"class_names": 3})", R"({"checksums": {"a": []}})"}) {
    file.metadata["data"] = damaged;
    CAPTURE(damaged);
    CHECK(contains(refusal("pets"), "c.safetensors: the entry 'data' is damaged"));
  }
}

TEST_CASE(
    "data_contents: changed keys are named before the numbers that follow from them, and these "
    "before what follows from them") {
  const auto config = nlohmann::json::parse(
      R"({"data": {"type": "image_folder", "path": "pets", "classes": 2, "limit": 40},
    "model": {"type": "mlp", "num_classes": 2}})");
  SafetensorsFile file;
  file.metadata = {{"format", "starling-checkpoint-1"},
                   {"ranks", "1"},
                   {"precision", "fp32"},
                   {"config", config.dump()}};
  const auto refusal = [&](const char* patch, const DatasetInfo& data) {
    nlohmann::json now = config;
    now.merge_patch(nlohmann::json::parse(patch));
    return test::error_text(ExitCode::kUsage, [&] {
      check_resumable(file, "c.safetensors", now, now, 1, DType::kFloat32, false, &data);
    });
  };
  DatasetInfo three = two_classes();
  three.classes = 3;
  const char* others =
      R"({"data": {"path": "t2", "classes": 3, "threads": 2}, "model": {"num_classes": 3}})";
  // of an older version
  CHECK(contains(refusal(others, three), "the config now says 3 for data.classes"));
  save_contents(two_classes(), file);
  CHECK(contains(refusal(others, three),
                 "the data set in t2 has 3 classes, at the checkpoint it had 2"));
  CHECK(refusal(R"({"data": {"path": "t2", "threads": 2}})", two_classes()).empty());
  DatasetInfo fewer = two_classes();
  fewer.train_samples = 20;
  CHECK(contains(refusal(R"({"data": {"limit": 20}})", fewer),
                 "the config now says 20 for data.limit"));
  CHECK(contains(refusal(R"({"seed": 3})", fewer), "has 20 training samples"));
  CHECK(contains(refusal(R"({"model": {"num_classes": 3}})", two_classes()),
                 "for model.num_classes"));
}

}  // namespace starling
