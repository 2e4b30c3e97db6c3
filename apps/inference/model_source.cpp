#include "apps/inference/model_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "apps/inference/adapter.h"
#include "apps/inference/checkpoint_file.h"
#include "core/config.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/text.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModel = "model.";

bool nothing(const std::string&) { return true; }

/// What an optimizer's state adds to the parameters, and who weighs how much.
struct MeanRule {
  std::string state;  ///< "optimizer.average."
  double weight = 0.0;
  std::set<std::string> weighted;
};

MeanRule mean_rule(const SafetensorsFile& first, const std::string& source) {
  MeanRule rule;
  const auto entry = first.metadata.find(kMeanMetadata);
  if (entry == first.metadata.end()) return rule;
  try {
    const auto json = nlohmann::json::parse(entry->second);
    if (json.contains("weighted")) json.at("weighted").get_to(rule.weighted);
    if (json.contains("state")) {
      rule.state = "optimizer." + json.at("state").get<std::string>() + ".";
      json.at("weight").get_to(rule.weight);
    }
  } catch (const nlohmann::json::exception&) {
    fail(ExitCode::kUsage, "checkpoint", {.file = source},
         "its metadata's entry {} does not say what the ranks' mean is; the file is damaged",
         kMeanMetadata);
  }
  return rule;
}

/// The bare name of what the model is made of; empty of anything else.
std::string_view bare_name(std::string_view name, const MeanRule& rule) {
  if (name.starts_with(kModel)) return name.substr(kModel.size());
  if (!rule.state.empty() && name.starts_with(rule.state)) return name.substr(rule.state.size());
  return {};
}

SafetensorsFile mean_of(const CheckpointFile& checkpoint,
                        const std::function<bool(const std::string&)>& left_out) {
  const SafetensorsFile first = checkpoint.read(0, nothing);
  const MeanRule rule = mean_rule(first, checkpoint.rank_file(0));
  std::map<std::string, TensorMean> means;
  const int ranks = std::max(checkpoint.ranks(), 1);
  for (int rank = 0; rank < ranks; ++rank) {
    const std::string source = checkpoint.rank_file(rank);
    const SafetensorsFile state = checkpoint.read(rank, [&](const std::string& name) {
      const std::string bare(bare_name(name, rule));
      return bare.empty() || (left_out && left_out(bare));
    });
    const auto told = state.metadata.find("mean_weight");
    const double weight =
        told == state.metadata.end() ? 1.0 : std::strtod(told->second.c_str(), nullptr);
    for (const auto& [name, own] : state.tensors) {
      const std::string bare(bare_name(name, rule));
      const auto [it, fresh] = means.try_emplace(name, own);
      const FileTensor& form = it->second.form();
      if ((fresh && rank > 0) || form.dtype != own.dtype || form.shape != own.shape) {
        fail(ExitCode::kUsage, "checkpoint", {.file = source},
             "tensor {} is another one than in rank 0's file; needed: files of one checkpoint",
             name);
      }
      it->second.add(own, name.starts_with(kModel) && rule.weighted.contains(bare) ? weight : 1.0);
    }
    if (state.tensors.size() != means.size())
      fail(ExitCode::kUsage, "checkpoint", {.file = source},
           "has {} of the model's tensors, rank 0's has {}; needed: files of one checkpoint",
           state.tensors.size(), means.size());
  }
  SafetensorsFile result;
  for (auto& [name, mean] : means) {
    if (!name.starts_with(kModel)) continue;
    const std::string bare = name.substr(kModel.size());
    if (const auto state = means.find(rule.state + bare);
        !rule.state.empty() && state != means.end()) {
      for (std::size_t i = 0; i < mean.sums().size(); ++i)
        mean.sums()[i] += rule.weight * state->second.sums()[i];
    }
    result.tensors[bare] = mean.mean(ranks);
  }
  for (const auto& [key, value] : first.metadata) {
    if (key.starts_with("starling.") && key != kMeanMetadata) result.metadata[key] = value;
  }
  result.metadata["format"] = "pt";
  return result;
}

