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
  std::int64_t size = 0;  ///< shorter side of what is larger; 0: pictures stay as they are
  /// Of JPEG that is made anew; 0: 90 for pictures that are resized. Without a size: all become
  /// JPEG of it
  int quality = 0;
  bool raw = false;  ///< pixels instead of JPEG
  Interpolation interpolation = Interpolation::kBilinear;
  std::int64_t max_pixels = 200'000'000;
  std::int64_t shard_pictures = 1024;
  bool skip_bad = false;  ///< pictures that cannot be decoded are left out
  int threads = 1;
};

/// Called as the work goes on; all but the last are called on the caller's thread, and any may be
/// empty.
struct PrepareWatch {
  /// Called first, with the number of pictures and how many of them were done before
  std::function<void(std::int64_t total, std::int64_t done)> begins;
  std::function<void(std::int64_t done)> goes_on;
  std::function<void(const Error& error)> bad;  ///< a picture or record
  /// Whether to end after this picture; any thread asks
  std::function<bool()> stop;
};

struct PrepareReport {
  std::int64_t classes = 0, pictures = 0, skipped = 0, shards = 0;
  std::int64_t made = 0;    ///< shards that were not there before
  std::uint64_t bytes = 0;  ///< of all shards
  bool stopped = false;
};

/// Writes the pictures of source/train and source/val (where there is one) as shards and their
/// index. The bytes are the same for any number of threads. Shards that an interrupted call has
/// left whole are kept. Errors: Error(kUsage) names a bad picture or a folder that holds something
/// else, Error(kOutput) what cannot be written.
PrepareReport prepare_images(const PrepareOptions& options, const PrepareWatch& watch);

struct CheckReport {
  std::int64_t records = 0, shards = 0, faults = 0;
  bool stopped = false;
};
/// Compares all bytes of a folder of shards with their checksums; watch.bad hears of each fault.
/// Error(kUsage) where the index is wrong.
CheckReport check_shards(const std::string& folder, int threads, const PrepareWatch& watch);

}  // namespace starling
