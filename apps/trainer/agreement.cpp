#include "apps/trainer/agreement.h"

#include <fmt/format.h>

#include <new>

#include "kernels/optimizer.h"

namespace starling {

Failure failure_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& known) {
    return {known.code(), known.what()};
  } catch (const std::bad_alloc&) {
    return {ExitCode::kMemory, "[memory] the system has no memory left for this rank; use a smaller batch_size or fewer ranks"};
  } catch (const std::exception& unknown) {
    return {ExitCode::kInternal, fmt::format("[internal] {}", unknown.what())};
  } catch (...) {
    return {ExitCode::kInternal, "[internal] an exception of unknown type"};
  }
}

void together(Transport& transport, const std::function<void()>& work) {
  std::string mine;
  try {
    work();
  } catch (...) {
    const Failure failure = failure_of(std::current_exception());
    mine = fmt::format("{} {}", static_cast<int>(failure.code), failure.message);
  }
  if (transport.size() == 1 && mine.empty()) return;
  const std::vector<std::string> all = transport.size() == 1 ? std::vector<std::string>{mine} : transport.all_gather(mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    // The message reads "[component] text" already; Error's constructor would put another component in front.
    const std::size_t space = all[rank].find(' ');
    const std::size_t close = all[rank].find("] ");
    throw AgreedError(static_cast<ExitCode>(std::stoi(all[rank].substr(0, space))), all[rank].substr(space + 2, close - space - 2),
                      all[rank].substr(close + 2), static_cast<int>(rank));
  }
}

AsyncSum::AsyncSum(Transport& transport, Backend& backend, std::size_t count)
    : transport_(transport),
      host_(backend.device() == DeviceType::kCpu ? nullptr : open_backend(DeviceType::kCpu, 1)),
      values_(host_ ? *host_ : backend, Shape{static_cast<std::int64_t>(count)}, DType::kFloat64) {}

void AsyncSum::start(std::span<const double> values, std::int64_t step) {
  require(!pending_, "trainer", "a sum was started before the last one was read");
  require(values.size() == static_cast<std::size_t>(values_.elements()), "trainer", "a sum of {} numbers was started with {}",
          values_.elements(), values.size());
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

}  // namespace starling
