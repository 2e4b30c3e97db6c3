#include "apps/training/async_sum.h"

#include <chrono>

#include "core/error.h"
#include "core/trace.h"
#include "kernels/open_backend.h"

namespace starling {

AsyncSum::AsyncSum(Transport& transport, Backend& backend, std::size_t count)
    : transport_(transport),
      host_(backend.device() == DeviceType::kCpu ? nullptr : open_backend(DeviceType::kCpu, 1)),
      values_(host_ ? *host_ : backend, Shape{static_cast<std::int64_t>(count)}, DType::kFloat64) {}

void AsyncSum::start(std::span<const double> values, std::int64_t step) {
  require(!pending_, "trainer", "a sum was started before the last one was read");
  require(values.size() == static_cast<std::size_t>(values_.elements()), "trainer",
          "a sum of {} numbers was started with {}", values_.elements(), values.size());
  values_.backend().copy_from_host(values.data(), values_);
  ticket_ = transport_.start_sum(values_, values_, {step, -1, -1});
  pending_ = true;
}

std::vector<double> AsyncSum::take() {
  require(pending_, "trainer", "a sum was read that had not been started");
  transport_.wait(ticket_);
  pending_ = false;
  std::vector<double> result(static_cast<std::size_t>(values_.elements()));
  values_.backend().copy_to_host(values_, result.data());
  return result;
}

void NormSums::sum(const Tensor& numbers) {
  const TraceSpan span("wait", "batch norm", TraceLane::kExchange);
  const auto begin = std::chrono::steady_clock::now();
  transport_.wait(transport_.start_sum(numbers, numbers, {step_, -1, -1}));
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace starling
