#include <algorithm>
#include <atomic>
#include <mutex>

#include "core/backend.h"
#include "core/error.h"
#include "core/operations/all.h"

namespace starling {

namespace {

constexpr std::size_t kMaxInUse = std::size_t{1} << 62;

/// Counts of one meta backend. Storages share them, so that one that outlives its backend still
/// finds them.
struct Counters {
  std::mutex mutex;
  MemoryStats stats;
};

class MetaStorage final : public Storage {
 public:
  MetaStorage(Backend& backend, std::size_t bytes, std::shared_ptr<Counters> counters)
      : Storage(backend, nullptr, bytes), counters_(std::move(counters)) {
    const std::lock_guard lock(counters_->mutex);
    MemoryStats& stats = counters_->stats;
    if (bytes > kMaxInUse - stats.in_use) {
      fail(ExitCode::kMemory, "tensor",
           "{} bytes beyond {} in use are more than any memory; choose smaller sizes", bytes,
           stats.in_use);
    }
    ++stats.allocations;
    stats.in_use += bytes;
    stats.peak_in_use = std::max(stats.peak_in_use, stats.in_use);
  }
  ~MetaStorage() override {
    const std::lock_guard lock(counters_->mutex);
    counters_->stats.in_use -= bytes();
  }

 private:
  std::shared_ptr<Counters> counters_;
};

/// Threads trace at the same time through the shared meta backend, so each has its own current
/// stream.
thread_local StreamKind current_stream = StreamKind::kCompute;

class MetaBackend final : public Backend {
 public:
  DeviceType device() const override { return DeviceType::kMeta; }
  std::string description() const override { return "meta (shapes only)"; }

  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    return std::make_shared<MetaStorage>(*this, bytes, counters_);
  }
  MemoryStats memory_stats() const override {
    const std::lock_guard lock(counters_->mutex);
    return counters_->stats;
  }
  void copy(const Tensor&, const Tensor&) override {}
  void copy_from_host(const void*, const Tensor&) override {}
  Event copy_to_host_later(const Tensor& from, void* to) override {
    copy_to_host(from, to);
    return {};
  }
  // Always an error: there is nothing to copy
  void copy_to_host(const Tensor& from, void*) override { (void)from.raw(); }
  void fill(const Tensor&, double) override {}

  void set_stream(StreamKind stream) override { current_stream = stream; }
  StreamKind stream() const override { return current_stream; }
  Event record() override { return {++events_}; }
  void wait(Event) override {}
  void synchronize(Event) override {}
  void synchronize() override {}

#define STARLING_NO_WORK(Arguments, name) \
  void issue(const Arguments&) override {}
  STARLING_OPERATIONS(STARLING_NO_WORK)
#undef STARLING_NO_WORK

 private:
  std::shared_ptr<Counters> counters_ = std::make_shared<Counters>();
  std::atomic<std::uint64_t> events_{0};
};

}  // namespace

Backend& meta_backend() {
  // Never destroyed: tensors in other static objects may refer to it until the very end.
  static Backend& backend = *new MetaBackend;
  return backend;
}

std::unique_ptr<Backend> make_meta_backend() { return std::make_unique<MetaBackend>(); }

}  // namespace starling
