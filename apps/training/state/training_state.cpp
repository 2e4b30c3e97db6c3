#include "apps/training/state/training_state.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "apps/inference/model_source.h"
#include "apps/training/state/data_contents.h"
#include "apps/training/state/model_copy.h"
#include "comm/algorithm.h"
#include "core/config.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

/// Keys that a resumed run may change, by path; whole sections where the path is a section's. Of
/// the precision, what it came to counts, not the word: check_resumable() compares that itself.
const std::set<std::string>& changeable_keys() {
  static const std::set<std::string> keys{
      "steps",          "epochs",           "log_every",
      "evaluate",       "checkpoint",       "data.path",
      "data.threads",   "device",           "plugins",
      "threads",        "tensorboard",      "prometheus",
      "trace",          "precision",        "sync.transport",
      "sync.timeout_s", "sync.heartbeat_s", "sync.max_ctas",
      "cuda_graphs",    "data.cache",       "flight_recorder",
      "sync.verify",    "elastic",          "check_numbers",
      "optimizer.lr",   "early_stopping",   "data.val_path",
      "schedule",       "batch_size",       "optimizer.weight_decay"};
  return keys;
}

/// Keys that may differ with another number of ranks.
bool is_elastic(const std::string& path) {
  return path == "sync.topology" || path == "sync.bucket_mb" || path == "sync.replica";
}

constexpr const char* kComplexities = "data.complexity";

/// Keys that older checkpoints do not have, with what programs did then, which a run may write out.
/// Any other key that a checkpoint lacks must be left to its default.
const std::map<std::string, nlohmann::json>& later_keys() {
  static const std::map<std::string, nlohmann::json> keys{
      {"optimizer.noise_correction", 1.0},
      {"sync.lr_scale", 1.0},
      {"sync.batch_norm", "local"},
      {"sync.replica", 1},
      {"data.sampler", {{"type", "shuffle"}}},
      {"sync.switch", nlohmann::json::array()},
      {"optimizer.groups", nlohmann::json::array()},
      {"optimizer.freeze", nlohmann::json::array()}};
  return keys;
}

/// States that older checkpoints lack: they stay zero, which the algorithm recognises.
bool is_later_state(const std::string& name) { return name == "sync.omega"; }

nlohmann::json child(const nlohmann::json& object, const std::string& name) {
  return object.is_object() ? object.value(name, nlohmann::json()) : nlohmann::json();
}

/// `written` is what the user wrote of `given`; null where that is a default. `changed`: what may
/// be otherwise, and is. `free`: all of this may.
void compare(const nlohmann::json& saved, const nlohmann::json& given,
             const nlohmann::json& written, const std::string& path, const std::string& source,
             bool elastic, std::vector<std::string>& changed, bool free = false) {
  free = free || changeable_keys().count(path) != 0 || (elastic && is_elastic(path));
  if (free && !(saved.is_object() && given.is_object())) {
    if (saved != given && !(saved.is_null() && written.is_null()))
      changed.push_back(fmt::format("{} {} → {}", path, saved.dump(), given.dump()));
    return;
  }
  if (saved.is_null() && written.is_null()) return;
  if (saved.is_object() && given.is_object()) {
    std::set<std::string> names;
    for (const auto& [name, value] : saved.items()) names.insert(name);
    for (const auto& [name, value] : given.items()) names.insert(name);
    if (names.erase("type") != 0 && !path.empty())
      compare(child(saved, "type"), child(given, "type"),
              written.is_string() ? written : child(written, "type"), path + ".type", source,
              elastic, changed, free);
    for (const std::string& name : names) {
      compare(child(saved, name), child(given, name), child(written, name),
              path.empty() ? name : path + "." + name, source, elastic, changed, free);
    }
    return;
  }
  const auto later = later_keys().find(path);
  if (saved == given || (saved.is_null() && later != later_keys().end() && given == later->second))
    return;
  fail(ExitCode::kUsage, "resume", {.file = source},
       "the config now says {} for {}, the checkpoint was made with {}; give the same, {}or start "
       "another output folder",
       given.dump(), path, saved.dump(), is_elastic(path) ? "add --elastic, " : "");
}

