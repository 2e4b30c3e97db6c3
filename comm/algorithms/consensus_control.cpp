#include "comm/algorithms/consensus_control.h"

#include <array>
#include <cmath>
#include <utility>

#include "comm/algorithms/updater.h"
#include "comm/replica.h"
#include "core/operations/pointwise.h"
#include "core/operations/reduce.h"
#include "kernels/decode_sum.h"
#include "topology/round_table.h"

namespace starling {
ConsensusControl::ConsensusControl(const AlgorithmSite& site, double above,
                                   std::int64_t check_every, std::int64_t interval, Tensor saved)
    : backend_(site.backend),
      transport_(site.transport),
      replica_(site.replica),
      topology_(std::make_unique<WithGlobalRounds>(*site.topology, 2)),
      above_(above),
      check_every_(check_every),
      interval_(interval),
      own_(site.backend, Shape{2}, DType::kFloat64),
      sums_(site.backend, Shape{2}, DType::kFloat64),
      saved_(std::move(saved)) {
  backend_.fill(own_, 0.0);
  backend_.fill(sums_, 0.0);
}

std::int64_t ConsensusControl::next_round(bool global) {
  global |= std::exchange(global_next_, false);
  return global ? 1 : 2 * rounds_++;
}

void ConsensusControl::start_measuring() {
  // A step checks what it mixed, or what was mixed last before it.
  measuring_ =
      (step_ + interval_ - 1) / check_every_ > (step_ - 1 + check_every_) / check_every_ - 1;
  if (measuring_) on_update_stream(backend_, [&] { backend_.fill(own_, 0.0); });
}

void ConsensusControl::measure(const Tensor& x, const Mix& mix) {
  if (!measuring_) return;
  const StreamScope scope(backend_, StreamKind::kUpdate);
  if (!mix.received.empty()) {
    if (!apart_ || apart_.elements() < x.elements())
      apart_ = Tensor(backend_, x.shape(), x.dtype());
    const Tensor difference = apart_.slice(0, Shape{x.elements()});
    std::vector<Tensor> terms{x};
    std::vector<double> weights{1.0 - mix.self_weight};
    for (std::size_t k = 0; !mix.encoded && k < mix.received.size(); ++k) {
      terms.push_back(mix.received[k]);
      weights.push_back(-mix.weights[mix.sum ? 0 : k]);
    }
    weighted_sum(backend_, terms, weights, difference);
    if (mix.encoded)
      decode_sum(backend_, mix.received, mix.encoded, -mix.weights[0], difference, true);
    backend_.reduce(Reduce::squared_distance(difference, {}, own_, 0));
  }
  backend_.reduce(Reduce::squared_distance(x, {}, own_, 1));
}

void ConsensusControl::start_sums() {
  measuring_ = false;
  if (!checks(step_)) return;
  const StreamScope scope(backend_, StreamKind::kUpdate);
  backend_.copy(own_, sums_);  // own_ may be overwritten while the sum is in flight
  ticket_ = transport_.start_sum(sums_, sums_, {step_, 0, step_});
  summing_ = true;
}

void ConsensusControl::judge() {
  std::array<double, 2> sums{};
  on_update_stream(backend_, [&] { backend_.copy_to_host(sums_, sums.data()); });
  if (replica_) replica_->sum(sums.data(), sums.size(), {.step = step_});
  if (sums[1] > 0.0 && std::sqrt(sums[0] / sums[1]) > above_) global_next_ = true;
  summing_ = false;
}

void ConsensusControl::save() {
  std::array<double, kSaved> values{};
  on_update_stream(backend_, [&] {
    backend_.copy_to_host(own_, values.data());
    backend_.copy_to_host(sums_, values.data() + 2);
  });
  values[4] = summing_ ? 1.0 : 0.0;
  values[5] = global_next_ ? 1.0 : 0.0;
  values[6] = static_cast<double>(rounds_);
  values[7] = static_cast<double>(in_flight);
  backend_.copy_from_host(values.data(), saved_);
}

void ConsensusControl::restore() {
  std::array<double, kSaved> values{};
  on_update_stream(backend_, [&] {
    backend_.copy_to_host(saved_, values.data());
    backend_.copy_from_host(values.data(), own_);
    backend_.copy_from_host(values.data() + 2, sums_);
  });
  summing_ = values[4] != 0.0;
  global_next_ = values[5] != 0.0;
  rounds_ = static_cast<std::int64_t>(values[6]);
  in_flight = static_cast<std::int64_t>(values[7]);
}

}  // namespace starling
