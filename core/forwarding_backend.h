#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "core/backend.h"
#include "core/operations/all.h"

namespace starling {

/// Hands every call on to another backend. What looks at calls on their way (a profile, a record of
/// shapes) derives from it and overrides around(); what looks at the memory that they touch,
/// before() and notes_accesses().
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend& inner) : inner_(inner) {}

  DeviceType device() const override { return inner_.device(); }
  std::string description() const override { return inner_.description(); }
  std::shared_ptr<Storage> allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  MemoryStats memory_stats() const override { return inner_.memory_stats(); }
  void copy(const Tensor& from, const Tensor& to) override { inner_.copy(from, to); }
  void copy_from_host(const void* from, const Tensor& to) override {
    inner_.copy_from_host(from, to);
  }
  void copy_to_host(const Tensor& from, void* to) override { inner_.copy_to_host(from, to); }
  Event copy_to_host_later(const Tensor& from, void* to) override {
    return inner_.copy_to_host_later(from, to);
  }
  void fill(const Tensor& x, double value) override { inner_.fill(x, value); }
  void set_stream(StreamKind stream) override { inner_.set_stream(stream); }
  StreamKind stream() const override { return inner_.stream(); }
  Event record() override { return inner_.record(); }
  void wait(Event event) override { inner_.wait(event); }
  bool done(Event event) override { return inner_.done(event); }
  void* native_stream() const override { return inner_.native_stream(); }
  std::shared_ptr<std::byte> allocate_host(std::size_t bytes) override {
    return inner_.allocate_host(bytes);
  }
  void copy_to_pinned(const Tensor& from, std::byte* to) override {
    inner_.copy_to_pinned(from, to);
  }
  void copy_from_pinned(const std::byte* from, const Tensor& to) override {
    inner_.copy_from_pinned(from, to);
  }
  void synchronize(Event event) override { inner_.synchronize(event); }
  void synchronize() override { inner_.synchronize(); }
  bool begin_capture(const StepValues& values) override { return inner_.begin_capture(values); }
  std::unique_ptr<DeviceGraph> end_capture() override { return inner_.end_capture(); }
  void abandon_capture() noexcept override { inner_.abandon_capture(); }
  bool capturing() const override { return inner_.capturing(); }
  std::unique_ptr<DeviceClock> device_clock() override { return inner_.device_clock(); }
  PeerMemory* peer_memory() override { return inner_.peer_memory(); }

 protected:
  /// Called in place of every operation; must call `operation` once.
  virtual void around(std::string_view name, const std::function<void()>& operation) {
    (void)name;
    operation();
  }
  /// Called before every operation with what it reads and writes, where notes_accesses().
  virtual void before(std::string_view name, const Accesses& accesses) {
    (void)name, (void)accesses;
  }
  virtual bool notes_accesses() const { return false; }
  Backend& inner() { return inner_; }

#define STARLING_FORWARD_OPERATION(Arguments, name) \
  void issue(const Arguments& args) override { call(#name, &Backend::name, args); }
  STARLING_OPERATIONS(STARLING_FORWARD_OPERATION)
#undef STARLING_FORWARD_OPERATION

 private:
  template <class Args>
  void call(std::string_view name, void (Backend::*operation)(const Args&), const Args& args) {
    if (notes_accesses()) before(name, args.accesses());
    around(name, [&] { (inner_.*operation)(args); });
  }
  Backend& inner_;
};

}  // namespace starling
