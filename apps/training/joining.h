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

// A rank that joins a running job (`--join`), and a job that continues with other ranks in the same
// processes: what joiners need to know, and who sends whom the state to continue from.

namespace starling {

/// What must be equal on a joiner and in the run, by name: identity_of() of the config as it was
/// given, and the tokenizer. The data set must be open.
std::map<std::string, std::string> identity_of_joiners(const TrainConfig& config,
                                                       const std::vector<Parameter*>& parameters);
/// Why the run cannot continue with one rank more, or one replica; empty if it can.
std::string why_cannot_grow(const TrainOptions& options, const TrainConfig& config,
                            const RankLayout& site, std::int64_t step);

/// FOLDER/job.json.
std::string job_file(const std::string& folder);
/// Writes FOLDER/job.json, with which a process asks to join, and FOLDER/secret unless the config
/// names a file of its own. Called on rank 0, and on a joiner's host with a folder of its own.
void publish_job(const std::string& folder, const TrainConfig& config,
                 const Membership& membership);
/// Removes them at the end.
void withdraw_job(const std::string& folder);
/// `--join RUN`: asks the job for admission, and waits for it. Options become those of a rank of
/// it. `timeout_seconds`: the job's. `state`: what rank 0 has handed over meanwhile, if anything,
/// in memory of `host`, which is a new backend.
std::shared_ptr<Membership> ask_to_join(TrainOptions& options, double& timeout_seconds,
                                        std::shared_ptr<Backend>& host,
                                        std::optional<SafetensorsFile>& state);
/// How ranks continue from what they have in memory. Each keeps its own state, except a joiner, or,
/// after a loss, a rank without the last outer step that another has taken: these take over another
/// rank's, so that what is equal on all ranks stays equal. All continue from the step of the most
/// advanced rank. A joiner that has fetched a state while it waited keeps it, unless what is equal
/// on all ranks has changed since. A replica counts as one rank: each of its ranks sends to the one
/// at its place.
struct Handover {
  std::int64_t step = 0;
  int replica = 1;      ///< ranks of each of the following
  int from = 0;         ///< the rank whose state others take
  std::vector<int> to;  ///< those others
  std::vector<Stretch> stretches;
  bool other_ranks = false;  ///< than those that made the state
  bool after_loss = false;   ///< a step was interrupted: Algorithm::resume_after_loss()
  bool begins = false;       ///< with the algorithm's first step
  /// Metadata that is that of the sender on all ranks; null: left out
  std::map<std::string, std::optional<std::string>> metadata;
};
/// `own_state`: TrainingRun::handover_state(); null if this rank has none. Nothing if no rank has
/// one. Collective.
std::optional<Handover> plan_handover(const SafetensorsFile* own_state, const TrainConfig& config,
                                      World& world);
/// Sends the state, or receives it: then it replaces `state` when all of it has arrived. What
/// belongs to the sender alone is cleared: losses, and what encoding has left out of its messages.
/// Called on all ranks, with the backend that is to train; only those concerned wait.
void hand_over(const Handover& handover, std::optional<SafetensorsFile>& state, Backend& backend,
               Transport& transport);

}  // namespace starling
