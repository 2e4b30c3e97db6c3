#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "apps/data/shards/prepare_images.h"
#include "apps/data/shards/shard_set.h"
#include "core/philox.h"
#include "tests/apps/picture_tree.h"
#include "tests/apps/prepared_tree.h"

// Shards that are not what starling-prepare wrote: what is wrong with them is found and named.
using namespace starling;
using namespace starling::test;

TEST_CASE("shards: a byte that is flipped is found wherever it lies, and its record named") {
  PreparedTree prepared;
  prepared.options.shard_pictures = 3;
  prepared.make();
  const auto whole = prepared.files();
  for (const auto& [name, text] : whole) {
    std::vector<std::string> titles(text.size());
    if (name.ends_with(".shard")) {
      const ShardFile file(prepared.file(name));
      for (std::int64_t i = 0; i < file.records(); ++i) {
        const ShardEntry& entry = file.entry(i);
        std::fill_n(titles.begin() + static_cast<std::ptrdiff_t>(entry.at), entry.bytes,
                    ": record " + std::to_string(i) + " (" + file.name(i) + ")");
      }
    }
    const std::size_t step = text.size() > 1000 ? 7 : 1;
    for (std::size_t at = 0; at < text.size(); at += at + 400 < text.size() && at > 24 ? step : 1) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << at % 8));
      rewrite(prepared.file(name), damaged);
      CAPTURE(name);
      CAPTURE(at);
      const std::vector<std::string> faults = faults_of(prepared.options.destination);
      REQUIRE(faults.size() == 1);
      CHECK(contains(faults[0], prepared.file(name) + titles[at]));
      const std::string told =
          error_of(ExitCode::kUsage, [&] { read_everything(*prepared.open()); });
      CHECK(contains(told, prepared.file(name) + titles[at]));
    }
    rewrite(prepared.file(name), text);
  }
  // With on_bad_image the next of its class stands in.
  std::string damaged = whole.at("train-00000.shard");
  damaged[100] = static_cast<char>(damaged[100] ^ 1);
  rewrite(prepared.file("train-00000.shard"), damaged);
  const auto patient = prepared.open({{"on_bad_image", "skip"}});
  CHECK(read_image(*patient, ShardSplit::kTrain, 0) == read_image(*patient, ShardSplit::kTrain, 1));
}

TEST_CASE("shards: files that are cut off, of another version, foreign or exchanged are named") {
  PreparedTree prepared;
  prepared.make();
  const auto whole = prepared.files();
  const auto put = [&](const std::string& name, const std::string& text) {
    rewrite(prepared.file(name), text);
  };
  for (const auto& [name, text] : whole) {
    for (std::size_t length = 0; length < text.size();
         length += length + 100 < text.size() && length > 100 ? 97 : 1) {
      put(name, text.substr(0, length));
      CAPTURE(name);
      CAPTURE(length);
      CHECK(contains(prepared.refusal(), prepared.file(name)));
      CHECK(faults_of(prepared.options.destination).size() == 1);
    }
    put(name, text + "x");
    CHECK(contains(prepared.refusal(), prepared.file(name)));
    std::string newer = text;
    newer[8] = 2;
    put(name, newer);
    CHECK(contains(prepared.refusal(),
                   prepared.file(name) + " is of version 2, this program reads version 1"));
    put(name, read_text(prepared.tree.folder / "train/bee/1.jpg"));
    CHECK(contains(
        prepared.refusal(),
        prepared.file(name) + (name == "shards.index" ? " is no index of shards"
                                                      : " is no shard by its first bytes")));
    put(name, text);
  }
  put("train-00000.shard", whole.at("train-00001.shard"));
  CHECK(contains(prepared.refusal(), "is not the shard that the index beside it means"));
  put("train-00000.shard", whole.at("train-00000.shard"));
  // Of another preparation.
  prepared.options.max_pixels = 1 << 20;
  prepared.options.destination += "-other";
  prepared.make();
  fs::copy_file(prepared.tree.folder / "shards/train-00000.shard",
                prepared.file("train-00000.shard"), fs::copy_options::overwrite_existing);
  CHECK(contains(prepared.refusal(), "but one of another preparation"));
}

TEST_CASE("shards: a file that is shortened while it is open is named") {
  const PreparedTree prepared;
  prepared.make();
  const auto shards = prepared.open();
  (void)read_image(*shards, ShardSplit::kTrain, 0);
  fs::resize_file(prepared.file("train-00000.shard"), 0);
  for (const std::int64_t sample : {0, 1}) {
    const std::string text =
        error_of(ExitCode::kUsage, [&] { (void)read_image(*shards, ShardSplit::kTrain, sample); });
    CHECK(contains(text, prepared.file("train-00000.shard")));
    CHECK(contains(text, "the file was shortened, or its disk is failing"));
  }
  (void)read_image(*shards, ShardSplit::kTrain, 2);
}
