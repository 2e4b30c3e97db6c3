#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/inference/model_file.h"
#include "apps/training/state/loss_scaler.h"
#include "comm/replica.h"
#include "core/safetensors.h"
#include "kernels/optimizer.h"
#include "layers/layer.h"

namespace starling {

struct DatasetInfo;

/// A run's counters in checkpoints.
struct RunCounters {
  std::int64_t step = 0;  ///< number of updates
  double loss_sum = 0.0;  ///< of the steps since the last line of metrics
  std::int64_t loss_count = 0;
  double train_seconds = 0.0;
  std::optional<LossScaleState> loss_scale;  ///< of this rank, in fp16
};

/// All that is needed to resume one rank bit-exactly; semantics.md section 10. `used`: an earlier
/// result of the same run, whose memory is reused. `put`: refer_file_tensor leaves tensors to be
/// read when the file is written, and they must not change until then. `replica`: gathers states
/// that this rank has a part of; all of its ranks call this then.
SafetensorsFile save_state(const Model& model, const std::vector<Bucket>& buckets,
                           const OptimizerRule& rule, const RunCounters& counters,
                           const nlohmann::json& resolved_config, int ranks, DType compute,
                           SafetensorsFile used = {}, PutTensor put = to_file_tensor,
                           Replica* replica = nullptr);
/// Restores such a state. `source`: the file, for errors. Without `sync` the algorithm starts over.
/// `own_alone`: only what is in no bucket, as another rank of the replica restores the rest.
RunCounters load_state(const SafetensorsFile& file, const std::string& source, Model& model,
                       std::vector<Bucket>& buckets, const OptimizerRule& rule, bool sync = true,
                       bool own_alone = false, Replica* replica = nullptr);
/// Then, without shared memory: what a replica's first rank has loaded reaches the others.
void share_state(const SafetensorsFile& file, const std::string& source,
                 const std::vector<Bucket>& buckets, const OptimizerRule& rule, bool sync,
                 Replica& replica);
/// `sync.replica` of the run that made a checkpoint.
int saved_replica(const SafetensorsFile& file, const std::string& source);
/// Saves the complexities of training samples, which a resumed run needs for the same order.
void save_complexities(const std::vector<float>& complexities, SafetensorsFile& file);
std::vector<float> load_complexities(const SafetensorsFile& file, const std::string& source,
                                     std::int64_t samples);
/// Updates done.
std::int64_t steps_in(const SafetensorsFile& file, const std::string& source);
/// The resolved config of the run that made a checkpoint.
nlohmann::json saved_config(const SafetensorsFile& file, const std::string& source);
/// Compares a run's config with that of the checkpoint it resumes. Error(kUsage) with the first key
/// that must not differ. Returns the keys that differ and may, with both values. `written_config`:
/// the user's; keys that neither it nor the checkpoint has are ignored, as they are newer than the
/// checkpoint. `elastic`: keys that depend on the number of ranks may differ, too. `data`: if not
/// null, the open data set is compared as well, see data_contents.h.
std::vector<std::string> check_resumable(const SafetensorsFile& file, const std::string& source,
                                         const nlohmann::json& resolved_config,
                                         const nlohmann::json& written_config, int ranks,
                                         DType compute, bool elastic = false,
                                         const DatasetInfo* data = nullptr);

}  // namespace starling
