#include "apps/training/state/loss_scaler.h"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>

#include "core/forwarding_backend.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

/// Hands numbers over when their event is synchronized and not before, as a device does.
class LateBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  Event copy_to_host_later(const Tensor& from, void* to) override {
    from_ = from;
    to_ = to;
    return {++events_};
  }
  void synchronize(Event event) override {
    CHECK(event.id == events_);
    copy_to_host(from_, to_);
    ++waits;
  }
  int waits = 0;

 protected:
  void around(std::string_view, const std::function<void()>& operation) override { operation(); }

 private:
  Tensor from_;
  void* to_ = nullptr;
  std::uint64_t events_ = 0;
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
  void answer(bool skipped) const {
    control.data<double>()[0] = 1.0;
    control.data<double>()[1] = skipped ? 1.0 : 0.0;
  }
  std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  LateBackend late{*cpu};
  Tensor control{std::make_shared<OwnStorage>(late, cpu->allocate(16)), 0, Shape{2},
                 DType::kFloat64};
};

TEST_CASE(
    "trainer/loss scale: halves on overflow, doubles after a row of clean steps, and the "
    "optimizer's step lags") {
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

TEST_CASE(
    "trainer/loss scale: overflows that go on for long after divergence leave a scale with an "
    "inverse") {
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

TEST_CASE(
    "trainer/loss scale: a saved state goes on, and an algorithm without an answer is named") {
  LateControl site;
  LossScaler scaler({.initial = 8.0, .growth_interval = 2});
  scaler.restore({64.0, 1, 17});
  site.answer(false);
  scaler.posted(site.control, 18);
  CHECK(scaler.settle().scale == 128.0);
  CHECK(scaler.settle().optimizer_step == 18);
  CHECK_THROWS_WITH_AS(scaler.posted({}, 19), doctest::Contains("control()"), Error);
}

}  // namespace
}  // namespace starling
