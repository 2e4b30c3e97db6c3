#include "apps/data/data_settings.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "apps/data/image_collate.h"
#include "apps/inference/model_source.h"
#include "core/log.h"
#include "core/typed_section.h"

namespace starling {
namespace {

void read_sampler(ConfigSection& sampler, DataSettings& settings) {
  const std::string type = sampler.text(
      "type", "shuffle",
      "shuffle: each epoch's order dealt to the ranks in turn; others see `--list samplers`");
  const bool old_name = type == "balanced";
  if (old_name) {
    log::info(
        "warning: {} balanced is called load_balanced now; class_balanced is for classes of "
        "unequal size",
        sampler.path("type"));  // logged by one rank
    sampler.resolve("type", "load_balanced");
  }
  settings.sampler = make_typed(samplers(), old_name ? "load_balanced" : type, sampler);
  settings.sampler->set_name(samplers().whose(type));
  sampler.finish();
}

/// Checks that the data set supports the sampler.
void check_sampler(const ConfigSection& data, const std::string& data_type,
                   const std::string& sampler_type, const DataSettings& settings) {
  if (settings.dirichlet_alpha > 0.0 && !settings.sampler->takes_partition()) {
    data.error("sampler.type",
               "is {}, which deals samples to all ranks, but data.partition.type is dirichlet; "
               "allowed: shuffle",
               sampler_type);
  }
  if (settings.sampler->by_class() && settings.info.classes == 0) {
    data.error("sampler.type",
               "is {}, but the samples of {} have no class; allowed: shuffle, load_balanced",
               sampler_type, data_type);
  }
  if (settings.sampler->complexity() == Sampler::Complexity::kDeclared &&
      settings.info.complexity.empty()) {
    data.error("sampler.complexity",
               "is declared, but the samples of {} say no cost; allowed: measured, or \"sampler\": "
               "\"shuffle\", which needs none",
               data_type);
  }
}

void read_cache(ConfigSection& section, DataSettings& settings, const RankLayout& site) {
  const bool on = section.choice("type", "none", {"none", "memory"},
                                 "memory: samples are kept as decoded, before augmentation, so "
                                 "that each is decoded once") == "memory";
  const double mebibytes =
      on ? section.number("limit_mib", 1024.0, Range::positive(),
                          "memory: MiB of samples a host, shared by its ranks; more are not kept")
         : 0.0;
  section.finish();
  if (!on) return;
  const ImageCollate& images = images_of(settings.info);
  if (images.pictures &&
      (images.test_image || images.growth ||
       std::any_of(settings.augment.begin(), settings.augment.end(), [](const auto& augmenter) {
         return augmenter->part({}, {64, 64}).has_value();
       }))) {
    section.error("type",
                  "is memory, but pictures are cut anew in every epoch, or to another size later "
                  "or in tests; leave it out: the system keeps the files in memory");
  }
  const CachePlan plan = plan_cache(settings.info, mebibytes * kMebibyte, site.ranks_per_node);
  const double needed = static_cast<double>(plan.sample_bytes) * site.ranks_per_node / kMebibyte;
  if (mebibytes < needed) {
    section.error(
        "limit_mib",
        "is {}, too little for a sample on each of the {} ranks of a host; needed: >= {:.4g}",
        mebibytes, site.ranks_per_node, std::ceil(needed * 1e3) * 1e-3);
  }
  auto cached = std::make_unique<CachedDataset>(std::move(settings.dataset), mebibytes * kMebibyte);
  settings.cache = cached.get();
  settings.dataset = std::move(cached);
}

}  // namespace

DataSettings read_data(ConfigSection& root, std::uint64_t seed, const RankLayout& site,
                       const DataUse& use) {
  DataSettings settings;
  ConfigSection data = root.section("data", "the data set and how it is read");
  if (!root.has("data")) root.missing("data", R"(an object such as {"type": "synthetic"})");
  const std::string type = data.required_text("type", "the data set, see `--list data`");
  data.read("shuffle", settings.shuffle,
            "a new order of the training samples every epoch, the same on all ranks");
  ConfigSection sampler =
      data.section("sampler", "which rank takes which samples when; a text is its type", "type");
  read_sampler(sampler, settings);
  ConfigSection augment = data.section("augment", "random changes of training images");
  ConfigSection partition = data.section("partition", "how samples are spread over the ranks");
  if (partition.choice("type", "shared", {"shared", "dirichlet"},
                       "shared: all ranks draw from one shuffled order; dirichlet: a fixed "
                       "label-skewed share each") == "dirichlet") {
    settings.dirichlet_alpha = partition.number("alpha", 1.0, Range::positive(),
                                                "dirichlet: the smaller, the more skewed");
  }
  partition.finish();
  ConfigSection cache =
      data.section("cache", "decoded samples that are kept; a text is its type", "type");
  data.read("threads", settings.threads, Range::closed(0, 1024),
            "threads of each rank that read and decode samples; 0: the cores that computing leaves "
            "free, at least 1");
  settings.dataset = make_typed(datasets(), type, data, seed);
  data.finish();
  if (!use.tested_model.empty()) {
    settings.dataset->use_model(read_model_metadata(use.tested_model), use.tested_model);
    if (!use.training_rows) settings.dataset->use_only_tests();
  } else if (!use.initial_model.empty()) {
    settings.dataset->use_initial_model(use.initial_model, use.skips_initial);
  }
  if (use.opens) settings.dataset->look();
  ConfigSection task = root.section("task", "");
  settings.dataset->use_task(task.has("type") ? task.text("type", "", "") : "");
  settings.info = settings.dataset->info();
  if (settings.info.find("image")) {
    settings.dataset->set_interpolation(
        interpolation_of(augment.choice("interpolation", "bilinear", interpolation_names(),
                                        "filter that pictures and crops are resized with")));
    settings.info = settings.dataset->info();
  }
  const auto& tensors = settings.info.tensors;
  const auto image = std::find_if(tensors.begin(), tensors.end(), [](const TensorInfo& tensor) {
    return tensor.pixels.has_value();
  });
  settings.augment = read_augmenters(augment, image == tensors.end() ? Shape{} : image->shape);
  if (settings.dirichlet_alpha > 0.0 && settings.info.classes == 0) {
    data.error("partition.type",
               "is dirichlet, but the samples of {} have no class; allowed: shared", type);
  }
  check_sampler(data, type, sampler.resolved().value("type", ""), settings);
  read_cache(cache, settings, site);
  return settings;
}

}  // namespace starling
