#pragma once

#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "core/backend.h"
#include "core/error.h"
#include "core/operations/map.h"

namespace starling::test {

/// A backend in host memory with the little arithmetic (fp32 add, fill, copies) that the autograd
/// engine itself needs: any other operation is Backend's error. It counts live bytes.
class HostBackend final : public Backend {
 public:
  DeviceType device() const override { return DeviceType::kCpu; }
  std::string description() const override { return "test"; }
  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    ++stats_->allocations;
    stats_->in_use += bytes;
    return std::make_shared<Block>(*this, bytes, stats_);
  }
  MemoryStats memory_stats() const override { return *stats_; }
  void copy(const Tensor& from, const Tensor& to) override {
    std::memcpy(to.raw(), from.raw(), from.bytes());
  }
  void copy_from_host(const void* from, const Tensor& to) override {
    std::memcpy(to.raw(), from, to.bytes());
  }
  void copy_to_host(const Tensor& from, void* to) override {
    std::memcpy(to, from.raw(), from.bytes());
  }
  Event copy_to_host_later(const Tensor& from, void* to) override {
    copy_to_host(from, to);
    return {};
  }
  void fill(const Tensor& x, double value) override {
    for (float& element : x.span<float>()) element = static_cast<float>(value);
  }
  void set_stream(StreamKind stream) override { stream_ = stream; }
  StreamKind stream() const override { return stream_; }
  Event record() override { return {}; }
  void wait(Event) override {}
  void synchronize(Event) override {}
  void synchronize() override {}

  int additions = 0;

 private:
  /// Of two tensors' sum alone.
  void issue(const Map& args) override {
    ++additions;
    for (std::size_t i = 0; i < args.y.span<float>().size(); ++i)
      args.y.span<float>()[i] = args.in[0].span<float>()[i] + args.in[1].span<float>()[i];
  }

  class Block final : public Storage {
   public:
    Block(Backend& backend, std::size_t bytes, std::shared_ptr<MemoryStats> stats)
        : Storage(backend, new (std::align_val_t{64}) std::byte[bytes + 1], bytes),
          stats_(std::move(stats)) {}
    ~Block() override {
      stats_->in_use -= bytes();
      ::operator delete[](data(), std::align_val_t{64});
    }

   private:
    std::shared_ptr<MemoryStats> stats_;
  };

  std::shared_ptr<MemoryStats> stats_ = std::make_shared<MemoryStats>();
  StreamKind stream_ = StreamKind::kCompute;
};

}  // namespace starling::test