/// States that are a few numbers of the whole run.
template <class Visit>
void each_number(const std::vector<Bucket>& buckets, const Visit& visit) {
  Parameter none;  // in the place of a parameter
  for (const Bucket& bucket : buckets) {
    for (const SyncState& state : bucket.sync) {
      if (state.numbers.elements() == bucket.layout->elements) continue;
      none.shape = state.numbers.shape();
      visit("sync." + state.name, state.numbers, none);
    }
  }
}

/// use(bucket, state, each) for each state of elements; each(whole, visit) visits parameters'.
template <class Use>
void each_state(const std::vector<Bucket>& buckets, const OptimizerRule& rule, bool sync,
                const Use& use) {
  const std::vector<std::string> names = rule.facts().states;
  for (const Bucket& bucket : buckets) {
    const std::vector<BucketSlot>& slots = bucket.layout->slots;
    for (std::size_t state = 0; state < names.size(); ++state) {
      use(bucket, bucket.states[state], [&](const Tensor& whole, const auto& visit) {
        Parameter none;  // a state that has not its parameter's shape
        for (std::size_t k = 0; k < slots.size(); ++k) {
          const StateExtent& extent = bucket.state_extents[k];
          none.shape = Shape{extent.elements};
          const Parameter& parameter = extent.own ? none : *slots[k].parameter;
          visit("optimizer." + names[state] + "." + slots[k].parameter->name,
                whole.slice(extent.first, parameter.shape), parameter);
        }
      });
    }
    for (const SyncState& state : bucket.sync) {
      if (!sync || state.numbers.elements() != bucket.layout->elements) continue;
      use(bucket, state.numbers, [&](const Tensor& whole, const auto& visit) {
        for (const BucketSlot& slot : slots)
          visit("sync." + state.name + "." + slot.parameter->name,
                whole.slice(slot.offset, slot.parameter->shape), *slot.parameter);
      });
    }
  }
}

/// A function that loads a tensor of a checkpoint by its name, in the layout of a parameter.
auto loading(const SafetensorsFile& file, const std::string& source) {
  return [&](const std::string& name, const Tensor& tensor, const Parameter& like) {
    if (file.tensors.contains(name) || !is_later_state(name))
      load_tensor(file, source, name, tensor, like.layout);
  };
}

std::string metadata(const SafetensorsFile& file, const std::string& source,
                     const std::string& key) {
  const auto it = file.metadata.find(key);
  if (it == file.metadata.end())
    fail(ExitCode::kUsage, "resume", {.file = source},
         "is not a checkpoint of a training run: it lacks the entry '{}'", key);
  return it->second;
}

}  // namespace

SafetensorsFile save_state(const Model& model, const std::vector<Bucket>& buckets,
                           const OptimizerRule& rule, const RunCounters& counters,
                           const nlohmann::json& resolved_config, int ranks, DType compute,
                           SafetensorsFile used, PutTensor put, Replica* replica) {
  SafetensorsFile file = std::move(used);
  file.metadata.clear();
  // Another algorithm has other tensors.
  std::erase_if(file.tensors, [](const auto& entry) { return entry.first.starts_with("sync."); });
  for (const Bucket& bucket : buckets) {
    const Tensor whole = whole_in(replica, bucket, bucket.parameters);
    for (const BucketSlot& slot : bucket.layout->slots)
      put(whole.slice(slot.offset, slot.parameter->shape), slot.parameter->layout,
          file.tensors["model." + slot.parameter->name]);
  }
  for (const Parameter* parameter : model.parameters()) {
    if (!parameter->trainable && parameter->in != Parameter::In::kBase)
      put(parameter->value, parameter->layout, file.tensors["model." + parameter->name]);
  }
  for (const ModelBuffer* buffer : model.buffers())
    put(buffer->value, TensorLayout::kPlain, file.tensors["model." + buffer->name]);
  const auto add = [&](const std::string& name, const Tensor& tensor, const Parameter& parameter) {
    put(tensor, parameter.layout, file.tensors[name]);
  };
  each_number(buckets, add);
  each_state(buckets, rule, true, [&](const Bucket& bucket, const Tensor& state, const auto& each) {
    each(whole_in(replica, bucket, state), add);
  });
  file.metadata["format"] = kCheckpointFormat;
  file.metadata["step"] = std::to_string(counters.step);
  file.metadata["loss_sum"] = fmt::format("{:a}", counters.loss_sum);
  file.metadata["loss_count"] = std::to_string(counters.loss_count);
  file.metadata["train_seconds"] = fmt::format("{:a}", counters.train_seconds);
  if (counters.loss_scale) {
    file.metadata["loss_scale"] = fmt::format("{:a}", counters.loss_scale->scale);
    file.metadata["loss_scale_clean_steps"] = std::to_string(counters.loss_scale->clean_steps);
    file.metadata["optimizer_step"] = std::to_string(counters.loss_scale->optimizer_step);
  }
  file.metadata["precision"] = name_of(compute);
  file.metadata["ranks"] = std::to_string(ranks);
  file.metadata["config"] = resolved_config.dump();
  return file;
}

