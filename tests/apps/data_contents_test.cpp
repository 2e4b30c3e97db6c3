// What a checkpoint says of its data, and ranks of theirs; and what all ranks of a run must share.
#include "apps/training/state/data_contents.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "apps/training/state/training_state.h"
#include "apps/training/world_check.h"
#include "comm/agreement.h"
#include "tests/fakes/transport/fake_transport.h"
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

/// What rank 1 of three throws.
template <class Body>
std::string agreed_error(const Body& body) {
  std::string text;
  FakeWorld(3).run([&](Transport& transport) {
    const std::string mine = test::error_text(ExitCode::kUsage, [&] { body(transport); });
    // all end, with the same words
    for (const std::string& other : transport.world().all_gather(mine)) CHECK(other == mine);
    if (transport.rank() == 1) text = mine;
  });
  return text;
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

TEST_CASE("apps/world: different builds are an error that names both") {
  const std::string report = "starling 0.1.0 (commit abc)\nOpen MPI v4.1.4\noneDNN 2.6.3\n";
  CHECK(agreed_error([&](Transport& t) { agree_on_build(t, report); }).empty());
  std::string text = agreed_error([&](Transport& t) {
    agree_on_build(
        t, t.rank() == 2 ? "starling 0.1.0 (commit abd)\nOpen MPI v4.1.4\noneDNN 2.6.3\n" : report);
  });
  for (const char* part : {"rank 0 on host", "'starling 0.1.0 (commit abc)'", "rank 2 on host",
                           "'starling 0.1.0 (commit abd)'"})
    CHECK(contains(text, part));
  text = agreed_error(
      [&](Transport& t) { agree_on_build(t, t.rank() == 1 ? report + "cuDNN 9\n" : report); });
  CHECK(contains(text, "rank 0"));
  CHECK(contains(text, "'nothing', rank 1 on host"));
}

TEST_CASE("apps/world: ranks that disagree on the config name the first key") {
  const nlohmann::json config = nlohmann::json::parse(
      R"({"batch_size": 16, "threads": 2, "data": {"type": "synthetic", "path": "a"},
    "sync": {"topology": {"type": "ring"}}, "optimizer": {"betas": [0.9, 0.99]}})");
  const auto with = [&](const char* patch) {
    return agreed_error([&](Transport& t) {
      nlohmann::json mine = config;
      if (t.rank() == 2) mine.merge_patch(nlohmann::json::parse(patch));
      agree_on_config(t, mine);
    });
  };
  CHECK(with("{}").empty());
  // a host's own affair
  CHECK(with(R"({"threads": 7, "data": {"path": "b", "threads": 3}})").empty());
  std::string text = with(R"({"batch_size": 32, "sync": {"topology": {"type": "star"}}})");
  CHECK(contains(text, "batch_size is 16 on rank 0"));
  CHECK(contains(text, "and 32 on rank 2"));
  CHECK(contains(with(R"({"sync": {"topology": {"type": "star"}}})"),
                 "sync.topology.type is \"ring\" on rank 0"));
  CHECK(contains(with(R"({"optimizer": {"betas": [0.9, 0.999]}})"),
                 "optimizer.betas.1 is 0.99 on rank 0"));
  CHECK(contains(with(R"({"seed": 3})"), "seed is not there on rank 0"));
  // What follows the folder names it.
  text = with(R"({"data": {"classes": 3, "path": "b"}})");
  CHECK(contains(text, "data.classes is not there on rank 0 (host "));
  CHECK(contains(text, ", data.path a) and 3 on rank 2 (host "));
  CHECK(contains(text, ", data.path b);"));
}

TEST_CASE(
    "apps/world: ranks that hold different data name the first difference, the host and both "
    "folders") {
  const auto with = [](const DatasetInfo& other, const std::string& path = "b") {
    return agreed_error([&](Transport& t) {
      const bool odd = t.rank() == 2;
      agree_on_data(t,
                    contents_of(odd ? other : DatasetInfo{.train_samples = 40, .test_samples = 8}),
                    odd ? path : "a");
    });
  };
  CHECK(with({.train_samples = 40, .test_samples = 8}).empty());  // at whatever path
  const std::string text = with({.train_samples = 41, .test_samples = 8});
  CHECK(contains(text, "the ranks' data are not the same: rank 2 (host "));
  CHECK(contains(text, ", data.path b) has 41 training samples, rank 0 (host "));
  CHECK(contains(text, ", data.path a) has 40; needed: "));
  // without such a key
  CHECK(
      contains(with({.train_samples = 40, .test_samples = 7}, ""), ") has 7 test samples, rank 0"));
  // What one rank alone says is told as it is.
  CHECK(contains(with({.train_samples = 40, .test_samples = 8, .checksums = {{"words", 1}}}),
                 "\"words\":1"));
}

}  // namespace starling