/// The last checkpoint that was chosen. It is not read again, since a run in progress may have
/// removed it.
struct Chosen {
  std::mutex lock;
  std::string folder;
  std::shared_ptr<const SafetensorsFile> mean;
};
Chosen& chosen() {
  static Chosen one;
  return one;
}

bool is_checkpoint(const std::string& folder) {
  std::error_code error;
  return fs::is_regular_file(fs::path(folder) / "DONE", error) ||
         fs::is_regular_file(fs::path(folder) / rank_file_name(0), error);
}

/// A line about an intact checkpoint, after all of its model was read.
std::string text_of_whole(const std::string& folder) {
  const CheckpointFile checkpoint(folder);
  auto whole = std::make_shared<const SafetensorsFile>(mean_of(checkpoint, {}));
  const SafetensorsFile& mean = *whole;
  {
    const std::lock_guard held(chosen().lock);
    chosen().folder = folder;
    chosen().mean = whole;
  }
  std::string text = fmt::format("the checkpoint of step {}, the mean of its {}", checkpoint.step(),
                                 counted(checkpoint.ranks(), "rank"));
  // They are as training left them: only a run's end has the training data to recalibrate them
  const auto config = mean.metadata.find("starling.config");
  const auto json = config == mean.metadata.end()
                        ? nlohmann::json()
                        : nlohmann::json::parse(config->second, nullptr, false);
  const nlohmann::json::json_pointer norms("/sync/batch_norm");
  if (json.is_object() && json.contains(norms) && json[norms] == "recalibrate")
    text += ", batch norm's statistics not recalibrated";
  return text;
}

/// The step of a run's model file: as it says, or in those of older versions the run's summary.
std::optional<std::int64_t> step_of_model(const std::string& run, const std::string& file) {
  const SafetensorsFile model = read_safetensors(file, nullptr, nothing);
  if (const auto entry = model.metadata.find(kStepMetadata); entry != model.metadata.end())
    return std::atoll(entry->second.c_str());
  const auto summary = nlohmann::json::parse(read_file(run + "/summary.json").text, nullptr, false);
  if (!summary.is_object() || !summary.contains("steps") || !summary["steps"].is_number_integer())
    return std::nullopt;
  return summary["steps"].get<std::int64_t>();
}

/// The first of the names, and how many follow.
std::string a_few(std::vector<std::string> names) {
  constexpr std::size_t kMost = 8;
  const std::size_t more = names.size() - std::min(names.size(), kMost);
  names.resize(names.size() - more);
  return fmt::format("{}{}", fmt::join(names, ", "),
                     more > 0 ? fmt::format(" and {} more", more) : "");
}

/// What a folder without a model has: incomplete checkpoints, and other files.
std::string what_is_there(const std::string& folder) {
  std::vector<std::string> names;
  for (const CheckpointEntry& entry : checkpoints_in(folder + "/checkpoints"))
    names.push_back(fmt::format("checkpoints/step-{} (incomplete)", entry.step));
  std::error_code error;
  for (auto it = fs::directory_iterator(folder, error); !error && it != fs::directory_iterator();
       it.increment(error))
    names.push_back(shown(it->path().filename().string(), 40));
  if (names.empty()) return "it is empty";
  std::sort(names.begin(), names.end());
  return "there are " + a_few(std::move(names));
}

std::vector<std::int64_t> whole_steps(const std::string& checkpoints) {
  std::vector<std::int64_t> steps;
  for (const CheckpointEntry& entry : checkpoints_in(checkpoints)) {
    if (entry.complete) steps.push_back(entry.step);
  }
  return steps;
}

