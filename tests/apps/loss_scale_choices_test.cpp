#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include "apps/trainer/state/loss_scaler.h"
#include "core/forwarding_backend.h"
#include "core/philox.h"
#include "kernels/open_backend.h"

// The device's choice among the loss scales that are possible comes to what the host finds once it knows.
namespace starling {
namespace {

/// A device that is `lag` copies behind.
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

}  // namespace

TEST_CASE("trainer/loss scale choices: the device's place is the true state's, however far it lags behind and whenever the host settles") {
  const std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  for (const std::int64_t interval : {1, 2, 3, 7}) {
    for (const std::uint32_t overflows : {2u, 5u, 50u}) {  // one step in so many
      CAPTURE(interval);
      CAPTURE(overflows);
      LaggingBackend late(*cpu);
      const Tensor control(std::make_shared<OwnStorage>(late, cpu->allocate(16)), 0, Shape{2}, DType::kFloat64);
      const LossScaleSettings settings{.initial = 1024.0, .growth_interval = interval};
      LossScaler scaler(settings), truth(settings);
      const Tensor known(*cpu, Shape{2}, DType::kFloat64);
      control.data<double>()[1] = 0.0;
      std::int32_t place = 0;
      std::size_t most = 0;
      for (std::int64_t step = 1; step <= 3000; ++step) {
        const Philox4x32 bits = philox(17, static_cast<std::uint64_t>(step), overflows);
        const std::uint32_t* random = bits.v;
        late.lag = random[0] % (LossScaler::kMostUnknown + 1);
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
  const std::unique_ptr<Backend> cpu = open_backend(DeviceType::kCpu, 1);
  for (const std::uint64_t lag : {LossScaler::kMostUnknown, LossScaler::kMostUnknown + 1}) {
    LaggingBackend late(*cpu);
    late.lag = lag;
    const Tensor control(std::make_shared<OwnStorage>(late, cpu->allocate(16)), 0, Shape{2}, DType::kFloat64);
    control.data<double>()[1] = 0.0;
    LossScaler scaler;
    for (std::int64_t step = 1; step <= 20; ++step) {
      scaler.choices();
      scaler.posted(control, step);
    }
    CHECK((late.waits > 0) == (lag > LossScaler::kMostUnknown));
  }
}

}  // namespace starling
