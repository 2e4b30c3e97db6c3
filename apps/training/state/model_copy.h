#pragma once

#include <string>
#include <vector>

#include "comm/bucket.h"
#include "core/safetensors.h"
#include "layers/layer.h"

namespace starling {

/// A copy of this rank's model on its device: parameters and floating-point buffers.
class ModelCopy {
 public:
  /// Initially zero. Buckets and model outlive it.
  ModelCopy(Backend& backend, const std::vector<Bucket>& buckets, Model& model);

  /// One tensor per bucket, laid out like its parameters; and one for each of the model's buffers,
  /// empty unless that is a floating-point tensor.
  std::vector<Tensor> parameters, buffers;

  /// This rank's part of a checkpoint: "<prefix>.<name>" of each tensor.
  void save(const std::string& prefix, SafetensorsFile& file) const;
  /// The reverse; a missing or mis-shaped tensor is Error(kUsage) that names `source` and tensor.
  void load(const std::string& prefix, const SafetensorsFile& file, const std::string& source);

 private:
  template <class Visit>
  void each_tensor(const std::string& prefix, const Visit& visit) const;

  const std::vector<Bucket>& bucket_list_;
  Model& model_;
};

}  // namespace starling
