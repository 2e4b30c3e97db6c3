#include "apps/inference/model_file.h"

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "core/backend.h"
#include "core/dispatch.h"
#include "core/error.h"
#include "core/registry.h"

namespace starling {
namespace {

template <class From, class To>
void convert(const std::byte* from, std::byte* to, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, from + i * sizeof(From), sizeof value);
    To result;
    if constexpr (std::is_class_v<From> || std::is_class_v<To>) {
      // bf16 and fp16 convert from and to float alone
      result = static_cast<To>(static_cast<float>(value));
    } else {
      result = static_cast<To>(value);
    }
    std::memcpy(to + i * sizeof(To), &result, sizeof result);
  }
}

/// What is wrong where a number is finite in the file, but not in the format that it is to have.
std::string range_fault(std::span<const std::byte> own, DType from, DType to,
                        std::span<const std::byte> bytes) {
  if (size_of(to) > size_of(from) || all_finite(to, bytes)) return {};
  double largest = 0.0;
  const std::vector<std::byte> wide = converted(own, from, DType::kFloat64);
  for (std::size_t at = 0; at < wide.size(); at += sizeof(double)) {
    double value = 0.0;
    std::memcpy(&value, wide.data() + at, sizeof value);
    if (std::abs(value) > std::abs(largest)) largest = value;
  }
  return fmt::format(
      "holds {:.6g}, which {} cannot hold; use a model of smaller numbers, or a precision of more "
      "range",
      largest, name_of(to));
}

}  // namespace

std::vector<std::byte> converted(std::span<const std::byte> bytes, DType from, DType to) {
  const std::size_t count = bytes.size() / size_of(from);
  std::vector<std::byte> result(count * size_of(to));
  dispatch(from, [&](auto from_value) {
    dispatch(to, [&](auto to_value) {
      convert<decltype(from_value), decltype(to_value)>(bytes.data(), result.data(), count);
    });
  });
  return result;
}

FileTensor to_file_tensor(const Tensor& tensor, TensorLayout layout) {
  FileTensor file;
  to_file_tensor(tensor, layout, file);
  return file;
}

void to_file_tensor(const Tensor& tensor, TensorLayout layout, FileTensor& file) {
  file.dtype = tensor.dtype();
  file.shape = file_shape(tensor.shape(), layout);
  file.source = nullptr;
  file.pieces = nullptr;
  file.bytes.resize(tensor.bytes());
  if (layout == TensorLayout::kPlain) {
    tensor.backend().copy_to_host(tensor, file.bytes.data());
    return;
  }
  const auto* memory = static_cast<const std::byte*>(tensor.raw());
  std::vector<std::byte> copy;
  if (tensor.backend().device() != DeviceType::kCpu) {
    copy.resize(tensor.bytes());
    tensor.backend().copy_to_host(tensor, copy.data());
    memory = copy.data();
  }
  to_file_layout(memory, tensor.shape(), layout, size_of(tensor.dtype()), file.bytes.data());
}

void refer_file_tensor(const Tensor& tensor, TensorLayout layout, FileTensor& file) {
  file = {.dtype = tensor.dtype(), .shape = file_shape(tensor.shape(), layout), .bytes = {}};
  file.source = ReferredTensor{tensor, layout, tensor.backend().device() == DeviceType::kCpu};
}

std::span<const std::byte> ReferredTensor::operator()(std::vector<std::byte>& buffer) const {
  if (in_host_memory && (layout == TensorLayout::kPlain || layout == TensorLayout::kImageScale))
    return {tensor.raw(), tensor.bytes()};
  if (in_host_memory) {  // which may outlive its backend
    buffer.resize(tensor.bytes());
    to_file_layout(tensor.raw(), tensor.shape(), layout, size_of(tensor.dtype()), buffer.data());
    return buffer;
  }
  FileTensor made{.bytes = std::move(buffer)};
  to_file_tensor(tensor, layout, made);
  buffer = std::move(made.bytes);
  return buffer;
}

