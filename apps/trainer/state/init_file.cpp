#include "apps/trainer/state/init_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "apps/inference/description.h"
#include "apps/inference/model_file.h"
#include "apps/inference/model_source.h"
#include "apps/text/tokenizer.h"
#include "core/backend.h"
#include "core/error.h"
#include "core/log.h"
#include "core/registry.h"
#include "core/safetensors.h"
#include "core/text.h"

namespace starling {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool skipped(const InitialFile& init, const std::string& name) {
  return std::any_of(init.skip.begin(), init.skip.end(),
                     [&](const std::string& pattern) { return matches(pattern, name); });
}

/// Calls visit(name, tensor, layout) for each tensor of the model.
template <class Visit>
void each_tensor(Model& model, const Visit& visit) {
  for (const Parameter* parameter : model.parameters())
    visit(parameter->name, parameter->value, parameter->layout);
  for (const ModelBuffer* buffer : model.buffers())
    visit(buffer->name, buffer->value, TensorLayout::kPlain);
}

/// What other tools put before every name: PyTorch's DataParallel, torch.compile, Lightning.
constexpr std::string_view kPrefixes[] = {"module.", "_orig_mod.", "model."};

/// Takes those off that all of the file's tensors have, and none of the model's.
void take_prefixes(const InitialFile& init, SafetensorsFile& file, Model& model) {
  std::string taken;
  const auto wanted = [&](std::string_view prefix) {
    bool of_model = false;
    each_tensor(model, [&](const std::string& name, const Tensor&, TensorLayout) {
      of_model = of_model || name.starts_with(prefix);
    });
    const auto has = [&](const auto& entry) {
      return entry.first.starts_with(prefix) && entry.first.size() > prefix.size();
    };
    return !of_model && !file.tensors.empty() &&
           std::all_of(file.tensors.begin(), file.tensors.end(), has);
  };
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view prefix : kPrefixes) {
      if (!wanted(prefix)) continue;
      std::map<std::string, FileTensor> renamed;
      for (auto& [name, tensor] : file.tensors)
        renamed[name.substr(prefix.size())] = std::move(tensor);
      file.tensors = std::move(renamed);
      taken += prefix;
      more = true;
    }
  }
  const bool told = !model.parameters().empty() &&
                    model.parameters().front()->value.backend().device() == DeviceType::kMeta;
  if (!taken.empty() && !told)
    log::info("init: {}: the prefix '{}' of all its names is taken off", init.file, taken);
}

/// Names the file's tensors as the model does, and takes out what holds nothing of its own.
void take_names(const InitialFile& init, SafetensorsFile& file, Model& model) {
  const FileNames names = model.file_names();
  std::set<std::string> own;
  each_tensor(model,
              [&](const std::string& name, const Tensor&, TensorLayout) { own.insert(name); });
  std::map<std::string, FileTensor> renamed;
  for (auto& [name, tensor] : file.tensors) {
    const bool left_out =
        std::any_of(names.left_out.begin(), names.left_out.end(),
                    [&name = name](const std::string& end) { return name.ends_with(end); });
    const std::string longer = names.optional_prefix + name;
    const bool bare = own.count(name) == 0 && own.count(longer) > 0;
    if (!left_out || own.count(name) > 0) renamed[bare ? longer : name] = std::move(tensor);
  }
  file.tensors = std::move(renamed);
  for (const auto& [copy, original] : names.copies) {
    const auto found = file.tensors.find(copy), of = file.tensors.find(original);
    if (own.count(copy) > 0 || found == file.tensors.end() || of == file.tensors.end()) continue;
    if (found->second.shape != of->second.shape || found->second.bytes != of->second.bytes)
      fail(ExitCode::kUsage, "model file",
           "{}: tensor {} differs from {}, and the model has one for both (model.tie is true); set "
           "model.tie to false",
           init.file, copy, original);
    file.tensors.erase(found);
  }
}

void check_patterns(const InitialFile& init, std::set<std::string> names, Model& model) {
  each_tensor(model,
              [&](const std::string& name, const Tensor&, TensorLayout) { names.insert(name); });
  for (const std::string& pattern : init.skip) {
    if (std::any_of(names.begin(), names.end(),
                    [&](const std::string& name) { return matches(pattern, name); }))
      continue;
    const std::string near = suggestion(pattern, {names.begin(), names.end()});
    fail(ExitCode::kUsage, "config",
         "init.skip: '{}' is the name of no tensor of the model or of {}{}; e.g. \"{}\"", pattern,
         init.file, near, names.empty() ? "fc.*" : *names.rbegin());
  }
}

