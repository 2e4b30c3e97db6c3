#include "apps/training/state/init_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "apps/inference/adapter.h"
#include "apps/inference/companions.h"
#include "apps/inference/description.h"
#include "apps/inference/hugging_face.h"
#include "apps/inference/model_file.h"
#include "apps/inference/model_source.h"
#include "apps/text/tokenizer.h"
#include "core/backend.h"
#include "core/error.h"
#include "core/log.h"
#include "core/registry.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "layers/language_model.h"

namespace starling {
namespace {

bool matches(const std::string& pattern, const std::string& name) {
  return ::fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool skipped(const InitialFile& init, const std::string& name) {
  return std::ranges::any_of(init.skip,
                             [&](const std::string& pattern) { return matches(pattern, name); });
}

/// The same of a tensor of the model, whose name a file may have without its front.
bool keeps_own(const InitialFile& init, const FileNames& names, const std::string& name) {
  const std::string& front = names.optional_prefix;
  return skipped(init, name) ||
         (name.starts_with(front) && skipped(init, name.substr(front.size())));
}

/// Calls visit(name, tensor, layout) for each tensor of the model.
template <class Visit>
void each_tensor(Model& model, const Visit& visit) {
  for (const Parameter* parameter : model.parameters())
    visit(parameter->name, parameter->value, parameter->layout);
  for (const ModelBuffer* buffer : model.buffers())
    visit(buffer->name, buffer->value, TensorLayout::kPlain);
}

std::set<std::string> names_of(Model& model) {
  std::set<std::string> names;
  each_tensor(model,
              [&](const std::string& name, const Tensor&, TensorLayout) { names.insert(name); });
  return names;
}

/// What other tools put before every name: PyTorch's DataParallel, torch.compile, Lightning.
constexpr std::string_view kPrefixes[] = {"module.", "_orig_mod.", "model."};

std::string without_prefixes(std::string name) {
  for (bool more = true; more;) {
    more = false;
    for (const std::string_view prefix : kPrefixes) {
      if (name.starts_with(prefix)) more = !name.erase(0, prefix.size()).empty();
    }
  }
  return name;
}

bool on_shapes_alone(const Model& model) {
  return !model.parameters().empty() &&
         model.parameters().front()->value.backend().device() == DeviceType::kMeta;
}

/// Takes those off that all of the file's tensors have, and none of the model's.
void take_prefixes(const InitialFile& init, SafetensorsFile& file, Model& model) {
  std::string taken;
  const auto wanted = [&, own = names_of(model)](std::string_view prefix) {
    const bool of_model =
        std::ranges::any_of(own, [&](const std::string& name) { return name.starts_with(prefix); });
    const auto has = [&](const auto& entry) {
      return entry.first.starts_with(prefix) && entry.first.size() > prefix.size();
    };
    return !of_model && !file.tensors.empty() && std::ranges::all_of(file.tensors, has);
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
  if (!taken.empty() && !on_shapes_alone(model))
    log::info("init: {}: the prefix '{}' of all its names is taken off", init.file, taken);
}

/// Matrices lie in a file as the model's layers have them outside, or all the other way round: a
/// GPT-2 of plain linear layers, such as nanoGPT's, has O×I where Hugging Face's has I×O. Square
/// ones do not show it, so all follow those that do, be they skipped or not.
void turn_matrices(const InitialFile& init, SafetensorsFile& file, Model& model) {
  const FileNames names = model.file_names();
  std::map<std::string, Shape> shapes;
  for (const auto& [name, shape] : file.left_out) {
    for (const std::string& known : {name, without_prefixes(name)})
      shapes[known] = shapes[names.optional_prefix + known] = shape;
  }
  for (const auto& [name, tensor] : file.tensors) shapes[name] = tensor.shape;
  std::string turned, square;
  bool conv1d_alone = true;
  each_tensor(model, [&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    const auto found = shapes.find(name);
    if (found == shapes.end() || tensor.shape().rank() != 2 || found->second.rank() != 2) return;
    const Shape own = file_shape(tensor.shape(), layout), other{own[1], own[0]};
    const bool conv1d = layout == TensorLayout::kTransposed;
    if (own == other) {
      if (found->second == own && !keeps_own(init, names, name)) square = name;
    } else if (found->second == other) {
      turned = name;
      conv1d_alone = conv1d_alone && conv1d;
    } else if (found->second == own && conv1d) {
      conv1d_alone = false;
    }
  });
  if (turned.empty()) return;
  if (!conv1d_alone) {
    if (square.empty() && keeps_own(init, names, turned)) return;
    fail(ExitCode::kUsage, "model file",
         "{}: tensor {} is {}, needed: {}, which is the other way round, and so may square ones be "
         "({}); transpose the file's matrices, or skip all of them",
         init.file, turned, shapes[turned].text(),
         Shape{shapes[turned][1], shapes[turned][0]}.text(), square.empty() ? "none here" : square);
  }
  each_tensor(model, [&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    const auto found = file.tensors.find(name);
    if (layout != TensorLayout::kTransposed || found == file.tensors.end() ||
        found->second.shape != tensor.shape())
      return;
    std::vector<std::byte> buffer;
    const std::span<const std::byte> own = bytes_of(found->second, buffer);
    std::vector<std::byte> bytes(own.size());
    to_file_layout(own.data(), tensor.shape(), layout, size_of(found->second.dtype), bytes.data());
    found->second = {found->second.dtype, file_shape(tensor.shape(), layout), std::move(bytes)};
  });
  if (!on_shapes_alone(model))
    log::info("init: {}: its linear layers' matrices are output×input, as {}; all are transposed",
              init.file, turned);
}

void check_patterns(const InitialFile& init, std::set<std::string> names, Model& model) {
  names.merge(names_of(model));
  for (const std::string& pattern : init.skip) {
    if (std::ranges::any_of(names, [&](const std::string& name) { return matches(pattern, name); }))
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

/// Puts what the model has in the place of what is skipped; on shapes alone that is no numbers.
void put_own(Model& model, SafetensorsFile& file,
             const std::function<bool(const std::string&)>& skipped) {
  each_tensor(model, [&](const std::string& name, const Tensor& tensor, TensorLayout layout) {
    if (!skipped(name)) return;
    file.tensors[name] = tensor.backend().device() == DeviceType::kMeta
                             ? FileTensor{tensor.dtype(), file_shape(tensor.shape(), layout),
                                          std::vector<std::byte>(tensor.bytes())}
                             : to_file_tensor(tensor, layout);
  });
}

bool has_adapters(const Model& model) {
  return std::ranges::any_of(model.parameters(), [](const Parameter* parameter) {
    return parameter->in == Parameter::In::kAdapter;
  });
}

/// Puts an adapter's tensors beside those of its base.
void put_adapter(const InitialFile& init, const std::string& digest, Model& model,
                 SafetensorsFile& file) {
  std::optional<Adapter> adapter = read_adapter(init.adapter);
  if (!adapter)
    fail(ExitCode::kUsage, "config", {.key = "init.adapter"},
         "{} is no adapter; needed: a run's with lora, or PEFT's folder", init.adapter);
  check_base(*adapter, init.adapter, init.file, digest);
  take_tied_head(*adapter, init.adapter, model);
  std::map<std::string, Shape> trained;
  for (const Parameter* parameter : model.parameters()) {
    if (parameter->trainable)
      trained.emplace(parameter->name, file_shape(parameter->shape, parameter->layout));
    if (parameter->in == Parameter::In::kAdapter &&
        adapter->file.tensors.count(parameter->name) == 0)
      fail(ExitCode::kUsage, "init", {.file = init.adapter},
           "has no tensor {}, which this run trains; needed: the adapter's own lora.targets",
           parameter->name);
  }
  for (auto& [name, tensor] : adapter->file.tensors) {
    const auto own = trained.find(name);
    if (own == trained.end())
      fail(ExitCode::kUsage, "init", {.file = init.adapter},
           "has the tensor {}, which this run does not train; needed: the adapter's own "
           "lora.targets and lora.train",
           name);
    if (tensor.shape != own->second)
      fail(ExitCode::kUsage, "init", {.file = init.adapter},
           "tensor {} has shape {}, needed: {}; the adapter is of another base", name,
           tensor.shape.text(), own->second.text());
    file.tensors[name] = std::move(tensor);
  }
}

/// load_initial_file() for a model with adapters.
std::string load_base(const InitialFile& init, Model& model) {
  SafetensorsFile file = read_base(init.file, model);
  std::string digest = digest_of(file);
  const FileNames names = model.file_names();
  std::set<std::string> known, own;
  for (const auto& [name, tensor] : file.tensors) known.insert(name);
  check_patterns(init, std::move(known), model);
  for (const Parameter* parameter : model.parameters()) {
    const bool skipped = keeps_own(init, names, parameter->name);
    if (skipped && parameter->in == Parameter::In::kBase)
      fail(ExitCode::kUsage, "config", {.key = "init.skip"},
           "leaves out {}, which is not trained; name it in lora.train, too", parameter->name);
    if (skipped || parameter->in == Parameter::In::kAdapter) own.insert(parameter->name);
  }
  for (const std::string& name : own) file.tensors.erase(name);
  check_shapes(init, file, model);
  put_own(model, file, [&](const std::string& name) { return own.contains(name); });
  if (!init.adapter.empty()) put_adapter(init, digest, model, file);
  load_model_tensors(file, init.file, "", model, true);
  return digest;
}

/// A last layer of as many classes fits, but has learnt them under other names or in another order.
void tell_other_classes(const InitialFile& init, const Model& model,
                        const std::vector<std::string>& of_data) {
  const std::string& last = model.parameters().back()->name;
  if (of_data.empty() || keeps_own(init, model.file_names(), last)) return;
  const SafetensorsFile file = read_model_metadata(init.file);
  if (file.metadata.count(kConfigMetadata) == 0) return;
  const std::vector<std::string> of_file = description_of(file, init.file).classes;
  if (const auto k = first_other_class(of_file, of_data))
    log::warning(
        "init: {}: its class {} is {}, the data's is {}; its last layer takes one for the other at "
        "first; \"skip\": [\"{}.*\"] in init leaves it out",
        init.file, *k, told_apart(of_file[*k]), told_apart(of_data[*k]),
        last.substr(0, last.rfind('.')));
}

}  // namespace

bool keeps_own(const InitialFile& init, const Model& model, const std::string& name) {
  return keeps_own(init, model.file_names(), name);
}

std::string load_initial_file(const InitialFile& init, Model& model) {
  if (has_adapters(model)) return load_base(init, model);
  const FileNames own = model.file_names();
  const std::set<std::string> of_model = names_of(model);
  std::set<std::string> names;
  SafetensorsFile file = read_model(
      init.file,
      [&](const std::string& name) {
        const std::string bare = without_prefixes(name);
        names.insert({name, bare});
        return (holds_nothing(own, name) && of_model.count(name) == 0) || skipped(init, name) ||
               skipped(init, bare);
      },
      Reading::kLater);
  take_prefixes(init, file, model);
  take_names(file, init.file, model);
  for (const auto& [name, tensor] : file.tensors) names.insert(name);
  check_patterns(init, std::move(names), model);
  turn_matrices(init, file, model);
  for (auto it = file.tensors.begin(); it != file.tensors.end();)
    it = keeps_own(init, own, it->first) ? file.tensors.erase(it) : std::next(it);
  check_shapes(init, file, model);
  put_own(model, file, [&](const std::string& name) { return keeps_own(init, own, name); });
  load_model_tensors(file, init.file, "", model);
  return {};
}

void check_initial_file(const InitialFile& init, Model& model, DType dtype, DType compute) {
  model.allocate(meta_backend(), dtype, compute);
  load_initial_file(init, model);
  model.drop_memory();
}

std::map<std::string, std::string> check_initial_meaning(const InitialFile& init, Model& model,
                                                         const DatasetInfo& data) {
  const std::string& table = model.parameters().front()->name;
  if (data.task != "language_model") {
    tell_other_classes(init, model, data.class_names);
    return {};
  }
  if (keeps_own(init, model, table)) return {};
  ModelDescription ours;
  data.collate().describe(data, ours);
  const SafetensorsFile file = read_model_metadata(init.file);
  std::map<std::string, std::string> result;
  if (const auto own = file.metadata.find("starling.companions"); own != file.metadata.end()) {
    result.insert(*own);
  } else if (const Companions beside = Companions::of(init.file);
             !beside.empty() && file.metadata.count(kConfigMetadata) == 0) {
    result.emplace("starling.companions", beside.text());
  }
  const auto own = file.metadata.find("starling.tokenizer");
  std::shared_ptr<const Tokenizer> theirs;
  std::string source = init.file;
  if (own != file.metadata.end()) {
    theirs = Tokenizer::parse(own->second, init.file);
  } else if (const std::string beside = tokenizer_beside(init.file); !beside.empty()) {
    theirs = Tokenizer::read(source = beside);
    check_vocabulary(*theirs, source, model.output_shape().back());
  }
  if (!theirs && ours.tokenizer == "bytes" && file.metadata.count(kConfigMetadata) == 0 &&
      !config_beside(init.file).is_null())
    log::warning(
        "init: {} has no tokenizer beside it, so nothing tells what its tokens are; those of the "
        "data are bytes",
        init.file);
  if (!theirs) return result;
  const auto of_data =
      ours.tokenizer.empty() ? nullptr : Tokenizer::parse(ours.tokenizer, "data.tokenizer");
  if (of_data && !agree(*theirs, *of_data)) {
    std::string tables = "\"" + table + "\"";
    if (LanguageModel* const text = model.language_model(); text && text->head().name != table)
      tables += ", \"" + text->head().name + "\"";
    fail(ExitCode::kUsage, "init", {.file = source},
         "has {} whose numbers mean other text than those of the data (data.tokenizer); needed: "
         "texts cut by it, or \"skip\": [{}] in init",
         counted(theirs->vocab(), "token"), tables);
  }
  // A folder's says more than numbers, such as what stands before a text
  const bool as_many = of_data ? theirs->vocab() == of_data->vocab()
                               : theirs->vocab() <= model.output_shape().back();
  if (as_many && (!of_data || own == file.metadata.end() || !result.empty()))
    result.emplace("starling.tokenizer", theirs->text());
  return result;
}

}  // namespace starling
