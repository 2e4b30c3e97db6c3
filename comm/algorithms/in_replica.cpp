#include <algorithm>

#include "comm/algorithms/builtin.h"
#include "comm/replica.h"
#include "core/error.h"

namespace starling {
namespace {

/// A view of this rank's part of the bucket, with that part's layout.
Bucket part_of(const Bucket& bucket, BucketLayout& layout) {
  const auto [first, elements] = *bucket.own;
  const std::int64_t end = first + elements;
  const std::int64_t state_first = state_place(bucket, first);
  Bucket part;
  layout.elements = elements;
  for (const BucketSlot& slot : bucket.layout->slots) {
    const std::int64_t from = std::max(slot.offset, first),
                       to = std::min(slot.offset + slot.elements, end);
    if (from >= to) continue;
    layout.slots.push_back({slot.parameter, from - first, to - from});
  }
  part.layout = &layout;
  part.parameters = bucket.own_part(bucket.parameters);
  if (bucket.low) part.low = bucket.own_part(bucket.low);
  for (const Tensor& state : bucket.states) part.states.push_back(own_states(bucket, state));
  for (const SyncState& state : bucket.sync)
    part.sync.push_back({state.name, state.numbers.elements() == bucket.layout->elements
                                         ? bucket.own_part(state.numbers)
                                         : state.numbers});
  part.decay = bucket.decay.slice(first / kDecayBlock, Shape{elements / kDecayBlock});
  for (const BucketRun& run : bucket.runs) {
    const std::int64_t from = std::max(run.first, first),
                       to = std::min(run.first + run.elements, end);
    if (from >= to) continue;
    const std::int64_t state_from = state_place(bucket, from);
    part.runs.push_back({from - first, to - from, run.group, state_from - state_first,
                         state_place(bucket, to) - state_from});
  }
  return part;
}

/// Buckets are summed in their order. In memory that ranks share each is as soon as all ranks have
/// its gradients; a rank does not wait for that in its backward pass, unless more than one complete
/// bucket would be kept for others to read. By exchanges each is when the next one is complete, so
/// that its exchange overlaps with that one's backward pass. Its parameters go to the other ranks
/// as soon as they are final, and are awaited by the layer that reads them next. With
/// start_at_begin they go when the next step begins, since a graph has whole exchanges.
class InReplica final : public Algorithm {
 public:
  InReplica(const AlgorithmSite& site,
            const std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)>& make)
      : Algorithm(site),
        replica_(*site.replica),
        gathers_at_begin_(site.start_at_begin && !replica_.shares_memory()),
        layouts_(site.buckets.size()),
        on_the_way_(site.buckets.size()) {
    for (std::size_t b = 0; b < site.buckets.size(); ++b) {
      parts_.push_back(part_of(site.buckets[b], layouts_[b]));
      site.buckets[b].gradient_place = [this, b](const Shape& shape, DType dtype) {
        make_room(static_cast<int>(b));
        return replica_.gradients(site_.backend, shape, dtype);
      };
    }
    AlgorithmSite of_parts{.backend = site.backend,
                           .transport = site.transport,
                           .mixer = site.mixer,
                           .rule = site.rule,
                           .buckets = parts_};
    of_parts.topology = site.topology;
    of_parts.ranks_per_node = site.ranks_per_node;
    of_parts.period = site.period;
    of_parts.clip = site.clip;
    // The norm of a bucket is over all parts, so that all ranks must reach it in the same order.
    of_parts.in_backward = site.in_backward && !(site.clip.norm > 0.0 && site.clip.per_bucket);
    of_parts.overlap = site.overlap;
    of_parts.check_overflow = site.check_overflow;
    of_parts.start_at_begin = site.start_at_begin;
    of_parts.groups = site.groups;
    of_parts.after_update = site.after_update;
    of_parts.gradients = site.gradients;
    of_parts.timeout_seconds = site.timeout_seconds;
    of_parts.replica = site.replica;
    inner_ = make(of_parts);
  }

