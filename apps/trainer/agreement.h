#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "core/error.h"

namespace starling {

/// An error that every rank holds: one rank prints it, all end in order with its exit code.
class AgreedError : public Error {
 public:
  AgreedError(ExitCode code, std::string_view component, std::string_view message, int rank = -1)
      : Error(code, component, message), rank_(rank) {}
  /// The lowest rank it happened on; -1 where it is no single rank's.
  int rank() const { return rank_; }

 private:
  int rank_;
};

/// The exit code and text that an exception stands for.
struct Failure {
  ExitCode code = ExitCode::kInternal;
  std::string message;
};
Failure failure_of(const std::exception_ptr& error);

/// Runs purely local work on every rank. If it fails anywhere, every rank throws the lowest failing rank's error as AgreedError, so that
/// no rank goes on alone into a collective call. Collective; `work` must not talk to other ranks.
void together(Transport& transport, const std::function<void()>& work);

/// Σ over ranks of a few numbers without waiting for them: started at one step, read at a later one.
class AsyncSum {
 public:
  AsyncSum(Transport& transport, Backend& backend, std::size_t count);
  void start(std::span<const double> values, std::int64_t step);
  bool pending() const { return pending_; }
  bool ready() { return pending_ && transport_.done(ticket_); }
  /// Waits for the result.
  std::vector<double> take();

 private:
  Transport& transport_;
  std::unique_ptr<Backend> host_;  ///< a device must not be waited for, so the numbers lie in host memory; null where that is the device's
  Tensor values_;
  Ticket ticket_ = 0;
  bool pending_ = false;
};

}  // namespace starling
