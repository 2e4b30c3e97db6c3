#include "apps/inference/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <system_error>
#include <utility>

#include "apps/inference/companions.h"
#include "apps/inference/description.h"
#include "apps/inference/hugging_face.h"
#include "apps/inference/model_file.h"
#include "apps/inference/model_source.h"
#include "core/backend.h"
#include "core/checksum.h"
#include "core/config.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/log.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "kernels/open_backend.h"
#include "layers/language_model.h"

namespace starling {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* kBaseMetadata = "starling.base";
constexpr std::string_view kPeftPrefix = "base_model.model.", kA = ".lora_A.weight",
                           kB = ".lora_B.weight";

/// Of PEFT's folder.
bool is_peft(const std::string& path) {
  std::error_code error;
  return fs::path(path).filename() == kPeftTensors &&
         fs::is_regular_file(beside(path, kPeftConfig), error);
}

/// What adapter_config.json says, with PEFT's defaults. Keys that change what is computed are
/// refused unless they say what is computed here; those that only describe are not read.
Adapter read_peft_config(const std::string& file) {
  const json config = parse_json(read_file(file).text, file);
  const auto refuse = [&](const char* key, const json& value, std::string_view allowed) {
    fail(ExitCode::kUsage, "adapter", {.file = file, .key = key}, "is {}; allowed: {}",
         value.dump(), allowed);
  };
  if (!config.is_object()) refuse("", config, "an object");
  const auto told = [&](const char* key, const json& usual) {
    const json value = config.value(key, json());
    return value.is_null() ? usual : value;
  };
  for (const auto& [key, usual] :
       std::initializer_list<std::pair<const char*, json>>{{"peft_type", "LORA"},
                                                           {"bias", "none"},
                                                           {"use_dora", false},
                                                           {"lora_bias", false},
                                                           {"rank_pattern", json::object()},
                                                           {"alpha_pattern", json::object()},
                                                           {"trainable_token_indices", nullptr},
                                                           {"target_parameters", nullptr},
                                                           {"layer_replication", nullptr},
                                                           {"megatron_config", nullptr},
                                                           {"arrow_config", nullptr},
                                                           {"kasa_config", nullptr},
                                                           {"use_bdlora", nullptr},
                                                           {"use_qalora", false},
                                                           {"alora_invocation_tokens", nullptr}}) {
    const json value = told(key, usual);
    const bool empty = value.is_array() && value.empty() && usual.is_null();
    if (value != usual && !empty) refuse(key, value, usual.dump());
  }
  // Others begin from a changed base, which the folder does not have
  if (const json way = told("init_lora_weights", true);
      !way.is_boolean() && way != "gaussian" && way != "orthogonal" && way != "eva")
    refuse("init_lora_weights", way, "true, false, \"gaussian\", \"orthogonal\", \"eva\"");
  Adapter adapter;
  const json rank = told("r", 8), alpha = told("lora_alpha", 8), dropout = told("lora_dropout", 0),
             roots = told("use_rslora", false), base = told("base_model_name_or_path", nullptr);
  if (!rank.is_number_integer() || rank < 1) refuse("r", rank, ">= 1");
  if (!alpha.is_number()) refuse("lora_alpha", alpha, "a number");
  if (!dropout.is_number()) refuse("lora_dropout", dropout, "a number");
  if (!roots.is_boolean()) refuse("use_rslora", roots, "true, false");
  if (!base.is_string() && !base.is_null())
    refuse("base_model_name_or_path", base, "the path of a model");
  adapter.rank = rank.get<std::int64_t>();
  adapter.alpha = alpha.get<double>();
  if (roots == true) adapter.alpha *= std::sqrt(rank.get<double>());
  adapter.dropout = dropout.get<double>();
  if (base.is_string()) adapter.base.file = base.get<std::string>();
  return adapter;
}

/// The model that a file describes, without memory.
std::unique_ptr<Model> model_of(const SafetensorsFile& file, const std::string& source) {
  register_builtin_layers();
  register_builtin_models();
  const ModelDescription description = description_of(file, source);
  return described_model(description, parse_json(description.config, source), source);
}

/// Where find_model() finds the base of an adapter.
std::string found_base(const Adapter& adapter, const std::string& path) {
  std::error_code error;
  const auto refuse = [&](const std::string& why) {
    fail(ExitCode::kUsage, "adapter", {.file = path},
         "{} start from both: \"init\": {{\"file\": BASE, \"adapter\": {}}}", why,
         json(path).dump());
  };
  if (adapter.base.file.empty()) refuse("is an adapter that does not name its base;");
  if (!fs::exists(adapter.base.file, error))
    refuse(fmt::format(
        "is an adapter of the base {}, which is not here; put that back, or a link to it, or",
        adapter.base.file));
  return find_model(adapter.base.file).path;
}

/// What read_described() says of an adapter's base. One that leads back to itself would be read
/// without an end.
SafetensorsFile described_base(const std::string& base, const std::string& path) {
  thread_local int depth = 0;
  constexpr int kMost = 8;
  if (depth == kMost)
    fail(ExitCode::kUsage, "adapter", {.file = path},
         "is an adapter of an adapter, and so on, {} times; export one of them with --merge",
         kMost);
  ++depth;
  struct Leave {
    ~Leave() { --depth; }
  } leave;
  return read_described(base);
}

/// weight += scale · B · A.
void add_product(Backend& backend, const Parameter& parameter, const FileTensor& a,
                 const FileTensor& b, double scale, const std::string& path, FileTensor& weight) {
  const bool wide = weight.dtype == DType::kFloat64 || a.dtype == DType::kFloat64;
  const DType dtype = wide ? DType::kFloat64 : DType::kFloat32;
  const std::int64_t out = parameter.shape[0], in = parameter.shape[1];
  const std::int64_t rank = a.shape.rank() == 2 ? a.shape[0] : 0;
  const std::string module = parameter.name.substr(0, parameter.name.rfind('.'));
  if (rank < 1 || a.shape != Shape{rank, in} || b.shape != Shape{out, rank})
    fail(ExitCode::kUsage, "adapter", {.file = path},
         "has {} for A and {} for B of {}, whose weight is {} by {} in the base; needed: an "
         "adapter of this base",
         a.shape.text(), b.shape.text(), module, out, in);
  const Tensor sum(backend, parameter.shape, dtype), product(backend, parameter.shape, dtype),
      ta(backend, a.shape, dtype), tb(backend, b.shape, dtype);
  from_file_tensor(weight, sum, parameter.layout, path + ": tensor " + parameter.name);
  from_file_tensor(a, ta, TensorLayout::kPlain, fmt::format("{}: tensor {}{}", path, module, kA));
  from_file_tensor(b, tb, TensorLayout::kPlain, fmt::format("{}: tensor {}{}", path, module, kB));
  backend.matmul({.a = tb, .b = ta, .bias = {}, .c = product});
  backend.weighted_sum(
      {.in = {product}, .weight = {scale}, .terms = 1, .out = sum, .accumulate = true});
  to_file_tensor(sum, parameter.layout, weight);
}

/// The name that PEFT has for the head of every family.
constexpr const char* kHead = "lm_head.weight";

bool is_same(const FileTensor& a, const FileTensor& b) {
  std::vector<std::byte> of_a, of_b;
  return a.dtype == b.dtype && a.shape == b.shape &&
         std::ranges::equal(bytes_of(a, of_a), bytes_of(b, of_b));
}

/// Adds the adapter to its base's tensors.
void merge(const Adapter& adapter, const std::string& path, Model& model, SafetensorsFile& base) {
  const std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, 1);
  for (const auto& [name, tensor] : adapter.file.tensors) {
    if (name.ends_with(kB)) continue;
    const bool adapts = name.ends_with(kA);
    const std::string module = adapts ? name.substr(0, name.size() - kA.size()) : "",
                      weight = adapts ? module + ".weight" : name;
    const auto own = std::ranges::find(model.parameters(), weight, &Parameter::name);
    const auto of_base = base.tensors.find(weight);
    const bool buffer =
        std::ranges::find(model.buffers(), weight, &ModelBuffer::name) != model.buffers().end();
    if (of_base == base.tensors.end() || (own == model.parameters().end() && !buffer) ||
        (adapts && (*own)->shape.rank() != 2))
      fail(ExitCode::kUsage, "adapter", {.file = path},
           "has the tensor {}, but the base, {}, has no {}{}; needed: an adapter of this base",
           name, adapter.base.file, adapts ? "matrix " : "", weight);
    if (!adapts) {
      if (tensor.shape != of_base->second.shape)
        fail(ExitCode::kUsage, "adapter", {.file = path},
             "tensor {} has shape {}, and in the base, {}, {}; needed: an adapter of this base",
             name, tensor.shape.text(), adapter.base.file, of_base->second.shape.text());
      of_base->second = tensor;
      continue;
    }
    const auto b = adapter.file.tensors.find(module + std::string(kB));
    if (b == adapter.file.tensors.end())
      fail(ExitCode::kUsage, "adapter", {.file = path}, "has {} without {}{}", name, module, kB);
    add_product(*backend, **own, tensor, b->second,
                adapter.alpha / static_cast<double>(adapter.rank), path, of_base->second);
  }
}

}  // namespace