  void begin(const StepInfo& info) override {
    // What is on the way now is of a capture that was given up
    if (gathers_at_begin_) std::ranges::fill(on_the_way_, char{0});
    arrive();
    info_ = info;
    started_ = next_ = dropped_ = shared_ = 0;
    if (gathers_at_begin_) meet(0);
    inner_->begin(info);
  }
  void bucket_ready(int bucket) override {
    replica_.publish(bucket, label(bucket));
    started_ = bucket + 1;
    proceed(!replica_.shares_memory() ? bucket : site_.passes_exchange ? started_ : 0);
    drop(0);
  }
  void backward_done() override {
    proceed(started_);
    inner_->backward_done();
    for (Bucket& part : parts_) part.gradients = Tensor();
    if (!gathers_at_begin_) meet(shared_);
    drop(started_);
  }
  void before_read(int bucket) override {
    if (on_the_way_[static_cast<std::size_t>(bucket)] == 0) return;
    wait_by(bucket, [&] { replica_.await(bucket); });
    on_the_way_[static_cast<std::size_t>(bucket)] = 0;
  }
  bool gradients_consumed(int bucket) const override { return bucket < dropped_; }
  void finish() override {
    inner_->finish();
    meet(0);
    arrive();
  }
  void conclude() override {
    inner_->conclude();
    meet(0);
    arrive();
  }
  void resume(std::int64_t step) override {
    meet(0);  // all have written what a checkpoint has
    inner_->resume(step);
  }
  void resume_after_loss(std::int64_t step) override {
    meet(0);
    inner_->resume_after_loss(step);
  }
  std::int64_t met() const override { return inner_->met(); }
  Tensor control() const override { return inner_->control(); }
  double mean_weight() const override { return inner_->mean_weight(); }
  double take_wait_seconds() override {
    return Algorithm::take_wait_seconds() + inner_->take_wait_seconds();
  }

 private:
  ExchangeLabel label(int bucket) const { return {info_.step, bucket, info_.step}; }
  void share(int bucket) {
    before_read(bucket);
    replica_.share(bucket, label(bucket));
    on_the_way_[static_cast<std::size_t>(bucket)] = !replica_.shares_memory();
  }
  /// Makes buckets from `first` on visible to all ranks, in the order of the next forward pass.
  void meet(int first) {
    for (int b = buckets(); b-- > first;) share(b);
    wait_by(0, [&] { replica_.meet(label(0)); });
  }
  void arrive() {
    for (int b = 0; b < buckets(); ++b) before_read(b);
  }
  /// Updates buckets whose gradients all ranks have, and waits for those before `until`.
  void proceed(int until) {
    for (; next_ < started_; ++next_) {
      if (!replica_.published(next_, label(next_), false)) {
        if (next_ >= until) return;
        wait_by(next_, [&] { replica_.published(next_, label(next_), true); });
      }
      Bucket& part = parts_[static_cast<std::size_t>(next_)];
      part.gradients = replica_.take_mean(next_, label(next_), inner_->updates_at_once());
      inner_->bucket_ready(next_);
      while (!gathers_at_begin_ && shared_ <= next_ && inner_->parameters_final(shared_))
        share(shared_++);
      for (int b = 0; b <= next_; ++b) {
        if (inner_->gradients_consumed(b)) parts_[static_cast<std::size_t>(b)].gradients = {};
      }
    }
  }
  /// Frees gradients that nobody reads any more, and waits for readers of buckets before `until`.
  void drop(int until) {
    for (; dropped_ < next_; ++dropped_) {
      if (!replica_.taken(dropped_, label(dropped_), false)) {
        if (dropped_ >= until) return;
        wait_by(dropped_, [&] { replica_.taken(dropped_, label(dropped_), true); });
      }
      bucket(dropped_).drop_gradients();
    }
  }
  /// Frees the gradients of earlier buckets before those of this one get memory.
  void make_room(int bucket) {
    // One complete bucket may keep its gradients until the other ranks have read them. In shared
    // memory none may if buckets overlap, that is if this one begins before the one in front of it
    // is complete: the others have had the time of that whole bucket to read.
    const bool early = bucket > started_ && replica_.shares_memory();
    const int most = early ? started_ : started_ - 1;
    proceed(most);
    drop(most);
  }

  Replica& replica_;
  bool gathers_at_begin_;
  std::deque<BucketLayout> layouts_;
  std::vector<Bucket> parts_;
  std::unique_ptr<Algorithm> inner_;
  StepInfo info_;
  /// Buckets of this step: complete here; summed; of those, freed; shared
  int started_ = 0, next_ = 0, dropped_ = 0, shared_ = 0;
  std::vector<char> on_the_way_;  ///< by bucket: shared, and not awaited yet
};

}  // namespace

std::unique_ptr<Algorithm> make_in_replica(
    const AlgorithmSite& site,
    const std::function<std::unique_ptr<Algorithm>(const AlgorithmSite&)>& make) {
  return std::make_unique<InReplica>(site, make);
}

}  // namespace starling
