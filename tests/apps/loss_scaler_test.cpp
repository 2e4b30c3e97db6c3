#include "apps/trainer/state/loss_scaler.h"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "core/forwarding_backend.h"
#include "core/philox.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

/// A device that is `lag` copies behind: it hands numbers over when their event is synchronized and not before.
class LaggingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  Event copy_to_host_later(const Tensor& from, void* to) override {
    Copy& copy = copies_[++issued_];
    copy.to = to;
    copy.bytes.resize(from.bytes());
    std::memcpy(copy.bytes.data(), from.raw(), from.bytes());
    return {issued_};
  }
  bool done(Event event) override { return event.id + lag <= issued_; }
  void synchronize(Event event) override {
    if (!done(event)) ++waits;
    const auto it = copies_.find(event.id);
    if (it == copies_.end()) return;
    std::memcpy(it->second.to, it->second.bytes.data(), it->second.bytes.size());
    copies_.erase(it);
  }
  std::uint64_t lag = 0;
  int waits = 0;

 protected:
  void around(std::string_view, const std::function<void()>& operation) override { operation(); }

 private:
  struct Copy {
    void* to = nullptr;
    std::vector<std::byte> bytes;
  };
  std::uint64_t issued_ = 0;
  std::map<std::uint64_t, Copy> copies_;
};

class OwnStorage final : public Storage {
 public:
  OwnStorage(Backend& backend, std::shared_ptr<Storage> inner)
      : Storage(backend, inner->data(), inner->bytes()), inner_(std::move(inner)) {}

 private:
  std::shared_ptr<Storage> inner_;
};

/// A tensor whose backend() is the late one.
struct LateControl {
  explicit LateControl(std::uint64_t lag = 1) { late.lag = lag; }
  void answer(bool skipped) const {
    control.data<double>()[0] = 1.0;
    control.data<double>()[1] = skipped ? 1.0 : 0.0;
  }
  std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  LaggingBackend late{*cpu};
  Tensor control{std::make_shared<OwnStorage>(late, cpu->allocate(16)), 0, Shape{2}, DType::kFloat64};
};

TEST_CASE("trainer/loss scale: halves on overflow, doubles after a row of clean steps, and the optimizer's step lags") {
  LateControl site;
  LossScaler scaler({.initial = 1024.0, .growth_interval = 3});
  std::int64_t step = 0;
  const auto next = [&](bool skipped) {
    site.answer(skipped);
    scaler.posted(site.control, ++step);
    return scaler.settle();
  };
  CHECK(scaler.settle().scale == 1024.0);
  CHECK(scaler.settle().optimizer_step == 1);
  CHECK(site.late.waits == 0);
  CHECK(next(true).scale == 512.0);
  CHECK(scaler.settle().optimizer_step == 1);
  CHECK(next(false).scale == 512.0);
  CHECK(next(false).scale == 512.0);
  CHECK(next(false).scale == 1024.0);
  CHECK(scaler.settle().optimizer_step == 4);
  CHECK(scaler.settle().clean_steps == 0);
  // An overflow starts the row anew.
  next(false);
  next(false);
  CHECK(next(true).scale == 512.0);
  CHECK(next(false).scale == 512.0);
  CHECK(next(false).scale == 512.0);
  CHECK(next(false).scale == 1024.0);
  CHECK(scaler.settle().optimizer_step == 9);
  CHECK(scaler.diverged_step() == -1);
  CHECK(site.late.waits == step);
}

TEST_CASE("trainer/loss scale: nothing waits before the scale is asked for") {
  LateControl site;
  LossScaler scaler;
  site.answer(true);
  scaler.posted(site.control, 1);
  CHECK(site.late.waits == 0);
  CHECK_THROWS_AS(scaler.posted(site.control, 2), Error);
  CHECK(scaler.settle().scale == 32768.0);
  CHECK(scaler.settle().scale == 32768.0);
  CHECK(site.late.waits == 1);
}