void describe_adapter(const Adapter& adapter, SafetensorsFile& file) {
  file.metadata[kBaseMetadata] = json{
      {"file", adapter.base.file},
      {"digest", adapter.base.digest},
      {"rank", adapter.rank},
      {"alpha", adapter.alpha},
      {"dropout", adapter.dropout}}.dump();
}

std::optional<Adapter> described_adapter(const SafetensorsFile& file, const std::string& path) {
  const auto entry = file.metadata.find(kBaseMetadata);
  if (entry == file.metadata.end()) return std::nullopt;
  const std::string place = path + ": metadata " + kBaseMetadata;
  const json base = parse_json(entry->second, place);
  Adapter adapter;
  try {
    base.at("file").get_to(adapter.base.file);
    base.at("digest").get_to(adapter.base.digest);
    base.at("rank").get_to(adapter.rank);
    base.at("alpha").get_to(adapter.alpha);
    base.at("dropout").get_to(adapter.dropout);
  } catch (const json::exception&) {
    adapter.rank = 0;
  }
  if (adapter.rank < 1)
    fail(ExitCode::kUsage, "adapter",
         R"({}; needed: {{"file": text, "digest": text, "rank": >= 1, "alpha": number, )"
         R"("dropout": number}})",
         place);
  return adapter;
}