RunCounters load_state(const SafetensorsFile& file, const std::string& source, Model& model,
                       std::vector<Bucket>& buckets, const OptimizerRule& rule, bool sync,
                       bool own_alone, Replica* replica) {
  const auto load = loading(file, source);
  if (own_alone) {
    for (const ModelBuffer* buffer : model.buffers())
      load("model." + buffer->name, buffer->value, Parameter());
    for (const Parameter* parameter : model.parameters()) {
      if (!parameter->trainable && parameter->in != Parameter::In::kBase)
        load("model." + parameter->name, parameter->value, *parameter);
    }
  } else {
    load_model_tensors(file, source, "model.", model);
    each_state(
        buckets, rule, sync, [&](const Bucket& bucket, const Tensor& state, const auto& each) {
          fill_in(replica, bucket, state, false, [&](const Tensor& whole) { each(whole, load); });
        });
  }
  if (sync) each_number(buckets, load);
  const auto count = [&](const char* key) {
    return std::atoll(metadata(file, source, key).c_str());
  };
  const auto number = [&](const char* key) {
    return std::strtod(metadata(file, source, key).c_str(), nullptr);
  };
  RunCounters counters;
  counters.step = steps_in(file, source);
  counters.loss_sum = number("loss_sum");
  counters.loss_count = count("loss_count");
  counters.train_seconds = number("train_seconds");
  if (file.metadata.contains("loss_scale"))
    counters.loss_scale = LossScaleState{number("loss_scale"), count("loss_scale_clean_steps"),
                                         count("optimizer_step")};
  return counters;
}

void share_state(const SafetensorsFile& file, const std::string& source,
                 const std::vector<Bucket>& buckets, const OptimizerRule& rule, bool sync,
                 Replica& replica) {
  if (replica.shares_memory()) return;
  const auto load = loading(file, source);
  for (const Bucket& bucket : buckets)
    fill_in(&replica, bucket, bucket.parameters, true, [&](const Tensor& whole) {
      for (const BucketSlot& slot : bucket.layout->slots)
        load("model." + slot.parameter->name, whole.slice(slot.offset, slot.parameter->shape),
             *slot.parameter);
    });
  each_state(buckets, rule, sync, [&](const Bucket& bucket, const Tensor& state, const auto& each) {
    fill_in(&replica, bucket, state, true, [&](const Tensor& whole) { each(whole, load); });
  });
}

void save_complexities(const std::vector<float>& complexities, SafetensorsFile& file) {
  FileTensor& tensor = file.tensors[kComplexities];
  tensor = {DType::kFloat32, Shape{static_cast<std::int64_t>(complexities.size())}, {}};
  tensor.bytes.resize(complexities.size() * sizeof(float));
  std::memcpy(tensor.bytes.data(), complexities.data(), tensor.bytes.size());
}

