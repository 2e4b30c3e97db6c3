#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "apps/training/config/train_config.h"

namespace starling {

/// Bytes that a rank takes on its device, by shapes: without CUDA's own memory and workspaces.
struct MemoryNeed {
  double parameters = 0.0, gradients = 0.0, states = 0.0;
  double frozen = 0.0;   ///< parameters that are not trained; on CPUs a host's ranks share a base's
  double low = 0.0;      ///< bf16 or fp16 copies of the parameters
  double receive = 0.0;  ///< what neighbours send, and the ranks of a replica
  double average = 0.0;  ///< `ema`, `lookahead`
  double sync = 0.0;     ///< what the algorithm keeps from step to step
  double activations = 0.0, batches = 0.0;
  double tests = 0.0;  ///< what a test counts of classes
  double cache = 0.0;  ///< samples of `data.cache`, which lie in host memory: 0 on a GPU
  /// Each under the name that --dry-run gives it.
  std::vector<std::pair<std::string, double>> parts() const;
  double total() const;
};
/// `site.replica` may differ from the config's.
MemoryNeed memory_need(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace);
/// Receive buffers that a bucket needs: the most of any round and rank.
std::size_t receive_buffers(const Topology* topology, const RankLayout& site);

// Texts. Some trace other values of `recompute`, for which the model has no memory afterwards.

/// "1.5 MiB"
std::string size_text(double bytes);
/// A line of --dry-run: a rank's, by kinds.
std::string memory_text(const MemoryNeed& need);
/// Lines of --dry-run: a rank's and a host's, with each `sync.replica` and `recompute`.
std::string memory_by_keys_text(const TrainConfig& config, const RankLayout& site,
                                const ShapeTrace& trace);
/// A line of --dry-run: the largest batch that fits what is free, and what_fits() if this one does
/// not.
std::string batch_text(const TrainConfig& config, const RankLayout& site, const ShapeTrace& trace);
/// A line if this host has less memory free than its ranks take, with what_fits(); else empty.
std::string memory_warning(const TrainConfig& config, const RankLayout& site,
                           const ShapeTrace& trace);
/// What of `recompute` and larger replicas fits into so many bytes of a rank, each with what it
/// takes.
std::vector<std::string> what_fits(const TrainConfig& config, const RankLayout& site, double bytes);

}  // namespace starling