TEST_CASE("trainer/loss scale: an endless row of overflows is divergence, with the step named") {
  LateControl site;
  LossScaler scaler;
  std::int64_t step = 0;
  while (scaler.diverged_step() < 0) {
    REQUIRE(step < 100);
    site.answer(true);
    scaler.posted(site.control, ++step);
    scaler.settle();
  }
  CHECK(step == 31);  // 2^16 → 2^-15
  CHECK(scaler.diverged_step() == 31);
  CHECK(scaler.settle().optimizer_step == 1);
}

TEST_CASE("trainer/loss scale: overflows that go on for long after divergence leave a scale with an inverse") {
  LateControl site;
  LossScaler scaler;
  site.answer(true);
  for (std::int64_t step = 1; step <= 2000; ++step) {
    scaler.posted(site.control, step);
    CHECK(scaler.settle().scale >= 0x1p-15);
  }
  CHECK(scaler.settle().scale == 0x1p-15);
  CHECK(scaler.diverged_step() == 31);
}

TEST_CASE("trainer/loss scale: a saved state goes on, and an algorithm without an answer is named") {
  LateControl site;
  LossScaler scaler({.initial = 8.0, .growth_interval = 2});
  scaler.restore({64.0, 1, 17});
  site.answer(false);
  scaler.posted(site.control, 18);
  CHECK(scaler.settle().scale == 128.0);
  CHECK(scaler.settle().optimizer_step == 18);
  CHECK_THROWS_WITH_AS(scaler.posted({}, 19), doctest::Contains("control()"), Error);
}

// The device's choice among the loss scales that are possible comes to what the host finds once it knows.
TEST_CASE("trainer/loss scale choices: the device's place is the true state's, however far it lags behind and whenever the host settles") {
  for (const std::int64_t interval : {1, 2, 3, 7}) {
    for (const std::uint32_t overflows : {2u, 5u, 50u}) {  // one step in so many
      CAPTURE(interval);
      CAPTURE(overflows);
      LateControl site;
      const LossScaleSettings settings{.initial = 1024.0, .growth_interval = interval};
      LossScaler scaler(settings), truth(settings);
      const Tensor &control = site.control, known(*site.cpu, Shape{2}, DType::kFloat64);
      site.answer(false);
      std::int32_t place = 0;
      std::size_t most = 0;
      for (std::int64_t step = 1; step <= 3000; ++step) {
        const Philox4x32 bits = philox(17, static_cast<std::uint64_t>(step), overflows);
        const std::uint32_t* random = bits.v;
        site.late.lag = random[0] % (LossScaler::kMostUnknown + 1);
        if (random[1] % 16 == 0) {
          CHECK(scaler.settle() == truth.settle());  // a checkpoint, and a launch with values that are known: the place is of no meaning
          place = static_cast<std::int32_t>(random[3] % 8);
        } else {
          const ScaleChoices choices = scaler.choices();
          const std::size_t entry = 2 * static_cast<std::size_t>(place) + (control.data<double>()[1] != 0.0 ? 1 : 0);
          place = choices.table.at(entry);
          REQUIRE(static_cast<std::size_t>(place) < choices.states.size());
          REQUIRE(choices.states[static_cast<std::size_t>(place)] == truth.settle());
          most = std::max(most, choices.states.size());
        }
        for (const Tensor& tensor : {control, known}) {
          tensor.data<double>()[0] = 1.0;
          tensor.data<double>()[1] = random[2] % overflows == 0 ? 1.0 : 0.0;
        }
        scaler.posted(control, step);
        truth.posted(known, step);
      }
      CHECK(most > 2);
      CHECK(most <= ValueChoices::kMost);
      CHECK(scaler.settle() == truth.settle());
      CHECK(scaler.diverged_step() == truth.diverged_step());
    }
  }
}

TEST_CASE("trainer/loss scale choices: the host waits only for a device that is more than kMostUnknown steps behind") {
  for (const std::uint64_t lag : {LossScaler::kMostUnknown, LossScaler::kMostUnknown + 1}) {
    const LateControl site(lag);
    site.answer(false);
    LossScaler scaler;
    for (std::int64_t step = 1; step <= 20; ++step) {
      scaler.choices();
      scaler.posted(site.control, step);
    }
    CHECK((site.late.waits > 0) == (lag > LossScaler::kMostUnknown));
  }
}

}  // namespace
}  // namespace starling
