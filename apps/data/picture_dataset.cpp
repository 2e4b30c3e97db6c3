#include "apps/data/picture_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <system_error>
#include <utility>

#include "apps/data/drawn_tests.h"
#include "apps/inference/description.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/log.h"
#include "core/registry.h"
#include "core/text.h"

namespace starling {
namespace {

constexpr std::size_t kBadPicturesNamed = 5;  ///< per rank; further ones are only counted

/// The number of pictures of each class among `samples`, which are ascending.
std::vector<std::int64_t> counts_of(const PictureSource& source,
                                    const std::vector<std::int64_t>& samples) {
  std::vector<std::int64_t> counts;
  auto begin = samples.begin();
  for (std::size_t label = 0; label < source.classes().size(); ++label) {
    const auto end =
        std::lower_bound(begin, samples.end(), source.first(static_cast<std::int64_t>(label) + 1));
    counts.push_back(end - begin);
    begin = end;
  }
  return counts;
}

/// The first pictures of each class, `limit` in total, in proportion to the classes' sizes.
/// Remainders of rounding down go to the classes with the largest fractions (Hamilton's method).
std::vector<std::int64_t> limited(const PictureSource& source, std::vector<std::int64_t> samples,
                                  std::int64_t limit) {
  const auto all = std::ssize(samples);
  if (limit == 0 || limit >= all) return samples;
  const std::vector<std::int64_t> counts = counts_of(source, samples);
  std::vector<std::size_t> order(counts.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return counts[a] * limit % all > counts[b] * limit % all;
  });
  std::vector<std::int64_t> taken;
  std::int64_t left = limit;
  for (const std::int64_t count : counts) left -= taken.emplace_back(count * limit / all);
  for (std::size_t k = 0; left > 0; ++k, --left) ++taken[order[k]];
  std::vector<std::int64_t> result;
  auto begin = samples.begin();
  for (std::size_t label = 0; label < counts.size(); begin += counts[label++]) {
    result.insert(result.end(), begin, begin + taken[label]);
  }
  return result;
}

void check_has_classes(const std::string& folder) {
  if (!class_folders(folder).empty()) return;
  std::error_code error;
  fail(ExitCode::kUsage, "data", {.file = folder, .key = "data.val_path"},
       "{}; needed: a folder of classes, {}/<class>/*.jpg",
       std::filesystem::exists(folder, error) ? "has no class folders" : what_is_missing(folder),
       folder);
}

}  // namespace

PictureDataset::PictureDataset(ConfigSection& section, std::uint64_t seed, std::string name,
                               const std::string& path, const std::string& where)
    : BuiltinDataset(Shape{section.integer("image_size", 224, Range::closed(1, 4096),
                                           "height and width of a training crop, in pixels"),
                           0, 3},
                     1),
      name_(std::move(name)),
      seed_(seed) {
  info_.image[1] = info_.image[0];
  path_ = section.text("path", path, where);
  rule_.resize = section.integer("test_resize", 256, Range::closed(1, 8192),
                                 "shorter side of a test image after resizing");
  const std::int64_t crop = section.integer("test_crop", 224, Range::closed(1, 4096),
                                            "height and width of the centre crop of a test image");
  if (crop > rule_.resize) section.error("test_crop", "is larger than test_resize");
  if (crop != info_.image[0]) info_.test_image = Shape{crop, crop, 3};
  crop_ = crop;
  read_growth(section);
  section.read("val_path", val_path_,
               "folder of the test set's classes, val_path/<class>/…, instead of val/; classes are "
               "matched by name");
  val_fraction_ =
      read_val_fraction(section, !val_path_.empty(), 0.0,
                        "share of each class in train/ used for tests if there is no val/; "
                        "drawn from the config's seed and the pictures' names");
  section.read("on_bad_image", skip_, {{"error", false}, {"skip", true}},
               "a picture that cannot be decoded ends the run, or the next training picture of its "
               "class replaces it, and tests leave it out");
  section.read("max_pixels", settings_.max_pixels, Range::at_least(1),
               "larger pictures are refused");
  const std::int64_t classes = section.integer(
      "classes", 1000, Range::closed(1, 1 << 24),
      "number of classes, for --dry-run without the folder; otherwise the folder's");
  const std::int64_t train = section.integer("train_samples", 1281167, Range::at_least(1),
                                             "training images, for --dry-run (ImageNet's)");
  const std::int64_t test = section.integer("test_samples", 50000, Range::at_least(1),
                                            "test images, for --dry-run (ImageNet's)");
  read_limits(section, limit_, test_limit_,
              "so many samples, the first of each class in proportion,");
  read_normalize(section, {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225});
  set_samples(train, test);
  info_.complexity = "bytes";
  info_.pictures = rule_;
  info_.classes = classes;
}

