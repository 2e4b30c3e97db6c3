#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "apps/pictures/picture.h"
#include "core/error.h"

namespace starling {

/// Settings of `starling-prepare images`.
struct PrepareOptions {
  std::string source, destination;
  std::int64_t size = 0;  ///< larger pictures are resized to this shorter side; 0: not resized
  /// Of re-encoded JPEG; 0: 90 if pictures are resized. If set without a size: all pictures are
  /// re-encoded
  int quality = 0;
  bool raw = false;  ///< store pixels instead of JPEG
  Interpolation interpolation = Interpolation::kBilinear;
  std::int64_t max_pixels = 200'000'000;
  std::int64_t shard_pictures = 1024;
  bool skip_bad = false;  ///< leave out pictures that cannot be decoded
  int threads = 1;
};

/// Progress callbacks, any may be empty. All but `stop` are called on the caller's thread.
struct PrepareWatch {
  /// Called first, with the number of pictures and how many of them already exist
  std::function<void(std::int64_t total, std::int64_t done)> begins;
  std::function<void(std::int64_t done)> goes_on;
  std::function<void(const Error& error)> bad;  ///< a picture or record is bad
  /// Whether to end after this picture; called on any thread
  std::function<bool()> stop;
};

struct PrepareReport {
  std::int64_t classes = 0, pictures = 0, skipped = 0, shards = 0;
  std::int64_t made = 0;    ///< newly written shards
  std::uint64_t bytes = 0;  ///< of all shards
  bool stopped = false;
};

/// Writes the pictures of source/train and source/val (if it exists) as shards with an index. The
/// result does not depend on the number of threads. Complete shards of an interrupted call are
/// kept. Error(kUsage) names a bad picture, or a folder with other content; Error(kOutput) a failed
/// write.
PrepareReport prepare_images(const PrepareOptions& options, const PrepareWatch& watch);

struct CheckReport {
  std::int64_t records = 0, shards = 0, faults = 0;
  bool stopped = false;
};
/// Compares all bytes of a folder of shards with their checksums; watch.bad is called for each
/// mismatch. Error(kUsage) if the index is invalid.
CheckReport check_shards(const std::string& folder, int threads, const PrepareWatch& watch);

/// Settings of `starling-prepare example`.
struct ExampleTree {
  std::string destination;
  std::int64_t classes = 100, train = 12, val = 3;  ///< train, val: pictures per class
  std::int64_t width = 500, height = 375;  ///< of landscape pictures; every third is portrait
  std::uint64_t seed = 1;
  int threads = 1;
};

/// Generates pictures as destination/train/<class>/*.jpg and destination/val/<class>/*.jpg, to try
/// a config or a machine without the real data. A class is a shape, two colours and a background
/// grid; position, size, light and noise are random, so that models must generalise. Pictures do
/// not depend on the number of threads. Error(kUsage) if the folder is not empty. Reports their
/// number and bytes.
PrepareReport write_example_tree(const ExampleTree& tree, const PrepareWatch& watch);

}  // namespace starling
