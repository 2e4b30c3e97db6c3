#include "apps/training/resume.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/state/elastic.h"
#include "apps/training/state/training_state.h"
#include "comm/agreement.h"
#include "core/log.h"

namespace starling {
namespace {

/// A checkpoint as this rank goes on from it: by how many ranks it was made, and its file, or with
/// `elastic` those of its share.
std::set<std::string> names_of_trained(const Model& model) {
  std::set<std::string> names;
  for (const Parameter* parameter : model.parameters()) {
    if (parameter->trainable) names.insert(parameter->name);
  }
  return names;
}

/// Whether a tensor of a checkpoint is one of these parameters, or a state of it.
bool is_of(const std::string& name, const std::set<std::string>& parameters) {
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    if (parameters.contains(name.substr(dot + 1))) return true;
  }
  return false;
}

struct ReadCheckpoint {
  int made = 0, replica = 1;  ///< ranks that made it, and sync.replica then
  bool others = false;        ///< all files are to be averaged
  std::string source;         ///< rank 0's file
  RankFiles files;
};

/// The newest checkpoint that is whole on all ranks; `step` becomes its step. One line says which
/// damaged ones were left out. Where none is whole, the error is what is wrong with the newest.
/// Collective.
ReadCheckpoint read_newest_checkpoint(const CheckpointFolder& checkpoints, const Model& model,
                                      const RankLayout& site, World& world, std::int64_t& step,
                                      bool elastic, bool sets_aside) {
  // The first rank of a replica reads what its ranks share.
  std::set<std::string> shared;
  if (world.rank() % site.replica > 0) shared = names_of_trained(model);
  const auto left_out = [&](const std::string& name) { return is_of(name, shared); };
  std::optional<AgreedError> first;
  std::vector<std::int64_t> damaged;
  while (true) {
    ReadCheckpoint state;
    const auto error = try_on_all_ranks(world, [&] {
      state.made = checkpoints.ranks(step);
      state.source = checkpoints.rank_file(step, 0);
      const CheckpointFile made = checkpoints.open(step);
      state.replica =
          saved_replica(made.read(0, [](const std::string&) { return true; }), state.source);
      state.others = elastic && state.made > 0 &&
                     (state.made != world.size() || state.replica != site.replica);
      // Without --elastic check_resumable() says on rank 0 what is not as it was.
      for (int rank = world.rank(); rank < std::max(state.made, 1); rank += world.size()) {
        state.files.emplace_back(
            checkpoints.rank_file(step, rank),
            state.others || shared.empty() ? made.read(rank) : made.read(rank, left_out));
        if (!state.others) break;
      }
    });
    if (!error) {
      on_all_ranks(world, [&] {
        if (world.rank() != 0 || damaged.empty()) return;
        log::warning("{}; going on from step {}, the newest whole checkpoint", first->message(),
                     step);
        for (const std::int64_t bad : damaged) {
          if (!sets_aside) break;
          const std::string reason = checkpoints.set_aside(bad);
          if (!reason.empty())
            log::warning("{} is damaged and cannot be renamed: {}", checkpoints.step_folder(bad),
                         reason);
        }
      });
      return state;
    }
    if (!first) first = *error;
    if (error->code() != ExitCode::kUsage) throw AgreedError(*error);
    std::int64_t before = -1;
    if (world.rank() == 0) before = checkpoints.newest(step).value_or(-1);
    if (world.size() > 1) world.broadcast(&before, sizeof before, 0);
    if (before < 0) throw AgreedError(*first);
    damaged.push_back(step);
    step = before;
  }
}

}  // namespace

SafetensorsFile read_newest_state(const CheckpointFolder& checkpoints, bool elastic,
                                  const RankLayout& site, World& world, std::int64_t& step,
                                  TrainConfig& config, bool sets_aside) {
  ReadCheckpoint checkpoint =
      read_newest_checkpoint(checkpoints, *config.model, site, world, step, elastic, sets_aside);
  SafetensorsFile state;
  const bool others = checkpoint.others;
  // On ranks beyond those that made it, which check_resumable() refuses on rank 0
  const bool none = !others && checkpoint.files.empty();
  if (others) {
    const std::set<std::string> parameters = names_of_trained(*config.model);
    const bool needs_weights = config.sync.algorithm.topology == TopologyKind::kColumnStochastic;
    state = mean_of_ranks(std::move(checkpoint.files), checkpoint.made, parameters, needs_weights,
                          world);
  } else if (!none) {
    checkpoint.source = checkpoint.files.front().first;
    state = std::move(checkpoint.files.front().second);
  }
  on_all_ranks(world, [&] {
    if (none) return;
    std::vector<Stretch>& stretches = config.length.stretches;
    stretches = saved_stretches(state, checkpoint.source);
    // A replica counts as one rank, with the batch of all of its ranks
    const std::int64_t asked = config.length.batch_size * site.replica,
                       made = saved_config(state, checkpoint.source)
                                  .value("batch_size", config.length.batch_size) *
                              checkpoint.replica;
    const int ranks = site.replicas().ranks, ranks_then = checkpoint.made / checkpoint.replica;
    if (others && ranks_then == ranks && made == asked) return;
    if (!others && (made == asked || checkpoint.made != site.ranks)) return;
    if (stretches.empty()) stretches = {{.ranks = ranks_then, .batch_size = made}};
    stretches = continued(std::move(stretches), steps_in(state, checkpoint.source), ranks,
                          config.state.elastic, made == asked ? 0 : asked);
  });
  return state;
}

}  // namespace starling