void PictureDataset::read_growth(ConfigSection& section) {
  const char* doc =
      "training images are smaller in the first epochs and grow to image_size; default: off";
  std::optional<ConfigSection> progressive = section.optional_section("progressive", doc);
  if (!progressive) return;
  ImageGrowth growth{.from = 128, .to = info_.image[0], .end_epoch = 10, .multiple = 32};
  progressive->read("from", growth.from, Range::closed(1, 4096),
                    "side of the first epochs' images, in pixels");
  progressive->read("start_epoch", growth.start_epoch, Range::closed(0, 1e6),
                    "the last epoch of that size, counted from 0");
  progressive->read("end_epoch", growth.end_epoch, Range::closed(1, 1e6),
                    "the first epoch of image_size");
  progressive->read("multiple", growth.multiple, Range::closed(1, 4096),
                    "sides between the two are multiples of it");
  progressive->finish();
  // Not in a data set's sample config
  if (!section.has("progressive")) return section.resolve("progressive", nullptr);
  if (growth.from > growth.to)
    progressive->error("from", "is {}, larger than image_size {}", growth.from, growth.to);
  if (growth.start_epoch >= growth.end_epoch) {
    progressive->error("end_epoch", "is {}, not after start_epoch {}; allowed: a later epoch",
                       growth.end_epoch, growth.start_epoch);
  }
  info_.growth = growth;
}

void PictureDataset::know_classes(ConfigSection& section, std::vector<std::string> names) {
  info_.class_names = std::move(names);
  if (info_.class_names.empty()) return;
  info_.classes = std::ssize(info_.class_names);
  section.resolve("classes", info_.classes);
}

void PictureDataset::set_interpolation(Interpolation interpolation) {
  settings_.interpolation = rule_.interpolation = interpolation;
  info_.pictures = rule_;
}

void PictureDataset::use_model(const SafetensorsFile& file, const std::string& source) {
  if (file.metadata.count(kConfigMetadata) != 0)
    model_classes_ = description_of(file, source).classes;
}

void PictureDataset::open_tests(Sources& opened) {
  std::error_code error;
  if (!only_tests_ && std::filesystem::equivalent(val_path_, path_ + "/train", error))
    fail(ExitCode::kUsage, "data", {.file = val_path_, .key = "data.val_path"},
         "is trained on too; needed: a folder of other pictures");
  check_has_classes(val_path_);
  opened.test = std::make_unique<PictureIndex>(val_path_);
  const std::vector<std::string>& found = opened.test->classes();
  if (only_tests_ && !model_classes_.empty()) info_.class_names = model_classes_;
  if (info_.class_names.empty()) info_.class_names = found;
  if (std::ssize(info_.class_names) != info_.classes) {
    fail(ExitCode::kUsage, "data", {.key = "data.classes"},
         "is {}, but there are {} to be tested: {}", info_.classes,
         counted(std::ssize(info_.class_names), "class"),
         shown(fmt::format("{}", fmt::join(info_.class_names, ", "))));
  }
  for (const std::string& name : found) {
    const auto known = std::find(info_.class_names.begin(), info_.class_names.end(), name);
    if (known == info_.class_names.end()) {
      fail(ExitCode::kUsage, "data", {.file = val_path_, .key = "data.val_path"},
           "has the class {}, which {} not{}; known: {}", told_apart(name),
           only_tests_ ? "the model has" : path_ + "/train has",
           suggestion(name, info_.class_names),
           shown(fmt::format("{}", fmt::join(info_.class_names, ", ")), 200));
    }
    test_labels_.push_back(known - info_.class_names.begin());
  }
}

void PictureDataset::look() const {
  if (val_path_.empty() || !only_tests_) look_for_sources();
  if (!val_path_.empty()) check_has_classes(val_path_);
}

void PictureDataset::open() {
  if (open_) return;
  Sources opened;
  if (val_path_.empty() || !only_tests_) opened = open_sources();
  if (!val_path_.empty()) {
    open_tests(opened);
  } else if (opened.test) {
    if (val_fraction_ > 0.0) {
      fail(ExitCode::kUsage, "data",
           "{0}: data.val_fraction is {1}, but there is {2}/val; leave one of them out: with --set "
           "data.val_fraction=0 {2}/val is for tests",
           name_, val_fraction_, path_);
    }
  } else if (val_fraction_ == 0.0) {
    std::string other;
    for (const std::string& folder : {path_ + "/valid", path_ + "/test"}) {
      std::error_code error;
      if (std::filesystem::is_directory(folder, error))
        other += fmt::format(", or \"val_path\": \"{}\"", folder);
    }
    fail(ExitCode::kUsage, "data",
         "{}: there are no classes in {}/val; needed: these, or \"val_fraction\": 0.1 to set a "
         "part of train/ aside{}",
         name_, path_, other);
  }
  if (opened.train) {
    check_classes(
        name_, path_, opened.train->classes(),
        opened.test && test_labels_.empty() ? opened.test->classes() : std::vector<std::string>());
  }
  split(opened);
  set_samples(std::ssize(train_samples_), std::ssize(test_samples_));
  info_.contents = contents_text(opened);
  if (opened.train) info_.checksums = opened.train->checksums("train");
  if (opened.test) info_.checksums.merge(opened.test->checksums("val"));
  sources_ = std::move(opened);
  open_ = true;
}

