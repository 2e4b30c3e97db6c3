#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/training/config/options.h"
#include "apps/training/config/train_config.h"
#include "comm/membership.h"
#include "comm/transport.h"
#include "core/safetensors.h"

// A rank that joins a running job (`--join`), and a job that goes on with other ranks in the same
// processes: what is told to joiners, and who gives whom the state to go on with.

namespace starling {

/// What a joiner must have alike, by name: identity_of() of the config as it was given, and the
/// tokenizer. The data set must be open.
std::map<std::string, std::string> identity_of_joiners(const TrainConfig& config,
                                                       const std::vector<Parameter*>& parameters);
/// Why the run could not go on with one rank more; empty if it could.
std::string why_not_one_more(const TrainOptions& options, const TrainConfig& config,
                             const RankLayout& site, std::int64_t step);

/// Writes FOLDER/job.json, with which a process asks to join, and FOLDER/secret unless the config
/// names a file of its own. Called on rank 0.
void publish_job(const std::string& folder, const TrainConfig& config,
                 const Membership& membership);
/// Removes them at the end.
void withdraw_job(const std::string& folder);
/// `--join RUN`: asks the job for admission, and waits for it. Options become those of a rank of
/// it. `timeout_seconds`: the job's.
std::shared_ptr<Membership> ask_to_join(TrainOptions& options, double& timeout_seconds);

/// How ranks go on with what they have in memory.
struct Handover {
  std::int64_t step = 0;
  int from = 0;         ///< the last rank that has the state of that step
  std::vector<int> to;  ///< the ranks that have not
  std::vector<Stretch> stretches;
  bool other_ranks = false;  ///< than those that made the state
};
/// `kept`: this rank's state; null if it has none. Nothing if no rank has the state of a step after
/// `saved_step`. Collective.
std::optional<Handover> plan_handover(const SafetensorsFile* kept, std::int64_t saved_step,
                                      const TrainConfig& config, World& world);
/// Sends the state, or receives it. What of it belongs to the sender alone is left out: losses, and
/// what encoding has left out of its messages. Called on all ranks; only those concerned wait.
void hand_over(const Handover& handover, SafetensorsFile& state, Transport& transport);

}  // namespace starling
