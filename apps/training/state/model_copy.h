#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "apps/inference/model_file.h"
#include "comm/replica.h"
#include "core/safetensors.h"
#include "layers/layer.h"

namespace starling {

/// Sets a tensor to a checkpoint's of this name; Error(kUsage) where that is missing or differs.
void load_tensor(const SafetensorsFile& file, const std::string& source, const std::string& name,
                 const Tensor& tensor, TensorLayout layout);

/// A second copy of this rank's model on its device: parameters and floating-point buffers.
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
  /// Then: what a replica's first rank has loaded reaches the others without shared memory.
  void share(const SafetensorsFile& file, const std::string& source);

 protected:
  using Visit = std::function<void(const Tensor& copy, const Tensor& own)>;
  /// Each tensor with the model's own: this rank's part of each bucket, then buffers.
  void for_each(const Visit& visit) const;
  using VisitNamed =
      std::function<void(const std::string& name, const Tensor& copy, const Tensor& own)>;
  void for_each_buffer(const VisitNamed& visit) const;

  Backend& backend_;
  const std::vector<Bucket>& bucket_list_;
  Model& model_;
  /// One tensor per bucket, laid out like its parameters; and one per buffer, empty unless floating
  std::vector<Tensor> parameters_, buffers_;

 private:
  template <class Use>
  void each_parameter(std::size_t bucket, const Tensor& whole, const Use& use) const;
  /// With `share` the first rank of a replica does it for all.
  void load_parameters(const SafetensorsFile& file, const std::string& source, bool share);

  Replica* replica_;
  std::string prefix_;
};

/// `ema`
struct AverageSettings {
  double decay = 0.999;
  std::int64_t every = 1;  ///< steps
};

/// A moving average of this rank's parameters and floating-point buffers: after every k-th step a ←
/// decay·a + (1 - decay)·x; the first time a ← x, like torch.optim.swa_utils.AveragedModel with
/// use_buffers. Issued to the device after the updates; nothing waits.
class ModelAverage : public ModelCopy {
 public:
  ModelAverage(const AverageSettings& settings, Backend& backend,
               const std::vector<Bucket>& buckets, Model& model, Replica* replica = nullptr)
      : ModelCopy("ema", backend, buckets, model, replica), settings_(settings) {}

  /// Called after `steps` updates in total.
  void after_step(std::int64_t steps);
  /// One tensor per bucket, and one for each of the model's buffers; at first the model's own.
  std::vector<Tensor> parameters() const;
  std::vector<Tensor> buffers() const;

  /// ModelCopy's, and how often it was updated.
  void save(SafetensorsFile& file, PutTensor put = to_file_tensor) const;
  void load(const SafetensorsFile& file, const std::string& source, bool own_alone = false);

 private:
  AverageSettings settings_;
  std::int64_t updates_ = 0;
};

/// `lookahead`
struct LookaheadSettings {
  std::int64_t every = 5;  ///< steps
  double decay = 0.5, power = 0.0;
  /// The weight of the slow weights after `step` of `total` updates.
  double share(std::int64_t step, std::int64_t total) const;
};

/// Lookahead (Zhang et al. 2019, arXiv 1907.08610): after every k-th step, and the last one, slow ←
/// share·slow + (1 - share)·x, x ← slow; the paper's α is 1 - share. With a power, share =
/// decay·(step / total)^power (Jordan 2024, arXiv 2404.00498). Parameters change right after their
/// update, before they are sent; buffers at the end of the step.
class Lookahead : public ModelCopy {
 public:
  Lookahead(const LookaheadSettings& settings, Backend& backend, const std::vector<Bucket>& buckets,
            Model& model, Replica* replica = nullptr)
      : ModelCopy("lookahead", backend, buckets, model, replica), settings_(settings) {}

  /// Initialises the slow weights with the model's.
  void begin();
  /// Called after update `step` of `total` of this rank's part of a bucket, on its stream.
  void after_update(std::size_t bucket, std::int64_t step, std::int64_t total) const;
  /// Called after all updates of that step.
  void after_step(std::int64_t step, std::int64_t total) const;

 private:
  /// Performs the formulas above on one tensor. Returns whether anything changed.
  bool meet(const Tensor& slow, const Tensor& own, std::int64_t step, std::int64_t total) const;

  LookaheadSettings settings_;
};

}  // namespace starling
