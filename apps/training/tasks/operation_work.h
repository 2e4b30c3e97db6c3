#pragma once

#include <string>
#include <vector>

#include "core/forwarding_backend.h"

namespace starling {

/// The least that an operation moves through device memory, each input read once and each output
/// written once, and what it multiplies and adds. What a batch needs as a whole before it can go on
/// (batch norm's statistics) is read twice.
struct OperationWork {
  std::string name;  ///< as in core/operations
  double bytes = 0.0;
  double flops = 0.0;  ///< of convolutions and matrix products, two per multiply-add
  /// The device's, of an operation in another type than the others; 0: as floor_of() is told
  double flops_per_second = 0.0;
};

/// Notes each operation's work on shapes alone. No tensor is held, since a second handle would
/// change what the layers overwrite in place.
class CountingBackend final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::vector<OperationWork> work;

  void copy(const Tensor& from, const Tensor& to) override {
    work.push_back({"copy", bytes_of({from, to})});
  }
  void fill(const Tensor& x, double) override { work.push_back({"fill", bytes_of({x})}); }

 private:
  bool notes_accesses() const override { return true; }
  void before(std::string_view name, const Accesses& accesses) override {
    work.push_back({std::string(name), accesses.bytes, accesses.flops});
  }
};

}  // namespace starling