/// `tries`: retries if a run removes its newest checkpoint in the meantime.
ModelSource find_model(const std::string& path, int tries) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path, ""};
  const std::string file = (fs::path(path) / "model.safetensors").string(),
                    index = (fs::path(path) / kIndexFile).string();
  const bool has_file = fs::exists(file, error);
  if (!has_file && fs::exists(index, error)) return {index, ""};
  const fs::path peft = fs::path(path) / kPeftTensors;
  if (!has_file && fs::exists(peft, error) && fs::exists(fs::path(path) / kPeftConfig, error))
    return {peft.string(), ""};
  if (!has_file && is_checkpoint(path)) return {path, path + ": " + text_of_whole(path)};
  std::vector<std::int64_t> steps = whole_steps(path + "/checkpoints");
  // One may have come, and the one before have gone, while names were listed
  for (int again = 0; steps.empty() && again < 3; ++again)
    steps = whole_steps(path + "/checkpoints");
  std::optional<std::int64_t> written;
  if (has_file && !steps.empty()) written = step_of_model(path, file);
  std::string fault;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    if (has_file && *step <= written.value_or(INT64_MAX)) break;
    const std::string folder = checkpoint_path(path, *step);
    try {
      return {
          folder,
          fmt::format("{}: {}{}", fault.empty() ? path : fault + "; " + path, text_of_whole(folder),
                      written ? fmt::format(" (model.safetensors is of step {})", *written) : "")};
    } catch (const Error& damaged) {
      if (damaged.code() != ExitCode::kUsage) throw;
      // The run has removed it: DONE is deleted first.
      if (tries > 0 && !fs::exists(folder + "/DONE", error)) return find_model(path, tries - 1);
      if (fault.empty()) fault = damaged.message();
    }
  }
  if (has_file)
    return {file,
            fault.empty() ? "" : fmt::format("{}; taking {}, of step {}", fault, file, *written)};
  const std::string best = path + "/checkpoints/best/model.safetensors";
  if (fs::exists(best, error))
    return {best, fmt::format("{}{}: has no whole checkpoint but its best",
                              fault.empty() ? "" : fault + "; ", path)};
  if (!fault.empty())
    fail(ExitCode::kUsage, "model file", "{}; {} has no other checkpoint that is whole", fault,
         path);
  std::vector<std::string> own;
  for (const std::int64_t step : whole_steps(path)) own.push_back(fmt::format("step-{}", step));
  if (!own.empty()) {
    std::reverse(own.begin(), own.end());
    fail(ExitCode::kUsage, "model file",
         "{} is a folder of checkpoints; give the run, or one of these: {}", path,
         a_few(std::move(own)));
  }
  fail(
      ExitCode::kUsage, "model file",
      "{} has no model.safetensors, which a run writes at its end, and no complete checkpoint: {}; "
      "needed: a run's folder, or a file",
      path, what_is_there(path));
}

/// A model in several files.
SafetensorsFile read_indexed(const std::string& path,
                             const std::function<bool(const std::string&)>& left_out,
                             Reading reading) {
  const auto refuse = [&]<class... Args>(const std::string& tensor,
                                         fmt::format_string<Args...> format, Args&&... args) {
    fail(ExitCode::kUsage, "model file", {.file = path, .key = "weight_map" + tensor}, format,
         std::forward<Args>(args)...);
  };
  const nlohmann::json index = read_json_file(path);
  const nlohmann::json places =
      index.is_object() ? index.value("weight_map", nlohmann::json()) : nlohmann::json();
  if (!places.is_object() || places.empty())
    refuse("", "is no object; needed: each tensor's name and its file");
  std::map<std::string, std::string> files;  // and the first of its tensors
  for (const auto& [tensor, file] : places.items()) {
    if (!file.is_string() || file.get_ref<const std::string&>().empty() ||
        file.get_ref<const std::string&>().find('/') != std::string::npos)
      refuse("." + tensor, "is {}; needed: a file beside it", shown(file.dump(), 100));
    files.emplace(file.get<std::string>(), tensor);
  }
  SafetensorsFile result;
  std::map<std::string, std::string> found;  // which file has a tensor
  for (const auto& [name, tensor] : files) {
    const std::string file = (fs::path(path).parent_path() / name).string();
    if (std::error_code error; !fs::exists(file, error))
      refuse("." + tensor, "is {}, which is not there; needed: all files of the model", name);
    SafetensorsFile part = read_safetensors(
        file, nullptr,
        [&, &name = name](const std::string& own) {
          const auto [it, fresh] = found.emplace(own, name);
          if (!fresh)
            refuse("." + own, "is {} twice, in {} and {}; needed: once", shown(own, 100),
                   it->second, name);
          const auto place = places.find(own);
          if (place == places.end() || *place != name)
            refuse("." + own, "is {}, but {} has that tensor; needed: the file that has it",
                   place == places.end() ? "missing" : place->dump(), name);
          return left_out && left_out(own);
        },
        reading);
    result.tensors.merge(part.tensors);
    result.metadata.merge(part.metadata);
    result.left_out.merge(part.left_out);
  }
  for (const auto& [tensor, file] : places.items()) {
    if (!found.contains(tensor))
      refuse("." + tensor, "is {}, which has no such tensor; needed: the file that has it",
             file.get<std::string>());
  }
  result.metadata.erase(kChecksums);  // each file's own
  return result;
}