std::int64_t PictureDataset::label(Split split, std::int64_t index) const {
  const auto [source, number] = place(split, index);
  const std::int64_t label = source->label(number);
  return split == Split::kTest && !test_labels_.empty()
             ? test_labels_[static_cast<std::size_t>(label)]
             : label;
}

std::string PictureDataset::name(Split split, std::int64_t index) const {
  const auto [source, number] = place(split, index);
  const bool of_tests = source == sources_.test.get();
  return (!of_tests           ? "train/"
          : val_path_.empty() ? "val/"
                              : val_path_ + "/") +
         source->name(number);
}

double PictureDataset::complexity(Split split, std::int64_t index) const {
  const auto [source, number] = place(split, index);
  return static_cast<double>(source->bytes(number));
}

void PictureDataset::image(Split split, std::int64_t index, std::uint8_t* out) const {
  decode(split, index, {}, 0, out, nullptr);
}

void PictureDataset::read_part(Split split, std::int64_t index, const PictureChoice& choose,
                               std::int64_t side, std::span<std::byte* const> out,
                               CutTarget* later) const {
  decode(split, index, choose, side, reinterpret_cast<std::uint8_t*>(out[0]), later);
  write_label(label(split, index), out[1]);
}

void PictureDataset::will_read(Split split, std::span<const std::int64_t> indices) const {
  std::vector<std::int64_t> numbers;
  numbers.reserve(indices.size());
  const PictureSource* source = nullptr;
  for (const std::int64_t index : indices) {
    const Place found = place(split, index);
    source = found.source;
    numbers.push_back(found.number);
  }
  if (source) source->will_decode(numbers);
}

PictureDataset::Place PictureDataset::place(Split split, std::int64_t index) const {
  if (!open_) fail(ExitCode::kInternal, "data", "{} was read before it was opened", name_);
  const bool from_train = split == Split::kTrain || !sources_.test;
  return {
      (from_train ? sources_.train : sources_.test).get(),
      (split == Split::kTrain ? train_samples_ : test_samples_)[static_cast<std::size_t>(index)]};
}

/// Chooses the training and test pictures, ascending: those of both folders, or parts of train/;
/// then applies the limits.
void PictureDataset::split(const Sources& sources) {
  if (sources.test) {
    if (sources.train)
      train_samples_ = own_tests(sources.train->size(), sources.train->size()).train;
    test_samples_ = own_tests(0, sources.test->size()).test;
  } else {
    const PictureSource& train = *sources.train;
    DrawnTests drawn =
        draw_tests({.samples = train.size(),
                    .classes = std::ssize(train.classes()),
                    .label = [&](std::int64_t picture) { return train.label(picture); },
                    .name = [&](std::int64_t picture) { return train.name(picture); },
                    .seed = seed_,
                    .fraction = val_fraction_,
                    .kept = given_share_,
                    .limit = test_limit_,
                    .who = name_,
                    .noun = "picture",
                    .where = path_ + "/train",
                    .too_small = "no class in " + path_ + "/train is a whole picture"});
    train_samples_ = std::move(drawn.train);
    test_samples_ = std::move(drawn.test);
    info_.test_share = std::move(drawn.share);
  }
  if (sources.train) train_samples_ = limited(*sources.train, train_samples_, limit_);
  test_samples_ =
      limited(sources.test ? *sources.test : *sources.train, test_samples_, test_limit_);
}

