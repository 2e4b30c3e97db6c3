#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace starling {

/// The control plane: who the ranks are, and what they tell each other beside training. Its calls
/// block until every rank has made them, in the same order on all ranks, or the time limit is over.
/// Buckets travel by a Transport (comm/transport.h).
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

/// Another world, which is asked nothing before `check` has been called: it throws what a transport
/// knows to be lost, so that nobody waits for a rank that will not come.
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
