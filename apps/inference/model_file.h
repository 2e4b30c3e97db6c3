#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/safetensors.h"
#include "layers/layer.h"

namespace starling {

/// The same numbers in another dtype, rounded where that has fewer digits.
std::vector<std::byte> converted(std::span<const std::byte> bytes, DType from, DType to);

/// A tensor of the model as a file's tensor: PyTorch's shape, read from its device.
FileTensor to_file_tensor(const Tensor& tensor, TensorLayout layout);
/// Writes a tensor into a FileTensor that may be there already, whose memory is used again: new
/// memory costs more than the copy.
void to_file_tensor(const Tensor& tensor, TensorLayout layout, FileTensor& file);
/// Makes `file` read the tensor when it is written (FileTensor::source): nothing may change it
/// until then.
void refer_file_tensor(const Tensor& tensor, TensorLayout layout, FileTensor& file);
/// What refer_file_tensor() makes FileTensor::source.
struct ReferredTensor {
  Tensor tensor;
  TensorLayout layout;
  bool in_host_memory;
  std::span<const std::byte> operator()(std::vector<std::byte>& buffer) const;
  /// Of a tensor in this process's memory that a file refers to; null if it does not.
  static const ReferredTensor* in(const FileTensor& file);
};
using PutTensor = void (*)(const Tensor&, TensorLayout, FileTensor&);
/// Writes a file's tensor into `tensor`, converting between floating dtypes. `what` names file and
/// tensor for the error of a wrong shape. Numbers must fit `low`, too, where they are finite. One
/// that ReferredTensor::in() finds is copied as it lies, and not looked at.
void from_file_tensor(const FileTensor& file, const Tensor& tensor, TensorLayout layout,
                      const std::string& what, std::optional<DType> low = {});

/// All parameters and buffers of a model but those of a base alone (Parameter::In), names prefixed,
/// as one of the two above puts them.
void add_model_tensors(const Model& model, const std::string& prefix, SafetensorsFile& file,
                       PutTensor put = to_file_tensor);

/// Names a file's tensors as the model does, and takes out what holds nothing, or nothing of its
/// own. `source` names the file in errors.
void take_names(SafetensorsFile& file, const std::string& source, const Model& model);

/// Loads a model's tensors from a file. A missing, extra or mis-shaped tensor is Error(kUsage) that
/// names it; batch norm's num_batches_tracked is optional. With a prefix, tensors under other names
/// are left alone. `base`: what is of a base alone is there, too.
void load_model_tensors(const SafetensorsFile& file, const std::string& source,
                        const std::string& prefix, Model& model, bool base = false);

}  // namespace starling
