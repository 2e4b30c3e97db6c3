#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "apps/inference/model_file.h"
#include "comm/replica.h"
#include "core/safetensors.h"
#include "layers/layer.h"

namespace starling {

/// A copy of this rank's model on its device: parameters and floating-point buffers. Base of what
/// training keeps beside the model.
class ModelCopy {
 public:
  /// Initially zero. `prefix`: of the names in checkpoints. `replica`: has the parameters; null:
  /// there is one rank. Buckets and model outlive it.
  ModelCopy(std::string prefix, Backend& backend, const std::vector<Bucket>& buckets, Model& model,
            Replica* replica);

  /// This rank's part of a checkpoint: "<prefix>.<name>" of each tensor.
  void save(SafetensorsFile& file, PutTensor put = to_file_tensor) const;
  /// The reverse; a missing or mis-shaped tensor is Error(kUsage) that names `source` and tensor.
  /// With `own_alone` only buffers, as another rank of the replica loads parameters.
  void load(const SafetensorsFile& file, const std::string& source, bool own_alone = false);
  /// Then: what the first rank of a replica has loaded reaches the others, where memory is not
  /// shared.
  void share(const SafetensorsFile& file, const std::string& source);

 protected:
  using Visit = std::function<void(const Tensor& copy, const Tensor& own)>;
  /// Each tensor with the model's own: first parameters, this rank's part of each bucket
  /// (Bucket::own_part()), then buffers.
  void for_each(const Visit& visit) const;
  void for_each_buffer(const Visit& visit) const;

  Backend& backend_;
  const std::vector<Bucket>& bucket_list_;
  Model& model_;
  /// One tensor per bucket, laid out like its parameters; and one for each of the model's buffers,
  /// empty unless that is a floating-point tensor.
  std::vector<Tensor> parameters_, buffers_;

 private:
  template <class Use>
  void each_parameter(std::size_t bucket, const Tensor& whole, const Use& use) const;
  template <class Use>
  void each_buffer(const Use& use) const;
  void load(const SafetensorsFile& file, const std::string& source, const std::string& name,
            const Tensor& tensor, TensorLayout layout) const;

  Replica* replica_;
  std::string prefix_;
};

}  // namespace starling