const ReferredTensor* ReferredTensor::in(const FileTensor& file) {
  const auto* referred = file.source.target<ReferredTensor>();
  return referred && referred->in_host_memory ? referred : nullptr;
}

void from_file_tensor(const FileTensor& file, const Tensor& tensor, TensorLayout layout,
                      const std::string& what, std::optional<DType> low) {
  const Shape wanted = file_shape(tensor.shape(), layout);
  if (file.shape != wanted) {
    fail(ExitCode::kUsage, "model file", "{} has shape {}, needed: {}", what, file.shape.text(),
         wanted.text());
  }
  if (is_floating(file.dtype) != is_floating(tensor.dtype())) {
    fail(ExitCode::kUsage, "model file", "{} is {}, needed: {}", what, name_of(file.dtype),
         name_of(tensor.dtype()));
  }
  if (const ReferredTensor* own = ReferredTensor::in(file);
      own && own->layout == layout && file.dtype == tensor.dtype()) {
    if (own->tensor.raw() != tensor.raw())
      tensor.backend().copy_from_host(own->tensor.raw(), tensor);
    return;
  }
  const bool checks = tensor.backend().device() == DeviceType::kMeta,  // and keeps nothing
      turns =
          !checks && (layout == TensorLayout::kConvWeight || layout == TensorLayout::kTransposed);
  std::vector<std::byte> whole(turns ? tensor.bytes() : 0), other;
  std::string fault;  // told after the last piece, when the bytes are known to be the file's own
  std::int64_t at = 0;
  each_piece(file, [&](std::span<const std::byte> own) {
    if (fault.empty() && !all_finite(file.dtype, own))
      fault =
          "holds numbers that are not finite: the file is of a model that diverged; use another";
    std::span<const std::byte> bytes = own;
    const bool widens = size_of(tensor.dtype()) > size_of(file.dtype);
    if (file.dtype != tensor.dtype() && !(checks && widens)) {
      bytes = other = converted(own, file.dtype, tensor.dtype());
      if (fault.empty()) fault = range_fault(own, file.dtype, tensor.dtype(), bytes);
    }
    if (fault.empty() && low && *low != tensor.dtype() && file.dtype != *low)
      fault = range_fault(own, file.dtype, *low, converted(own, file.dtype, *low));
    const auto count = static_cast<std::int64_t>(own.size() / size_of(file.dtype));
    if (turns)
      std::memcpy(whole.data() + static_cast<std::size_t>(at) * size_of(tensor.dtype()),
                  bytes.data(), bytes.size());
    else
      tensor.backend().copy_from_host(bytes.data(), tensor.slice(at, Shape{count}));
    at += count;
  });
  if (!fault.empty()) fail(ExitCode::kUsage, "model file", "{} {}", what, fault);
  if (!turns) return;
  std::vector<std::byte> memory(tensor.bytes());
  to_memory_layout(whole.data(), tensor.shape(), layout, size_of(tensor.dtype()), memory.data());
  tensor.backend().copy_from_host(memory.data(), tensor);
}

void add_model_tensors(const Model& model, const std::string& prefix, SafetensorsFile& file,
                       PutTensor put) {
  for (const Parameter* parameter : model.parameters()) {
    if (parameter->in != Parameter::In::kBase)
      put(parameter->value, parameter->layout, file.tensors[prefix + parameter->name]);
  }
  for (const ModelBuffer* buffer : model.buffers())
    put(buffer->value, TensorLayout::kPlain, file.tensors[prefix + buffer->name]);
}

