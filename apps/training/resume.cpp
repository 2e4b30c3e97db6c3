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
struct ReadCheckpoint {
  int made = 0;
  std::string source;  ///< rank 0's file
  RankFiles files;
};

/// The newest checkpoint that is whole on all ranks; `step` becomes its step. One line says which
/// damaged ones were left out. Where none is whole, the error is what is wrong with the newest.
/// Collective.
ReadCheckpoint read_newest_checkpoint(const CheckpointFolder& checkpoints, World& world,
                                      std::int64_t& step, bool elastic, bool sets_aside) {
  std::optional<AgreedError> first;
  std::vector<std::int64_t> damaged;
  while (true) {
    ReadCheckpoint state;
    const auto error = try_on_all_ranks(world, [&] {
      state.made = checkpoints.ranks(step);
      state.source = checkpoints.rank_file(step, 0);
      const bool others = elastic && state.made > 0 && state.made != world.size();
      // Without --elastic check_resumable() says on rank 0 that these are too many ranks.
      for (int rank = world.rank(); rank < std::max(state.made, 1); rank += world.size()) {
        state.files.emplace_back(checkpoints.rank_file(step, rank), checkpoints.read(step, rank));
        if (!others) break;
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
  ReadCheckpoint checkpoint = read_newest_checkpoint(checkpoints, world, step, elastic, sets_aside);
  SafetensorsFile state;
  const bool others = elastic && checkpoint.made != site.ranks;
  // On ranks beyond those that made it, which check_resumable() refuses on rank 0
  const bool none = !others && checkpoint.files.empty();
  if (others) {
    std::set<std::string> parameters;
    for (const Parameter* parameter : config.model->parameters()) {
      if (parameter->trainable) parameters.insert(parameter->name);
    }
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
    const std::int64_t asked = config.length.batch_size,
                       made = saved_config(state, checkpoint.source).value("batch_size", asked);
    if (!others && (made == asked || checkpoint.made != site.ranks)) return;
    if (stretches.empty()) stretches = {{.ranks = checkpoint.made, .batch_size = made}};
    stretches = continued(std::move(stretches), steps_in(state, checkpoint.source), site.ranks,
                          config.state.elastic, made == asked ? 0 : asked);
  });
  return state;
}

}  // namespace starling