/// use(a number of that type); nothing for types of which there is no mean.
template <class Use>
void with_type(DType dtype, const Use& use) {
  if (dtype == DType::kFloat32) use(float());
  if (dtype == DType::kFloat64) use(double());
}

}  // namespace

ModelSource find_model(const std::string& path) {
  constexpr int kTries = 20;
  return find_model(path, kTries);
}

SafetensorsFile read_model(const std::string& path,
                           const std::function<bool(const std::string&)>& left_out,
                           Reading reading) {
  std::optional<Adapter> adapter = read_adapter(path);
  if (!adapter) return read_tensors(path, left_out, reading);
  SafetensorsFile file = merged(std::move(*adapter), path);
  if (left_out)
    std::erase_if(file.tensors, [&](const auto& entry) { return left_out(entry.first); });
  return file;
}

SafetensorsFile read_tensors(const std::string& path,
                             const std::function<bool(const std::string&)>& left_out,
                             Reading reading) {
  std::shared_ptr<const SafetensorsFile> known;
  {
    const std::lock_guard held(chosen().lock);
    if (chosen().folder == path) known = chosen().mean;
  }
  if (known) {
    SafetensorsFile file;
    file.metadata = known->metadata;
    for (const auto& [name, tensor] : known->tensors) {
      if (!left_out || !left_out(name)) file.tensors.emplace(name, tensor);
    }
    return file;
  }
  std::error_code error;
  if (fs::is_directory(path, error)) return mean_of(CheckpointFile(path), left_out);
  if (path.ends_with(".index.json")) return read_indexed(path, left_out, reading);
  SafetensorsFile file = read_safetensors(path, nullptr, left_out, reading);
  const auto format = file.metadata.find("format");
  if (format != file.metadata.end() && format->second == kCheckpointFormat) {
    fail(ExitCode::kUsage, "model file",
         "{}: is one rank's part of a checkpoint, not a model; give the checkpoint's folder", path);
  }
  return file;
}

SafetensorsFile read_model_metadata(const std::string& path) {
  if (fs::path(path).filename() == kPeftTensors) return read_model(path, nothing);  // the base's
  return read_tensors(path, nothing);
}

TensorMean::TensorMean(const FileTensor& form)
    : result_{.dtype = form.dtype, .shape = form.shape, .bytes = {}} {
  if (averages()) sums_.assign(static_cast<std::size_t>(form.shape.elements()), 0.0);
}

bool TensorMean::averages() const {
  return result_.dtype == DType::kFloat32 || result_.dtype == DType::kFloat64;
}

void TensorMean::add(const FileTensor& own, double weight) {
  with_type(result_.dtype, [&](auto value) {
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      std::memcpy(&value, own.bytes.data() + i * sizeof value, sizeof value);
      sums_[i] += weight * static_cast<double>(value);
    }
  });
  if (!averages() && result_.bytes.empty()) result_.bytes = own.bytes;
}

FileTensor TensorMean::mean(double count) const {
  FileTensor result = result_;
  with_type(result.dtype, [&](auto value) {
    result.bytes.resize(sums_.size() * sizeof value);
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      value = static_cast<decltype(value)>(sums_[i] / count);
      std::memcpy(result.bytes.data() + i * sizeof value, &value, sizeof value);
    }
  });
  return result;
}

}  // namespace starling
