#include "apps/training/state/elastic.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>

#include "apps/inference/model_source.h"
#include "apps/training/state/training_state.h"
#include "comm/agreement.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

constexpr const char* kStretchesEntry = "stretches";
constexpr const char* kMeanOf = "mean_of_ranks";

/// True for the name of what an algorithm keeps of a rank.
bool belongs_to_rank(const std::string& name) { return name.starts_with("sync."); }

/// "model.fc.weight" of "fc.weight", and what else there is a copy of.
bool is_weighted(const std::string& name, const std::set<std::string>& weighted) {
  for (const char* prefix : {"model.", "ema.", "lookahead."}) {
    if (name.starts_with(prefix)) return weighted.count(name.substr(std::strlen(prefix))) != 0;
  }
  return false;
}

double number_in(const SafetensorsFile& file, const char* key, double otherwise) {
  const auto entry = file.metadata.find(key);
  return entry == file.metadata.end() ? otherwise : std::strtod(entry->second.c_str(), nullptr);
}

std::string exact(double value) { return fmt::format("{:a}", value); }

nlohmann::json form_of(const FileTensor& tensor) {
  const std::span<const std::int64_t> sizes = tensor.shape.sizes();
  return {static_cast<int>(tensor.dtype), std::vector<std::int64_t>(sizes.begin(), sizes.end())};
}

/// Names, formats and shapes of the tensors that have a mean, and the other entries, by rank 0.
std::string outline(const SafetensorsFile& file) {
  nlohmann::json tensors = nlohmann::json::object();
  for (const auto& [name, tensor] : file.tensors) {
    if (!belongs_to_rank(name)) tensors[name] = form_of(tensor);
  }
  return nlohmann::json{{"tensors", tensors}, {"metadata", file.metadata}}.dump();
}

void check_outline(const nlohmann::json& tensors, const std::string& source,
                   const SafetensorsFile& file) {
  for (const auto& [name, tensor] : file.tensors) {
    if (belongs_to_rank(name)) continue;
    const auto known = tensors.find(name);
    if (known == tensors.end())
      fail(ExitCode::kUsage, "resume", {.file = source},
           "tensor {} is in no file of rank 0; needed: files of one checkpoint", name);
    if (*known != form_of(tensor))
      fail(ExitCode::kUsage, "resume", {.file = source},
           "tensor {} has another shape or format than rank 0's", name);
  }
  for (const auto& [name, known] : tensors.items()) {
    if (file.tensors.count(name) == 0)
      fail(ExitCode::kUsage, "resume", {.file = source}, "tensor {} is missing", name);
  }
}

}  // namespace

SafetensorsFile mean_of_ranks(RankFiles files, int made, const std::set<std::string>& weighted,
                              bool needs_weights, World& world) {
  const bool several = world.size() > 1;
  const std::string mine = world.rank() == 0 ? outline(files.front().second) : std::string();
  const auto of_first = nlohmann::json::parse(several ? world.all_gather(mine).front() : mine);
  SafetensorsFile mean;
  mean.metadata = of_first["metadata"].get<std::map<std::string, std::string>>();
  on_all_ranks(world, [&] {
    for (const auto& [source, file] : files) {
      check_outline(of_first["tensors"], source, file);
      if (needs_weights && file.metadata.count("mean_weight") == 0) {
        fail(ExitCode::kUsage, "resume", {.file = source, .key = "ranks"},
             "the checkpoint does not say what weight each rank has in the mean model; go on with "
             "{} as before",
             counted(made, "rank"));
      }
    }
  });

  for (const auto& [name, known] : of_first["tensors"].items()) {
    const auto sizes = known[1].get<std::vector<std::int64_t>>();
    TensorMean sum({static_cast<DType>(known[0].get<int>()), Shape(std::span(sizes)), {}});
    const bool by_weight = is_weighted(name, weighted);
    for (auto& [source, file] : files) {
      FileTensor& own = file.tensors.at(name);
      sum.add(own, by_weight ? number_in(file, "mean_weight", 1.0) : 1.0);
      own.bytes = {};
    }
    if (several && sum.averages()) world.sum(sum.sums().data(), sum.sums().size());
    FileTensor& tensor = mean.tensors[name] = sum.mean(made);
    if (several && !sum.averages()) {  // a rank may have had no file
      tensor.bytes.resize(static_cast<std::size_t>(tensor.shape.elements()) *
                          size_of(tensor.dtype));
      world.broadcast(tensor.bytes.data(), tensor.bytes.size(), 0);
    }
  }

  // Losses are summed over ranks when reported, so each rank keeps those of its own files.
  double loss_sum = 0.0, losses = 0.0;
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  // The most seconds, minus the smallest loss scale, the optimizer's step
  double most[] = {kNone, kNone, kNone};
  for (const auto& [source, file] : files) {
    loss_sum += number_in(file, "loss_sum", 0.0);
    losses += number_in(file, "loss_count", 0.0);
    most[0] = std::max(most[0], number_in(file, "train_seconds", 0.0));
    most[1] = std::max(most[1], -number_in(file, "loss_scale", -kNone));
    most[2] = std::max(most[2], number_in(file, "optimizer_step", kNone));
  }
  if (several) world.max(most, std::size(most));
  mean.metadata["loss_sum"] = exact(loss_sum);
  mean.metadata["loss_count"] = std::to_string(static_cast<std::int64_t>(losses));
  mean.metadata["train_seconds"] = exact(most[0]);
  if (mean.metadata.count("loss_scale") != 0) {
    mean.metadata["loss_scale"] = exact(-most[1]);
    mean.metadata["loss_scale_clean_steps"] = "0";
    mean.metadata["optimizer_step"] = std::to_string(static_cast<std::int64_t>(most[2]));
  }
  mean.metadata["ranks"] = std::to_string(world.size());
  mark_as_mean_of_ranks(mean, made);
  mean.metadata.erase("mean_weight");
  return mean;
}

