#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/training/state/model_copy.h"

namespace starling {

/// `ema`
struct AverageSettings {
  double decay = 0.999;
  std::int64_t every = 1;  ///< steps
};

/// A moving average of this rank's parameters and floating-point buffers: after every k-th step a ←
/// decay·a + (1 - decay)·x; the first time a ← x, like torch.optim.swa_utils.AveragedModel with
/// use_buffers. Other buffers are the model's. Issued to the device after the updates; nothing
/// waits.
class ModelAverage : public ModelCopy {
 public:
  ModelAverage(const AverageSettings& settings, Backend& backend,
               const std::vector<Bucket>& buckets, Model& model, Replica* replica = nullptr)
      : ModelCopy("ema", backend, buckets, model, replica), settings_(settings) {}

  /// Called after `steps` updates in total.
  void after_step(std::int64_t steps);
  /// One tensor per bucket, laid out like its parameters, and one for each of the model's buffers.
  /// Before the first update the average equals the model.
  std::vector<Tensor> parameters() const;
  std::vector<Tensor> buffers() const;

  /// ModelCopy's, and how often it was updated.
  void save(SafetensorsFile& file, PutTensor put = to_file_tensor) const;
  void load(const SafetensorsFile& file, const std::string& source, bool own_alone = false);

 private:
  AverageSettings settings_;
  std::int64_t updates_ = 0;
};

}  // namespace starling