std::vector<float> load_complexities(const SafetensorsFile& file, const std::string& source,
                                     std::int64_t samples) {
  const auto it = file.tensors.find(kComplexities);
  if (it == file.tensors.end())
    fail(ExitCode::kUsage, "resume", {.file = source}, "tensor {} is missing", kComplexities);
  const FileTensor& tensor = it->second;
  if (tensor.dtype != DType::kFloat32 || tensor.shape != Shape{samples}) {
    fail(ExitCode::kUsage, "resume", {.file = source},
         "tensor {} is {} of {}, the data set has {} training samples; needed: the same data",
         kComplexities, tensor.shape.text(), name_of(tensor.dtype), samples);
  }
  std::vector<float> complexities(static_cast<std::size_t>(samples));
  std::memcpy(complexities.data(), tensor.bytes.data(), tensor.bytes.size());
  return complexities;
}

std::int64_t steps_in(const SafetensorsFile& file, const std::string& source) {
  return std::atoll(metadata(file, source, "step").c_str());
}

int saved_replica(const SafetensorsFile& file, const std::string& source) {
  return saved_config(file, source).value(nlohmann::json::json_pointer("/sync/replica"), 1);
}

nlohmann::json saved_config(const SafetensorsFile& file, const std::string& source) {
  return parse_json(metadata(file, source, "config"), source);
}

std::vector<std::string> check_resumable(const SafetensorsFile& file, const std::string& source,
                                         const nlohmann::json& resolved_config,
                                         const nlohmann::json& written_config, int ranks,
                                         DType compute, bool elastic, const DatasetInfo* data) {
  std::vector<std::string> changed;
  if (metadata(file, source, "format") != kCheckpointFormat) {
    fail(ExitCode::kUsage, "resume", {.file = source}, "has format '{}', needed: {}",
         metadata(file, source, "format"), kCheckpointFormat);
  }
  if (metadata(file, source, "ranks") != std::to_string(ranks)) {
    fail(ExitCode::kUsage, "resume", {.file = source, .key = "ranks"},
         "the checkpoint was made by {}, this run has {}; start as many, or add --elastic",
         counted(std::atoll(metadata(file, source, "ranks").c_str()), "rank"), ranks);
  }
  nlohmann::json saved = saved_config(file, source);
  // Checkpoints that name no task are of a version that knew one alone.
  if (!saved.contains("task") && resolved_config.contains("task"))
    saved["task"] = {{"type", "classification"}, {"metrics", {"classification"}}};
  // Older ones have a text, or not every key.
  if (saved.contains("sync") && saved["sync"].contains("algorithm"))
    (void)algorithm_of(saved["sync"].value("algorithm", nlohmann::json()),
                       &saved["sync"]["algorithm"]);
  const nlohmann::json::json_pointer sampler("/data/sampler/type");
  if (saved.value(sampler, "") == "balanced") saved[sampler] = "load_balanced";  // its name then
  // "auto" may be another format elsewhere. Those that do not say theirs knew fp32 and fp64 alone.
  const auto entry = file.metadata.find("precision");
  const std::string made = entry != file.metadata.end()             ? entry->second
                           : saved.value("precision", "") == "fp64" ? "fp64"
                                                                    : "fp32";
  if (made != name_of(compute)) {
    fail(ExitCode::kUsage, "resume", {.file = source, .key = "precision"},
         "the checkpoint was made in {}, this run computes in {}; add --set precision={}", made,
         name_of(compute), made);
  }
  if (data) {
    // The keys of the data, then what they come to, then what follows from that. The number of
    // classes follows the folder, which is what the error is to name.
    nlohmann::json of_data = child(saved, "data");
    if (has_contents(file) && of_data.contains("classes"))
      of_data["classes"] = child(child(resolved_config, "data"), "classes");
    compare(of_data, child(resolved_config, "data"), child(written_config, "data"), "data", source,
            elastic, changed);
    check_same_contents(file, source, *data, data_path_of(resolved_config));
  }
  changed.clear();  // the whole has the data's
  compare(saved, resolved_config, written_config, "", source, elastic, changed);
  return changed;
}

}  // namespace starling
