#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/safetensors.h"

namespace starling {

/// Where a model is that a user names.
struct ModelSource {
  /// A file, or the folder of a whole checkpoint, whose ranks' mean the model is
  std::string path;
  /// A line on what was taken, and why; empty where that is what the user wrote, or the run's
  /// model.safetensors
  std::string told;
};

/// `path`: a file; a run's folder, or another that has a model.safetensors; a checkpoint's,
/// `RUN/checkpoints/step-N` or `RUN/checkpoints/best`. Of a run it is the newest that is whole:
/// model.safetensors, or a checkpoint of a later step. Error(kUsage) where a folder has neither,
/// which says what is there. What a path of none has is for whoever reads it.
ModelSource find_model(const std::string& path);

/// Reads what find_model() found: tensors under the model's own names, and what the file says of
/// the model. Tensors for whose names `left_out` says true are not read. A checkpoint's are the
/// mean of its ranks as a run's end would have written it, but for batch norm's statistics, which
/// no training batch has gone into again. That which find_model() chose last is not read again. A
/// path that ends with kIndexFile is that of a model in several files, whose tensors it names; one
/// in none, in two, or in another than it says is Error(kUsage). With Reading::kLater a file's
/// tensors are read when they are asked for.
SafetensorsFile read_model(const std::string& path,
                           const std::function<bool(const std::string&)>& left_out = {},
                           Reading reading = Reading::kNow);
inline constexpr const char* kIndexFile = "model.safetensors.index.json";
/// What it says of the model alone.
SafetensorsFile read_model_metadata(const std::string& path);
/// The same as read_model() without the base of an adapter (apps/inference/adapter.h), with which
/// read_model() merges it.
SafetensorsFile read_tensors(const std::string& path,
                             const std::function<bool(const std::string&)>& left_out = {},
                             Reading reading = Reading::kNow);
/// The files of an adapter's folder that PEFT writes.
inline constexpr const char *kPeftTensors = "adapter_model.safetensors",
                            *kPeftConfig = "adapter_config.json";

/// The step after which a model was written; metadata of its file.
inline constexpr const char* kStepMetadata = "starling.step";
/// What a checkpoint's mean goes by: a JSON object, {"weighted": [PARAMETER, …]} for those to which
/// a rank adds by its `mean_weight`, {"state": NAME, "weight": W} for an optimizer's state that is
/// added W times.
inline constexpr const char* kMeanMetadata = "starling.mean";
/// `format` of a file that is one rank's state.
inline constexpr const char* kCheckpointFormat = "starling-checkpoint-1";

/// A tensor's mean over ranks. Sums in fp64 are exact where ranks are equal, so that what
/// all-reduce made goes on as the very numbers that it was. Only floating-point numbers have a
/// mean; of others, such as counts, which are equal on all ranks, the first rank's are taken.
class TensorMean {
 public:
  /// `form`: dtype and shape of all that are added.
  explicit TensorMean(const FileTensor& form);
  bool averages() const;
  const FileTensor& form() const { return result_; }
  void add(const FileTensor& own, double weight = 1.0);
  /// What was added, for other processes' to be added.
  std::vector<double>& sums() { return sums_; }
  FileTensor mean(double count) const;

 private:
  FileTensor result_;
  std::vector<double> sums_;
};

}  // namespace starling
