#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace starling {

/// The control plane: rank numbers, and blocking collectives for small amounts of data. All ranks
/// call them in the same order; they time out. Buckets are exchanged by a Transport
/// (comm/transport.h).
class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual int local_rank() const = 0;  ///< among the ranks of this host
  virtual int local_size() const = 0;

  virtual void barrier() = 0;
  virtual void broadcast(void* data, std::size_t bytes, int root) = 0;
  /// Every rank's bytes, in rank order, on every rank.
  virtual std::vector<std::string> all_gather(const std::string& mine) = 0;
  /// values[i] = Σ over ranks in rank order.
  virtual void sum(double* values, std::size_t count) = 0;
  virtual void max(double* values, std::size_t count) = 0;
};

/// Calls `check` before each collective. It throws if a rank is known to be lost, instead of
/// waiting for it.
class CheckedWorld final : public World {
 public:
  CheckedWorld(World& world, std::function<void()> check)
      : world_(world), check_(std::move(check)) {}
  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  int local_rank() const override { return world_.local_rank(); }
  int local_size() const override { return world_.local_size(); }
  void barrier() override { checked().barrier(); }
  void broadcast(void* data, std::size_t bytes, int root) override {
    checked().broadcast(data, bytes, root);
  }
  std::vector<std::string> all_gather(const std::string& mine) override {
    return checked().all_gather(mine);
  }
  void sum(double* values, std::size_t count) override { checked().sum(values, count); }
  void max(double* values, std::size_t count) override { checked().max(values, count); }

 private:
  World& checked() {
    check_();
    return world_;
  }
  World& world_;
  std::function<void()> check_;
};

}  // namespace starling
