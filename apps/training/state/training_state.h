#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/training/state/loss_scaler.h"
#include "comm/bucket.h"
#include "core/safetensors.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"

namespace starling {

struct DatasetInfo;

/// Counters of a run that a checkpoint keeps besides tensors.
struct RunCounters {
  std::int64_t step = 0;  ///< updates done
  double loss_sum = 0.0;  ///< of the steps since the last line of metrics
  std::int64_t loss_count = 0;
  double train_seconds = 0.0;
  std::optional<LossScaleState> loss_scale;  ///< of this rank, in fp16
};

/// Everything a bit-exact resume of one rank needs; semantics.md section 10. `used`: what this gave
/// before in the same run, whose memory is used again. Without `copies` the file reads the tensors
/// when it is written, which nothing changes until then.
SafetensorsFile save_state(const Model& model, const std::vector<Bucket>& buckets,
                           const OptimizerRule& rule, const RunCounters& counters,
                           const nlohmann::json& resolved_config, int ranks, DType compute,
                           SafetensorsFile used = {}, bool copies = true);
/// The reverse. `source` names the file in errors. Without `sync` the algorithm's own states stay
/// as they are: at zero, for it begins anew.
RunCounters load_state(const SafetensorsFile& file, const std::string& source, Model& model,
                       std::vector<Bucket>& buckets, const OptimizerRule& rule, bool sync = true);
/// The complexities of training samples that the run's order goes by; a resumed run has the same
/// order only with the same numbers.
void save_complexities(const std::vector<float>& complexities, SafetensorsFile& file);
std::vector<float> load_complexities(const SafetensorsFile& file, const std::string& source,
                                     std::int64_t samples);
/// Updates done.
std::int64_t steps_in(const SafetensorsFile& file, const std::string& source);
/// The resolved config of the run that made a checkpoint.
nlohmann::json saved_config(const SafetensorsFile& file, const std::string& source);
/// Error(kUsage) naming the first key in which a run may not differ from the checkpoint that it
/// goes on from. `written_config` is what the user wrote: a key that neither it nor the checkpoint
/// has is newer than the checkpoint, and does nothing. `elastic`: what depends on the number of
/// ranks may differ, too. `data`, once it is open, is compared with that of the checkpoint, too,
/// see data_contents.h. Returns the keys that may differ and do, each with both values.
std::vector<std::string> check_resumable(const SafetensorsFile& file, const std::string& source,
                                         const nlohmann::json& resolved_config,
                                         const nlohmann::json& written_config, int ranks,
                                         DType compute, bool elastic = false,
                                         const DatasetInfo* data = nullptr);

}  // namespace starling
