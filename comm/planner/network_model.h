#pragma once

#include <string>
#include <vector>

namespace starling {

/// A full-duplex connection: in each direction a message of s bytes takes latency + s / bandwidth.
struct LinkModel {
  double latency = 0.0;    ///< seconds
  double bandwidth = 1.0;  ///< bytes a second
};

/// The cost of communication. Ranks are numbered host by host, `ranks_per_host` on each (the last
/// host may have fewer), and the ranks of a host share its link. Measured by measure_network(), or
/// given.
struct NetworkModel {
  int ranks = 1;
  int ranks_per_host = 1;
  /// Each of these ranks is a replica of so many (comm/replica.h), which send a part of a message
  /// each, at the same time. Bandwidths and `message_cpu` are of all of them together.
  int replica = 1;
  LinkModel inside{2e-6, 8e9};  ///< one rank to another on its host, by messages
  /// One rank to another on another host, without other traffic
  LinkModel between{50e-6, 1.25e8};
  bool between_measured = false;  ///< otherwise `between` is an assumption
  /// Bytes a second of each host's link with several peers; empty: `between` for all
  std::vector<double> host_bandwidth;
  /// Bytes a second of a host's link under several concurrent sums over all ranks; 0: not measured
  double sum_bandwidth = 0.0;
  /// Bytes that are under way on a connection between two hosts at most: by default what Linux
  /// holds of it
  double window = 4 << 20;
  /// How many times as long as one of its directions alone an exchange between hosts takes (the
  /// largest of the hosts' medians over pairs): 1, or 2 if the link or its driver is half-duplex.
  double both_directions = 1.0;
  double memory_bandwidth = 1.2e10;  ///< bytes a second that one rank's update moves
  /// Seconds of a core per byte sent or received between hosts
  double message_cpu = 4e-10;
  /// Ranks of one host read each other's parameters in shared memory
  bool direct = true;
  double noise = 0.0;       ///< fraction of the measurement that threads waited for a core
  bool spare_cores = true;  ///< communication has cores of its own

  int hosts() const { return (ranks + ranks_per_host - 1) / ranks_per_host; }
  int host_of(int rank) const { return rank / ranks_per_host; }
  double bandwidth_of(int host) const {
    return host_bandwidth.empty() ? between.bandwidth
                                  : host_bandwidth[static_cast<std::size_t>(host)];
  }
  double typical_link() const;  ///< median of bandwidth_of()
  /// Another number of ranks, on hosts with the typical link.
  void resize(int to_ranks, int to_ranks_per_host);
  /// Takes replicas of `size` ranks for ranks. `size` divides the ranks of a host.
  void form_replicas(int size);
  /// Every host's link, as somebody knows it: bytes a second.
  void set_links(double bandwidth);
  /// Sets `between` if it was not measured: a pair fills the typical link as far as latency and
  /// window size allow.
  void derive_pair();
};

/// Warnings with remedies: of links between hosts that are half-duplex, and of longer ones than the
/// kernels' buffers fill.
std::vector<std::string> network_warnings(const NetworkModel& model);

/// The file that `starling-topo measure --output` writes and `plan --measured` reads. The names of
/// keys include the units: microseconds, gigabytes a second.
std::string to_json(const NetworkModel& model);
/// Throws Error(kUsage) with `source` and the key if the text is not such a file.
NetworkModel network_from_json(const std::string& text, const std::string& source);

}  // namespace starling
