#pragma once

#include <cstdint>

#include "comm/algorithms/bucketwise.h"

namespace starling {

/// Base class of gradient tracking: a second tensor is mixed like the parameters, in the same
/// rounds.
class Tracking : public Bucketwise {
 public:
  explicit Tracking(const AlgorithmSite& site)
      : Bucketwise(site),
        beside_(make_mixer_for([](const Bucket& of) { return of.sync[0].numbers; }, site.overlap)) {
    site_.mixer.open({site_.buckets, site_.topology, site_.overlap, false});
  }

  void finish() override {
    site_.mixer.settle();
    beside_.settle();
    updater_.join();
  }
  void resume(std::int64_t step) override {
    finish();
    site_.mixer.resume(step, step - 1);
    beside_.resume(step, step - 1);
  }

 protected:
  /// The tracked tensor of bucket b from what it was, mixed.
  virtual UpdateWork track(int b) = 0;
  /// The update of the mixed parameters with the tracked tensor.
  virtual UpdateWork move(int b) = 0;

  void update(int b) final {
    const std::int64_t step = info_.step;
    UpdateWork tracked = track(b);
    tracked.numbers = state(b, 0);
    updater_.update(b, info_, beside_.receive(b, step, step - 1), tracked);
    beside_.publish(b, step, step);
    updater_.update(b, info_, site_.mixer.receive(b, step, step - 1), move(b));
    site_.mixer.publish(b, step, step);
  }

 private:
  Mixer& beside_;
};

}  // namespace starling