/// Lines for the user: what was found, and what was left out.
std::string PictureDataset::contents_text(const Sources& sources) const {
  const std::vector<std::string>& classes =
      sources.train ? sources.train->classes() : info_.class_names;
  std::vector<std::int64_t> train(classes.size(), 0), test(classes.size(), 0);
  if (sources.train) train = counts_of(*sources.train, train_samples_);
  const auto found = counts_of(sources.test ? *sources.test : *sources.train, test_samples_);
  for (std::size_t c = 0; c < found.size(); ++c)
    test[test_labels_.empty() ? c : static_cast<std::size_t>(test_labels_[c])] = found[c];
  constexpr std::size_t kNamed = 10;
  std::vector<std::string> parts, lacking;
  for (std::size_t c = 0; c < classes.size(); ++c) {
    parts.push_back(sources.train ? fmt::format("{} {} + {}", shown(classes[c]), train[c], test[c])
                                  : fmt::format("{} {}", shown(classes[c]), test[c]));
    if (test[c] == 0) lacking.push_back(shown(classes[c]));
  }
  const auto range = [](const std::vector<std::int64_t>& counts) {
    const auto [least, most] = std::minmax_element(counts.begin(), counts.end());
    return *least == *most ? fmt::format("{}", *least) : fmt::format("{} to {}", *least, *most);
  };
  const std::string of_train = sources.train ? range(train) + " + " : "",
                    each = parts.size() > kNamed ? of_train + range(test) + " of each"
                                                 : fmt::format("{}", fmt::join(parts, ", "));
  std::string text =
      fmt::format("pictures: {}{} for tests{}: {}\n",
                  sources.train ? fmt::format("{} for training + ", train_samples_.size()) : "",
                  test_samples_.size(), val_path_.empty() ? "" : ", of " + shown(val_path_), each);
  std::map<std::string, std::int64_t> others;
  if (sources.train) others = sources.train->other_files();
  if (sources.test) {
    for (const auto& [ending, count] : sources.test->other_files()) others[ending] += count;
  }
  std::vector<std::string> kinds;
  for (const auto& [ending, count] : others)
    kinds.push_back(fmt::format("{} {}", count, shown(ending)));
  if (!kinds.empty())
    text +=
        fmt::format("files that are left out: {}; needed: .jpg, .jpeg or .png in a class folder\n",
                    fmt::join(kinds, ", "));
  if (lacking.empty()) return text;
  const std::string more =
      lacking.size() > kNamed ? fmt::format(" and {} more", lacking.size() - kNamed) : "";
  lacking.resize(std::min(lacking.size(), kNamed));
  return text +
         fmt::format("classes without a test picture: {}{}\n", fmt::join(lacking, ", "), more);
}

void PictureDataset::decode(Split split, std::int64_t index, const PictureChoice& choose,
                            std::int64_t wanted, std::uint8_t* out, CutTarget* later) const {
  const auto [source, number] = place(split, index);
  const std::int64_t side = split == Split::kTest ? crop_ : wanted > 0 ? wanted : info_.image[0];
  const PartChoice part = [&](const PictureSize& size) {
    if (choose) {
      if (const auto chosen = choose(size)) return *chosen;
    }
    // Without a random crop, training images are cropped like test images, scaled to their size.
    return PicturePart::centre(size, side == crop_ ? rule_.resize : rule_.resize * side / crop_,
                               side, side);
  };
  thread_local PictureDecoder decoder;
  PictureSettings settings = settings_;
  // Tests decode at full size, so that metrics are those that other programs get
  settings.scaled_decoding = split == Split::kTrain;
  decoder.use(settings);
  if (!skip_) return source->decode(number, decoder, part, side, out, later);
  const auto decodes = [&, source = source](std::int64_t picture) {
    try {
      source->decode(picture, decoder, part, side, out, later);
      return true;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage) throw;
      count_bad(split, {source, picture}, error);
      return false;
    }
  };
  if (decodes(number) || split == Split::kTest) return;
  const std::int64_t label = source->label(number);
  const auto sample = train_samples_.begin() + index;
  const auto first = std::lower_bound(train_samples_.begin(), sample, source->first(label)),
             end = std::lower_bound(sample, train_samples_.end(), source->first(label + 1));
  for (auto next = sample; (next = next + 1 == end ? first : next + 1) != sample;) {
    if (decodes(*next)) return;
  }
  fail(ExitCode::kUsage, "data", "{}: no training picture of the class {} can be decoded", name_,
       source->classes()[static_cast<std::size_t>(label)]);
}

void PictureDataset::count_bad(Split split, const Place& place, const Error& error) const {
  std::size_t before = 0;
  {
    const std::lock_guard lock(bad_mutex_);
    before = bad_.size();
    if (!bad_.insert(key_of(place)).second) return;
  }
  if (before < kBadPicturesNamed)
    log::warning(
        "data: {}; {}", error.message(),
        split == Split::kTest ? "tests leave it out" : "the next of its class stands in for it");
  if (before + 1 == kBadPicturesNamed)
    log::warning("data: more pictures like these will be counted, but not named");
}

bool PictureDataset::left_out(std::int64_t test_sample) const {
  const std::lock_guard lock(bad_mutex_);
  return bad_.count(key_of(place(Split::kTest, test_sample))) != 0;
}

std::vector<std::int64_t> PictureDataset::bad_samples() const {
  const std::lock_guard lock(bad_mutex_);
  return {bad_.begin(), bad_.end()};
}

}  // namespace starling