std::optional<Adapter> read_adapter(const std::string& path, bool tensors) {
  if (path.empty()) return std::nullopt;
  SafetensorsFile file = read_tensors(path, [](const std::string&) { return true; });
  std::optional<Adapter> told = described_adapter(file, path);
  const bool peft = is_peft(path);
  if (!peft && !told) return std::nullopt;
  Adapter adapter = peft ? read_peft_config(beside(path, kPeftConfig)) : *told;
  if (told) adapter.base = told->base;
  adapter.file = tensors ? read_tensors(path) : std::move(file);
  if (!peft || !tensors) return adapter;
  std::map<std::string, FileTensor> named;
  for (auto& [name, tensor] : adapter.file.tensors) {
    if (!name.starts_with(kPeftPrefix))
      fail(ExitCode::kUsage, "adapter", {.file = path}, "has the tensor {}; needed: names in {}",
           name, kPeftPrefix);
    named[name.substr(kPeftPrefix.size())] = std::move(tensor);
  }
  adapter.file.tensors = std::move(named);
  return adapter;
}

SafetensorsFile read_base(const std::string& path, const Model& model) {
  SafetensorsFile file = described_base(path, path);
  take_names(file, path, model);
  return file;
}

std::string digest_of(const SafetensorsFile& file) {
  ChecksumOfPieces sum;
  for (const auto& [name, tensor] : file.tensors) {
    const std::string head =
        fmt::format("{} {} {}\n", name, name_of(tensor.dtype), tensor.shape.text());
    sum.add(head.data(), head.size());
    each_piece(tensor, [&](auto bytes) { sum.add(bytes.data(), bytes.size()); });
  }
  return sum.take();
}

void check_base(const Adapter& adapter, const std::string& path, const std::string& base,
                const std::string& digest) {
  if (adapter.base.digest.empty() || adapter.base.digest == digest) return;
  fail(ExitCode::kUsage, "adapter", {.file = path},
       "was trained on another base than {} is now: its digest is {}, and {} is needed; put the "
       "base back that was {}",
       base, digest, adapter.base.digest, adapter.base.file);
}

void take_tied_head(Adapter& adapter, const std::string& path, Model& model) {
  LanguageModel* const text = model.language_model();
  if (!text || text->head().name == kHead) return;
  auto& tensors = adapter.file.tensors;
  const auto head = tensors.find(kHead), table = tensors.find(text->head().name);
  // A run's own adapter has a table that is the head
  if (head == tensors.end() && (table == tensors.end() || !adapter.base.digest.empty())) return;
  if (head == tensors.end() || table == tensors.end() || !is_same(head->second, table->second))
    fail(ExitCode::kUsage, "adapter", {.file = path},
         "has {} of its own, but the base's head is its table of embeddings, {}; needed: both, and "
         "equal",
         head == tensors.end() ? "a table" : "a head", text->head().name);
  tensors.erase(head);
}

