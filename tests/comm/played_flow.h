#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "comm/transport.h"
#include "comm/transports/staged.h"

namespace starling::test {

/// Numbers in a piece that a device copies at once.
inline constexpr std::int64_t kPieceElements =
    static_cast<std::int64_t>(kStagedPieceBytes / sizeof(float));

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
