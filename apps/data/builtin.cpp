#include "apps/data/builtin.h"

#include <algorithm>
#include <utility>

#include "core/log.h"

namespace starling {

void read_limits(ConfigSection& section, std::int64_t& limit, std::int64_t& test_limit,
                 const std::string& which) {
  section.read("limit", limit, Range::at_least(0),
               "use " + which + " of the training set (0: all)");
  section.read("test_limit", test_limit, Range::at_least(0),
               "use " + which + " of the test set (0: all)");
}

BuiltinDataset::BuiltinDataset(Shape image, std::int64_t classes) {
  info_.image = image;
  info_.classes = classes;
}

void BuiltinDataset::read_normalize(ConfigSection& section, const std::vector<double>& mean,
                                    const std::vector<double>& deviation) {
  // The bounds keep the float quotient finite.
  ConfigSection normalize = section.section(
      "normalize", "mean and standard deviation of the pixels (scaled to 0-1), per channel");
  const auto means =
      normalize.numbers("mean", mean, Range::closed(-1e6, 1e6), "subtracted from each channel");
  const auto deviations = normalize.numbers("std", deviation, Range::closed(1e-6, 1e6),
                                            "each channel is divided by it");
  const auto channels = static_cast<std::size_t>(info_.image[2]);
  const auto check = [&](const char* key, std::size_t found) {
    if (found != channels) {
      section.finish();  // a misspelt `channels` is reported first
      normalize.error(key, "has {} entries, the images have {} channel{}", found, channels,
                      channels == 1 ? "" : "s");
    }
  };
  check("mean", means.size());
  check("std", deviations.size());
  normalize.finish();
  for (const auto& [key, numbers] : {std::pair("mean", &means), std::pair("std", &deviations)}) {
    if (const auto most = std::ranges::max_element(*numbers); *most > 2.0)
      log::info(
          "warning: data.normalize.{}: {} is of pixels from 0 to 255, but they are scaled to 0-1; "
          "divide it by 255",
          key, *most);
  }
  for (std::size_t c = 0; c < std::min(channels, means.size()); ++c) info_.mean[c] = means[c];
  for (std::size_t c = 0; c < std::min(channels, deviations.size()); ++c)
    info_.std[c] = deviations[c];
}

void BuiltinDataset::set_samples(std::int64_t train, std::int64_t test) {
  info_.train_samples = limit_ > 0 ? std::min(limit_, train) : train;
  info_.test_samples = test_limit_ > 0 ? std::min(test_limit_, test) : test;
}

void register_builtin_datasets() {
  static const bool once = [] {
#define STARLING_REGISTER_DATASETS(name) register_##name(datasets());
    STARLING_DATASET_FILES(STARLING_REGISTER_DATASETS)
#undef STARLING_REGISTER_DATASETS
    return true;
  }();
  static_cast<void>(once);
}

}  // namespace starling