void check_shapes(const InitialFile& init, const SafetensorsFile& file, Model& model) {
  std::vector<std::string> differing;
  std::set<std::string> patterns;
  each_tensor(model, [&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    const auto it = file.tensors.find(name);
    const Shape wanted = file_shape(tensor.shape(), layout);
    if (it == file.tensors.end() || it->second.shape == wanted) return;
    differing.push_back(
        fmt::format("{} has shape {}, needed: {}", name, it->second.shape.text(), wanted.text()));
    const std::size_t dot = name.rfind('.');
    patterns.insert(dot == std::string::npos ? "\"" + name + "\""
                                             : "\"" + name.substr(0, dot) + ".*\"");
  });
  if (differing.empty()) return;
  constexpr std::size_t kMostNamed = 4;
  const std::size_t more = differing.size() > kMostNamed ? differing.size() - kMostNamed : 0;
  differing.resize(differing.size() - more);
  fail(ExitCode::kUsage, "model file",
       "{}: tensor {}{}; to keep the model's own initialisation there: \"init\": {{\"file\": …, "
       "\"skip\": [{}]}}",
       init.file, fmt::join(differing, "; tensor "),
       more > 0 ? fmt::format(" (and {} more)", more) : "", fmt::join(patterns, ", "));
}

}  // namespace

void load_initial_file(const InitialFile& init, Model& model) {
  std::set<std::string> names;
  SafetensorsFile file = read_model(init.file, [&](const std::string& name) {
    std::string bare = name;
    for (bool more = true; more;) {
      more = false;
      for (const std::string_view prefix : kPrefixes) {
        if (bare.starts_with(prefix)) more = !bare.erase(0, prefix.size()).empty();
      }
    }
    names.insert({name, bare});
    return skipped(init, name) || skipped(init, bare);
  });
  take_prefixes(init, file, model);
  take_names(init, file, model);
  for (const auto& [name, tensor] : file.tensors) names.insert(name);
  check_patterns(init, std::move(names), model);
  for (auto it = file.tensors.begin(); it != file.tensors.end();)
    it = skipped(init, it->first) ? file.tensors.erase(it) : std::next(it);
  check_shapes(init, file, model);
  // In the place of what is skipped stands what the model has; on shapes alone that is no numbers.
  each_tensor(model, [&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    if (!skipped(init, name)) return;
    file.tensors[name] = tensor.backend().device() == DeviceType::kMeta
                             ? FileTensor{tensor.dtype(), file_shape(tensor.shape(), layout),
                                          std::vector<std::byte>(tensor.bytes())}
                             : to_file_tensor(tensor, layout);
  });
  load_model_tensors(file, init.file, "", model);
}

void check_initial_file(const InitialFile& init, Model& model) {
  model.allocate(meta_backend(), DType::kFloat32);
  load_initial_file(init, model);
  model.drop_memory();
}

void check_initial_tokens(const InitialFile& init, Model& model, const DatasetInfo& data) {
  const std::string& table = model.parameters().front()->name;
  ModelDescription ours;
  data.collate().describe(data, ours);
  if (ours.tokenizer.empty() || skipped(init, table)) return;
  const SafetensorsFile file = read_model_metadata(init.file);
  const auto own = file.metadata.find("starling.tokenizer");
  const std::filesystem::path beside =
      std::filesystem::path(init.file).parent_path() / "tokenizer.json";
  std::error_code error;
  std::shared_ptr<const Tokenizer> theirs;
  std::string source = init.file;
  if (own != file.metadata.end()) {
    if (own->second != ours.tokenizer) theirs = Tokenizer::parse(own->second, init.file);
  } else if (std::filesystem::is_regular_file(beside, error)) {
    theirs = Tokenizer::read(source = beside.string());
  }
  if (!theirs || agree(*theirs, *Tokenizer::parse(ours.tokenizer, "data.tokenizer"))) return;
  fail(ExitCode::kUsage, "init", {.file = source},
       "has {} whose numbers mean other text than those of the data (data.tokenizer); needed: "
       "texts cut by it, or \"skip\": [\"{}\"] in init",
       counted(theirs->vocab(), "token"), table);
}

}  // namespace starling