void take_names(SafetensorsFile& file, const std::string& source, const Model& model) {
  const FileNames names = model.file_names();
  std::set<std::string> own;
  for (const Parameter* parameter : model.parameters()) own.insert(parameter->name);
  for (const ModelBuffer* buffer : model.buffers()) own.insert(buffer->name);
  std::map<std::string, FileTensor> renamed;
  for (auto& [name, tensor] : file.tensors) {
    const std::string longer = names.optional_prefix + name;
    const bool bare = own.count(name) == 0 && own.count(longer) > 0;
    const std::string& known = bare ? longer : name;
    if (own.count(known) > 0 || !holds_nothing(names, known)) renamed[known] = std::move(tensor);
  }
  file.tensors = std::move(renamed);
  for (const auto& [copy, original] : names.copies) {
    const auto found = file.tensors.find(copy), of = file.tensors.find(original);
    if (own.count(copy) > 0 || found == file.tensors.end() || of == file.tensors.end()) continue;
    std::vector<std::byte> buffer, other;
    const std::span<const std::byte> a = bytes_of(found->second, buffer),
                                     b = bytes_of(of->second, other);
    if (found->second.shape != of->second.shape || found->second.dtype != of->second.dtype ||
        !std::equal(a.begin(), a.end(), b.begin(), b.end()))
      fail(ExitCode::kUsage, "model file",
           "{}: tensor {} differs from {}, and the model has one for both (model.tie is true); set "
           "model.tie to false",
           source, copy, original);
    file.tensors.erase(found);
  }
}

void load_model_tensors(const SafetensorsFile& file, const std::string& source,
                        const std::string& prefix, Model& model, bool base) {
  std::set<std::string> known;
  const auto stored = [&](const Parameter* parameter) {
    return base || parameter->in != Parameter::In::kBase;
  };
  const auto load = [&](const std::string& name, const Tensor& tensor, TensorLayout layout,
                        DType low) {
    known.insert(prefix + name);
    const auto it = file.tensors.find(prefix + name);
    if (it == file.tensors.end()) {
      if (name.ends_with("num_batches_tracked")) return;
      std::vector<std::string> names;
      for (const auto& [other, value] : file.tensors) names.push_back(other);
      // No single name was misspelt where most are missing.
      const std::vector<Parameter*>& parameters = model.parameters();
      const auto missing = static_cast<std::size_t>(
          std::count_if(parameters.begin(), parameters.end(), [&](const Parameter* parameter) {
            return stored(parameter) && file.tensors.count(prefix + parameter->name) == 0;
          }));
      // Other tools put something before each name.
      const std::string end = "." + prefix + name;
      for (const std::string& other : names) {
        if (!other.ends_with(end)) continue;
        const std::string front = other.substr(0, other.size() - end.size() + 1);
        const auto behind = [&](const Parameter* parameter) {
          return !stored(parameter) || file.tensors.count(front + prefix + parameter->name) != 0;
        };
        if (!std::all_of(parameters.begin(), parameters.end(), behind)) continue;
        fail(ExitCode::kUsage, "model file",
             "{}: tensor {} is missing, but {} is there, as the others are; take '{}' off the "
             "file's names",
             source, prefix + name, other, front);
      }
      if (2 * missing > parameters.size()) {
        fail(ExitCode::kUsage, "model file",
             "{}: has {} of the model's {} parameters (tensor {} is missing); the file is of "
             "another model than model.type and its keys say",
             source, parameters.size() - missing, parameters.size(), prefix + name);
      }
      fail(ExitCode::kUsage, "model file", "{}: tensor {} is missing{}", source, prefix + name,
           suggestion(prefix + name, names));
    }
    from_file_tensor(it->second, tensor, layout, source + ": tensor " + prefix + name, low);
  };
  for (Parameter* parameter : model.parameters()) {
    if (stored(parameter))
      load(parameter->name, parameter->value, parameter->layout, parameter->operand().dtype());
  }
  for (ModelBuffer* buffer : model.buffers())
    load(buffer->name, buffer->value, TensorLayout::kPlain, buffer->value.dtype());
  for (const auto& [name, tensor] : file.tensors) {
    if (name.rfind(prefix, 0) == 0 && known.count(name) == 0) {
      fail(ExitCode::kUsage, "model file", "{}: tensor {} does not belong to the model", source,
           name);
    }
  }
}

}  // namespace starling
