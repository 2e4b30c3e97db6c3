#include "apps/training/world_check.h"
#include "apps/training/state/data_contents.h"
#include "comm/agreement.h"

#include <doctest/doctest.h>

#include <string>

#include "tests/fakes/transport/fake_transport.h"
#include "tests/support/errors.h"

namespace starling {
namespace {

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

using test::contains;

}  // namespace

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
