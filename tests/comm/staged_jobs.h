#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "comm/exchange_plan.h"
#include "comm/transports/staged.h"
#include "late_device.h"
#include "support.h"
#include "tests/support/soon.h"

// Jobs that are trained and exchanged over the staged transport, by test_comm (ranks as threads)
// and test_comm_mpi.
namespace starling::test {

struct StagedJob {
  const char* algorithm;
  const char* topology;
  int ranks;  ///< of the in-memory test; over MPI it runs where the topology allows
  bool bf16 = false;
};

/// Pairs, neighbours, groups, nodes, sums.
inline const std::vector<StagedJob>& staged_jobs() {
  static const std::vector<StagedJob> jobs{
      {"gossip", R"({"type": "ring"})", 2},
      {"gossip", R"({"type": "complete"})", 3},
      {"gossip", R"({"type": "base-2"})", 3},
      {"gossip", R"({"type": "static-ring"})", 4},
      {"gossip", R"({"type": "directed-exp"})", 4},
      {"gossip", R"({"type": "hierarchical", "ranks_per_node": 2, "inter": {"type": "complete"}})",
       4},
      {"gossip", R"({"type": "complete"})", 3, true},
      {"gossip", R"({"type": "base-2"})", 3, true},
      {"allreduce", R"({})", 3}};
  return jobs;
}

inline Job job_of(const StagedJob& staged, bool in_backward) {
  Job job;
  job.algorithm = staged.algorithm;
  job.topology = nlohmann::json::parse(staged.topology);
  job.optimizer = {{"type", "adamw"}};
  job.exchange = staged.bf16 ? "bf16" : "fp32";
  job.start_apart = job.algorithm == "gossip";
  job.in_backward = in_backward;
  job.finish_every = 2;
  job.resume_after = 3;
  return job;
}

inline constexpr std::int64_t kPieceElements =
    static_cast<std::int64_t>(kStagedPieceBytes / sizeof(float));
/// One element, exactly a piece, a piece and a bit, several.
inline constexpr std::int64_t kStagedSizes[] = {1, 33, kPieceElements, kPieceElements + 1,
                                                2 * kPieceElements + 12345};

/// The numbers that all rounds of `topology`, and a sum over all ranks, bring for buckets of
/// kStagedSizes: `rounds` times, all buckets under way at once.
inline std::vector<std::vector<float>> exchange_sizes(Transport& transport, Backend& backend,
                                                      const Topology& topology, int rounds) {
  std::vector<std::vector<float>> result;
  std::vector<Tensor> sends, sums;
  for (const std::int64_t size : kStagedSizes) {
    sends.emplace_back(backend, Shape{size}, DType::kFloat32);
    sums.emplace_back(backend, Shape{size}, DType::kFloat32);
  }
  struct Started {
    Ticket ticket = 0;
    std::vector<Tensor> received;
  };
  for (int k = 0; k < rounds; ++k) {
    const Exchange exchange = plan_exchange(topology.round(k), transport.rank());
    std::vector<Started> started;
    for (std::size_t b = 0; b < sends.size(); ++b) {
      set_numbers(sends[b], [&](std::int64_t i) {
        return 1.0 / static_cast<double>(1 + (i * 7 + k) % 1009 + 3 * transport.rank());
      });
      const ExchangeLabel label{k, static_cast<int>(b), k};
      Started one;
      if (exchange.kind != Exchange::Kind::kNone) {
        for (std::size_t j = 0; j < exchange.received(); ++j)
          one.received.emplace_back(backend, sends[b].shape(), DType::kFloat32);
        one.ticket = transport.start_exchange(exchange, sends[b], one.received, label);
        started.push_back(one);
      }
      started.push_back({transport.start_sum(sends[b], sums[b], label), {sums[b]}});
    }
    for (const Started& one : started) {
      transport.wait(one.ticket);
      for (const Tensor& tensor : one.received) {
        const auto* first = tensor.data<float>();
        result.emplace_back(first, first + tensor.elements());
      }
    }
  }
  return result;
}

/// A flow that a test plays.
class PlayedFlow final : public Flow {
 public:
  PlayedFlow(std::size_t bytes, std::size_t buffers) : Flow(bytes), come_(buffers) {}
  std::size_t ready() override { return ready_; }
  void arrived(std::size_t buffer, std::size_t bytes) override { come_[buffer] = bytes; }
  void look() override { ++looks; }
  void set_ready(std::size_t bytes) { ready_ = bytes; }
  std::size_t come(std::size_t buffer) const { return come_[buffer]; }
  std::atomic<int> looks{0};

 private:
  std::atomic<std::size_t> ready_{0};
  std::vector<std::atomic<std::size_t>> come_;
};

}  // namespace starling::test