void mark_as_mean_of_ranks(SafetensorsFile& file, int ranks) {
  file.metadata[kMeanOf] = std::to_string(ranks);
}

bool is_mean_of_ranks(const SafetensorsFile& file) { return file.metadata.count(kMeanOf) != 0; }

void save_stretches(const std::vector<Stretch>& stretches, SafetensorsFile& file) {
  if (stretches.empty()) return;
  nlohmann::json json = nlohmann::json::array();
  for (const Stretch& stretch : stretches)
    json.push_back({{"step", stretch.step},
                    {"ranks", stretch.ranks},
                    {"batch_size", stretch.batch_size},
                    {"wanted", stretch.wanted},
                    {"joined", stretch.joined}});
  file.metadata[kStretchesEntry] = json.dump();
}

std::vector<Stretch> saved_stretches(const SafetensorsFile& file, const std::string& source) {
  const auto entry = file.metadata.find(kStretchesEntry);
  std::vector<Stretch> stretches;
  if (entry == file.metadata.end()) return stretches;
  const auto damaged = [&] {
    fail(ExitCode::kUsage, "resume", {.file = source}, "the entry '{}' is damaged: {}",
         kStretchesEntry, entry->second);
  };
  const auto json = nlohmann::json::parse(entry->second, nullptr, false);
  if (!json.is_array() || json.empty()) damaged();
  try {
    for (const auto& item : json)
      stretches.push_back({item.at("step"), item.at("ranks"), item.at("batch_size"),
                           item.value("wanted", std::int64_t{0}), item.value("joined", false)});
  } catch (const nlohmann::json::exception&) {
    damaged();
  }
  std::int64_t next = 0;
  for (const Stretch& stretch : stretches) {
    const bool first = &stretch == &stretches.front();
    if ((first ? stretch.step != 0 : stretch.step < next) || stretch.ranks < 1 ||
        stretch.batch_size < 1 || stretch.wanted < 0)
      damaged();
    next = stretch.step + 1;
  }
  return stretches;
}

std::vector<Stretch> continued(std::vector<Stretch> stretches, std::int64_t step, int ranks,
                               const ElasticSettings& elastic, std::int64_t batch_size,
                               int replica) {
  const Stretch &last = stretches.back(), &first = stretches.front();
  Stretch next{.step = step,
               .ranks = ranks,
               .batch_size = batch_size > 0 ? batch_size : last.batch_size,
               .wanted = last.wanted};
  if (batch_size > 0) {
    next.wanted = ranks * batch_size;
  } else if (elastic.keep_global_batch) {
    const std::int64_t wanted = last.wanted > 0 ? last.wanted : first.ranks * first.batch_size;
    const double of_rank = static_cast<double>(wanted) / ranks / replica;
    next.batch_size = std::max<std::int64_t>(1, std::llround(of_rank)) * replica;
  }
  // Drop stretches without steps.
  while (stretches.size() > 1 && stretches.back().step >= step) stretches.pop_back();
  if (step == 0) stretches.clear();
  stretches.push_back(next);
  return stretches;
}

std::string text_of(const std::vector<Stretch>& stretches, const RunLength& length,
                    std::int64_t accumulate, const ElasticSettings& elastic, int replica) {
  const Stretch& now = stretches.back();
  const Stretch& before = stretches.size() > 1 ? stretches[stretches.size() - 2] : now;
  const auto update = [&](const Stretch& stretch) {
    return stretch.ranks * stretch.batch_size * accumulate;
  };
  std::string text =
      now.ranks == before.ranks
          ? fmt::format("from step {} on ", now.step)
          : fmt::format("elastic: from step {} on {} in place of {}, ", now.step,
                        counted(now.ranks, replica > 1 ? "replica" : "rank"), before.ranks);
  // As the config has it, of each rank
  const auto batch = [&](const Stretch& stretch) {
    return static_cast<double>(stretch.batch_size) / replica;
  };
  text += now.batch_size == before.batch_size
              ? fmt::format("batch_size {} as before, ", batch(now))
              : fmt::format("batch_size {} in place of {}, ", batch(now), batch(before));
  text += update(now) == update(before)
              ? fmt::format("{} an update as before", counted(update(now), "sample"))
              : fmt::format("{} an update in place of {}", counted(update(now), "sample"),
                            update(before));
  const double rate = std::pow(length.batch_ratio(now.step), elastic.lr_power);
  if (rate != 1.0) text += fmt::format(", the rate {:.4g} times the schedule's", rate);
  return text + fmt::format(", {} an epoch\n", counted(length.steps_per_epoch, "update"));
}

}  // namespace starling
