#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace starling {

/// One direction of a connection: a message of s bytes takes latency + s / bandwidth. Both
/// directions at once are as fast as one.
struct LinkModel {
  double latency = 0.0;    ///< seconds
  double bandwidth = 1.0;  ///< bytes a second
};

/// What moving bytes between ranks costs: ranks are numbered host by host, `ranks_per_host` on each
/// (the last host may have fewer), and the ranks of a host share its link. Measured by
/// measure_network(), or given.
struct NetworkModel {
  int ranks = 1;
  int ranks_per_host = 1;
  LinkModel inside{2e-6, 8e9};  ///< one rank to another on its host, by messages
  /// One rank to another on another host, while nothing else is under way
  LinkModel between{50e-6, 1.25e8};
  bool between_measured = false;  ///< otherwise `between` is an assumption
  /// Bytes a second of each host's link, with as many peers as fill it; empty: `between` for all
  std::vector<double> host_bandwidth;
  /// Bytes a second of a host's link that sums over all ranks reach, several under way, where it is
  /// less; 0: not measured
  double sum_bandwidth = 0.0;
  /// An exchange between hosts takes so many times as long as one of its directions alone (of the
  /// hosts' medians over their pairs the largest): 1, or 2 where the link, or what drives it, is
  /// half-duplex.
  double both_directions = 1.0;
  double memory_bandwidth = 1.2e10;  ///< bytes a second that one rank's update moves
  double message_cpu = 4e-10;        ///< seconds of a core per byte sent or received between hosts
  /// Ranks of one host read each other's parameters where they lie
  bool direct = true;
  double noise = 0.0;       ///< while it was measured: the part that threads waited for a core
  bool spare_cores = true;  ///< communication has cores of its own

  int hosts() const { return (ranks + ranks_per_host - 1) / ranks_per_host; }
  int host_of(int rank) const { return rank / ranks_per_host; }
  double bandwidth_of(int host) const {
    return host_bandwidth.empty() ? between.bandwidth
                                  : host_bandwidth[static_cast<std::size_t>(host)];
  }
  double typical_link() const;  ///< the median of the hosts'
  /// Where nobody measured a pair: it fills the typical link as far as the latency and what it has
  /// under way allow.
  void derive_pair();
};

/// One line for the user where links between hosts were measured to be half-duplex, and the remedy;
/// otherwise empty.
std::string half_duplex_warning(const NetworkModel& model);

/// Text of the file that `starling-topo measure --output` writes and `plan --measured` reads. Units
/// in the names of the keys: microseconds, gigabytes a second.
std::string to_json(const NetworkModel& model);
/// Throws Error(kUsage) with `source` and the key where the text is no such file.
NetworkModel network_from_json(const std::string& text, const std::string& source);

}  // namespace starling