SafetensorsFile merged(Adapter adapter, const std::string& path) {
  const std::string base = found_base(adapter, path);
  SafetensorsFile result = described_base(base, path);
  const bool described = adapter.file.metadata.count(kConfigMetadata) > 0;
  const std::unique_ptr<Model> model =
      described ? model_of(adapter.file, path) : model_of(result, base);
  take_names(result, base, *model);
  check_base(adapter, path, base, digest_of(result));
  take_tied_head(adapter, path, *model);
  merge(adapter, path, *model, result);
  if (described) result.metadata = std::move(adapter.file.metadata);
  for (const char* of_parts : {kBaseMetadata, kChecksums}) result.metadata.erase(of_parts);
  return result;
}

void export_adapter(const Adapter& adapter, const std::string& path,
                    const std::string& destination) {
  const std::string base = found_base(adapter, path);
  const bool described = adapter.file.metadata.count(kConfigMetadata) > 0;
  const std::unique_ptr<Model> model =
      described ? model_of(adapter.file, path) : model_of(read_described(base, false), base);
  SafetensorsFile file;
  std::set<std::string> targets, whole;
  bool turned = true;
  for (const auto& [name, tensor] : adapter.file.tensors) {
    file.tensors[std::string(kPeftPrefix) + name] = tensor;
    if (name.ends_with(kB)) continue;
    if (!name.ends_with(kA)) {
      whole.insert(name.substr(0, name.rfind('.')));
      continue;
    }
    const std::string module = name.substr(0, name.size() - kA.size());
    targets.insert(module);
    const auto own = std::ranges::find(model->parameters(), module + ".weight", &Parameter::name);
    turned =
        turned && own != model->parameters().end() && (*own)->layout == TensorLayout::kTransposed;
  }
  // PEFT saves a module whole, and does not tie a head to a table that is trained
  std::set<std::string> rest;
  for (const Parameter* parameter : model->parameters()) {
    const std::string module = parameter->name.substr(0, parameter->name.rfind('.'));
    if (whole.count(module) == 0 || adapter.file.tensors.count(parameter->name) > 0 ||
        parameter->in == Parameter::In::kAdapter)
      continue;
    if (targets.count(module) > 0)
      fail(ExitCode::kUsage, "export", {.file = path},
           "trains a part of {} beside its adapter, which PEFT's form cannot hold; needed: "
           "--merge, or another lora.train",
           module);
    rest.insert(parameter->name);
  }
  if (!rest.empty()) {
    const SafetensorsFile of_base = read_base(base, *model);
    for (const std::string& name : rest)
      file.tensors[std::string(kPeftPrefix) + name] = of_base.tensors.at(name);
  }
  if (LanguageModel* const text = model->language_model();
      text && text->head().name != kHead && adapter.file.tensors.count(text->head().name) > 0) {
    file.tensors[std::string(kPeftPrefix) + kHead] = adapter.file.tensors.at(text->head().name);
    whole.insert("lm_head");
  }
  if (config_beside(base).is_null())
    log::info(
        "{}: its base, {}, is a file of this program alone; for PEFT export it, too, and give that "
        "folder as base_model_name_or_path",
        path, base);
  const json config{{"peft_type", "LORA"},
                    {"task_type", model->language_model() ? json("CAUSAL_LM") : json()},
                    // PEFT wants what transformers load: the folder
                    {"base_model_name_or_path",
                     config_beside(base).is_null() ? base : fs::path(base).parent_path().string()},
                    {"inference_mode", true},
                    {"r", adapter.rank},
                    {"lora_alpha", adapter.alpha},
                    {"lora_dropout", adapter.dropout},
                    {"target_modules", targets},
                    {"modules_to_save", whole.empty() ? json() : json(whole)},
                    {"bias", "none"},
                    {"fan_in_fan_out", turned},
                    {"init_lora_weights", true}};
  make_export_folder(destination);
  file.metadata["format"] = "pt";
  describe_adapter(adapter, file);
  add_checksums(file);
  const fs::path folder(destination);
  write_safetensors((folder / kPeftTensors).string(), file);
  const std::string text = config.dump(2) + "\n";  // last: with it the folder is whole
  write_file_atomically((folder / kPeftConfig).string(), text.data(), text.size());
}

}  // namespace starling
