#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/bench/benches.h"
#include "apps/data/augment.h"
#include "apps/data/picture_index.h"
#include "apps/pictures/codec.h"
#include "apps/pictures/picture.h"
#include "core/console.h"

namespace starling {
namespace {

struct PicturesBench {
  std::string folder;  ///< of class folders, as data.path/train
  std::int64_t pictures = 200;
  int repeats = 5;
  bool json = false;
};

constexpr std::int64_t kSide = 224;

struct PictureBytes {
  std::string path;
  std::vector<std::uint8_t> bytes;
};

std::vector<PictureBytes> load(const PicturesBench& settings) {
  const PictureIndex index(settings.folder);
  std::vector<PictureBytes> pictures;
  const std::int64_t step = std::max<std::int64_t>(1, index.size() / settings.pictures);
  for (std::int64_t i = 0;
       i < index.size() && static_cast<std::int64_t>(pictures.size()) < settings.pictures;
       i += step) {
    pictures.push_back({index.path(i), read_picture_file(index.path(i))});
  }
  return pictures;
}

Augmenters torchvision_crop() {
  const nlohmann::json json{{"random_resized_crop", nlohmann::json::object()}};
  ConfigSection section(json, "bench");
  return read_augmenters(section, Shape{kSide, kSide, 3});
}

int bench_pictures(const PicturesBench& settings) {
  const std::vector<PictureBytes> pictures = load(settings);
  const Augmenters crop = torchvision_crop();
  std::vector<std::uint8_t> image(static_cast<std::size_t>(kSide * kSide * 3));
  DecodedRegion whole;
  PictureDecoder scaled, unscaled({.scaled_decoding = false});
  std::vector<double> whole_times, crop_times, unscaled_times;
  double pixels = 0.0;
  for (int repeat = 0; repeat < settings.repeats; ++repeat) {
    const ImageChange change = image_change(crop, 1, repeat);
    double seconds[3] = {};
    for (std::size_t i = 0; i < pictures.size(); ++i) {
      const std::string& path = pictures[i].path;
      const std::vector<std::uint8_t>& bytes = pictures[i].bytes;
      const PartChoice part = [&](const PictureSize& size) {
        if (repeat == 0) pixels += static_cast<double>(size.height * size.width);
        return *change.part(static_cast<std::int64_t>(i), size);
      };
      const PictureSize size = scaled.size(bytes, path);
      const auto decode = [&](PictureDecoder& decoder) {
        decoder.decode(bytes, path, part, kSide, kSide, 3, image.data());
      };
      seconds[0] += seconds_of([&] {
        if (is_jpeg(bytes)) {
          decode_jpeg(bytes, path,
                      {0, 0, jpeg_header(bytes, path).height, jpeg_header(bytes, path).width, 1},
                      whole);
        } else {
          decode_png(bytes, path, {0, 0, size.height, size.width, 1}, whole);
        }
      });
      seconds[1] += seconds_of([&] { decode(scaled); });
      seconds[2] += seconds_of([&] { decode(unscaled); });
    }
    const auto count = static_cast<double>(pictures.size());
    whole_times.push_back(1e3 * seconds[0] / count);
    crop_times.push_back(1e3 * seconds[1] / count);
    unscaled_times.push_back(1e3 * seconds[2] / count);
  }
  const double whole_ms = median(whole_times), crop_ms = median(crop_times),
               unscaled_ms = median(unscaled_times);
  // choose() is called twice per picture in the first round
  const double megapixels = pixels / 2e6 / static_cast<double>(pictures.size());
  if (settings.json) {
    answer("{}\n", nlohmann::json{{"pictures", pictures.size()},
                                  {"megapixels", megapixels},
                                  {"whole_ms", whole_ms},
                                  {"crop_ms", crop_ms},
                                  {"unscaled_crop_ms", unscaled_ms},
                                  {"ratio", whole_ms / crop_ms}}
                       .dump());
    return 0;
  }
  answer("{} pictures of {:.2f} megapixels on average, one core, medians of {} rounds\n",
         pictures.size(), megapixels, settings.repeats);
  answer("{:<46} {:>8} {:>10}\n", "", "ms", "pictures/s");
  const auto row = [](const char* name, double ms) {
    answer("{:<46} {:>8.3f} {:>10.0f}\n", name, ms, 1e3 / ms);
  };
  row("the library decodes the whole picture", whole_ms);
  row("random_resized_crop to 224×224", crop_ms);
  row("the same, decoded at full scale", unscaled_ms);
  answer("rate of crops over rate of whole pictures: {:.2f}\n", whole_ms / crop_ms);
  return 0;
}

}  // namespace

Command add_pictures_bench(CLI::App& app) {
  const auto given = std::make_shared<PicturesBench>();
  PicturesBench& settings = *given;
  CLI::App* command = app.add_subcommand(
      "pictures", "random crops of picture files on one core, against decoding them whole");
  command->add_flag("--json", settings.json, "one JSON object");
  command->add_option("folder", settings.folder, "has a folder of JPEG or PNG files for each class")
      ->required();
  add_number(*command, "--pictures", settings.pictures, "how many, spread over the folder", 1,
             1'000'000);
  add_number(*command, "--repeats", settings.repeats, "runs to take the median of", 1, 100000);
  return {command, [given] { return bench_pictures(*given); }};
}

}  // namespace starling
