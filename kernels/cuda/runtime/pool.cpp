#include "kernels/cuda/runtime/pool.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <utility>

#include "core/error.h"
#include "kernels/cuda/runtime/runtime.h"

namespace starling::cuda {
namespace {

std::string in_words(std::size_t bytes) {
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024.0 ? fmt::format("{:.1f} MiB", mib) : fmt::format("{:.2f} GiB", mib / 1024.0);
}

}  // namespace

Pool::Pool(int device, std::string name, std::function<void()> wait_for_all)
    : device_(device), name_(std::move(name)), wait_for_all_(std::move(wait_for_all)) {}

Pool::~Pool() {
  graphs_ = 0;
  end_capture(false);
  release_cached();
  for (std::byte* slab : slabs_) device_free(slab);
}

void Pool::close() {
  const std::lock_guard lock(mutex_);
  wait_for_all_ = nullptr;
}

std::size_t Pool::size_class(std::size_t bytes) {
  if (bytes <= 512) return 512;
  // Eight size classes per power of two, at least 512 bytes apart.
  const std::size_t step = std::max<std::size_t>(512, std::bit_floor(bytes - 1) / 8);
  return (bytes + step - 1) / step * step;
}

Pool::Block Pool::take(std::size_t bytes, StreamKind stream) {
  if (bytes > (std::size_t{1} << 62))
    fail(ExitCode::kMemory, "memory", "{} bytes were asked for; no device has them", bytes);
  Block block{nullptr, size_class(bytes), stream};
  const std::lock_guard lock(mutex_);
  block.graphs = capturing_ == std::this_thread::get_id();
  block.data = block.graphs ? for_graph(block.size, stream) : from_cache(block.size, stream);
  if (!block.data) {
    block.data = from_driver(block.size);
    if (block.graphs) graph_bytes_ += block.size;
  }
  ++stats_.allocations;
  stats_.in_use += block.size;
  stats_.peak_in_use = std::max(stats_.peak_in_use, stats_.in_use);
  return block;
}

/// A free block of this size class; large blocks may be up to a quarter larger.
std::byte* Pool::from_list(FreeBlocks& free, std::size_t& size) {
  const std::size_t most = size > kLargestSmall ? size + size / 4 : size;
  for (auto it = free.lower_bound(size); it != free.end() && it->first <= most; ++it) {
    if (it->second.empty()) continue;
    std::byte* data = it->second.back();
    it->second.pop_back();
    size = it->first;
    return data;
  }
  return nullptr;
}

std::byte* Pool::from_cache(std::size_t& size, StreamKind stream) {
  return from_list(free_[static_cast<std::size_t>(stream)], size);
}

/// Prefers blocks of graphs; then takes free blocks of eager work on any stream, all of which
/// precedes the graph.
std::byte* Pool::for_graph(std::size_t& size, StreamKind stream) {
  std::byte* data = from_list(captured_free_[static_cast<std::size_t>(stream)], size);
  if (!data) data = from_list(graph_free_, size);
  if (data) return data;
  for (std::size_t s = 0; s < free_.size() && !data; ++s) data = from_list(free_[s], size);
  if (data) graph_bytes_ += size;
  return data;
}

void Pool::begin_capture() {
  const std::lock_guard lock(mutex_);
  require(capturing_ == std::thread::id(), "cuda", "a capture within a capture");
  capturing_ = std::this_thread::get_id();
}

void Pool::end_capture(bool kept) noexcept {
  const std::lock_guard lock(mutex_);
  capturing_ = {};
  if (kept) ++graphs_;
  try {
    for (FreeBlocks& free : captured_free_) {
      for (auto& [size, blocks] : free) {
        auto& all = graph_free_[size];
        all.insert(all.end(), blocks.begin(), blocks.end());
      }
      free.clear();
    }
    if (graphs_ == 0) dissolve_graphs();
  } catch (...) {  // out of host memory: these blocks stay unused until the end
  }
}

void Pool::release_graph() noexcept {
  const std::lock_guard lock(mutex_);
  if (--graphs_ > 0 || capturing_ != std::thread::id()) return;
  try {
    dissolve_graphs();
  } catch (...) {
  }
}

/// Returns the graphs' blocks to eager work: graphs ran in the order of kCompute.
void Pool::dissolve_graphs() {
  for (auto& [size, blocks] : graph_free_) {
    auto& all = free_[static_cast<std::size_t>(StreamKind::kCompute)][size];
    all.insert(all.end(), blocks.begin(), blocks.end());
    graph_bytes_ -= size * blocks.size();
  }
  graph_free_.clear();
}

std::size_t Pool::graph_bytes() const {
  const std::lock_guard lock(mutex_);
  return graph_bytes_;
}

std::byte* Pool::from_driver(std::size_t size) {
  if (size > kLargestSmall) return driver_allocate(size);
  if (left_ < size) {
    // Splits the rest of the old slab into free blocks.
    while (left_ >= 512) {
      const std::size_t piece = std::min(kLargestSmall, std::bit_floor(left_));
      free_[0][piece].push_back(cut_);
      cut_ += piece;
      left_ -= piece;
    }
    std::byte* slab = driver_allocate(kSlab);
    slabs_.push_back(slab);
    cut_ = slab;
    left_ = kSlab;
  }
  std::byte* data = cut_;
  cut_ += size;
  left_ -= size;
  return data;
}

std::byte* Pool::driver_allocate(std::size_t size) {
  use_device(device_);  // may be a new thread
  const bool captures = capturing_ == std::this_thread::get_id();
  std::optional<RelaxedCapture> relaxed;
  if (captures) relaxed.emplace();
  void* data = device_allocate(size);
  // Cached memory cannot be freed while any thread captures, since that waits for all streams,
  // which would invalidate the capture.
  if (!data && capturing_ == std::thread::id() && release_cached() > 0)
    data = device_allocate(size);
  if (!data) out_of_memory(size);
  ++stats_.system_allocations;
  stats_.reserved += size;
  return static_cast<std::byte*>(data);
}

/// Frees large unused blocks; returns their bytes.
std::size_t Pool::release_cached() {
  std::size_t released = 0;
  for (auto& free : free_) {
    for (auto it = free.upper_bound(kLargestSmall); it != free.end(); it = free.erase(it)) {
      if (!it->second.empty() && released == 0 && wait_for_all_) wait_for_all_();
      for (std::byte* data : it->second) {
        device_free(data);
        released += it->first;
      }
    }
  }
  stats_.reserved -= released;
  return released;
}

void Pool::out_of_memory(std::size_t size) const {
  const std::size_t total = device_info(device_).total_memory;
  fail(ExitCode::kMemory, "memory",
       "out of memory on {}: {} needed, {} free of {}, {} in use by tensors; a smaller batch_size "
       "needs less",
       name_, in_words(size), in_words(free_memory()), in_words(total), in_words(stats_.in_use));
}

void Pool::give_back(const Block& block) noexcept {
  const std::lock_guard lock(mutex_);
  stats_.in_use -= block.size;
  try {
    const bool captures = capturing_ != std::thread::id();
    // Captured work may use the block.
    if (!block.graphs && capturing_ == std::this_thread::get_id()) graph_bytes_ += block.size;
    if (captures && (block.graphs || capturing_ == std::this_thread::get_id())) {
      captured_free_[static_cast<std::size_t>(block.stream)][block.size].push_back(block.data);
    } else if (!block.graphs) {
      free_[static_cast<std::size_t>(block.stream)][block.size].push_back(block.data);
    } else if (graphs_ > 0) {
      graph_free_[block.size].push_back(block.data);
    } else {
      free_[static_cast<std::size_t>(StreamKind::kCompute)][block.size].push_back(block.data);
      graph_bytes_ -= block.size;
    }
  } catch (...) {  // out of host memory: the block stays unused until the end
  }
}

MemoryStats Pool::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace starling::cuda
