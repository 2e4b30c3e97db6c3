#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/forwarding_backend.h"
#include "core/operations/accesses.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/optimizer.h"
#include "tests/operations/operation_table.h"

// core/operations says what operations read and write; here they are watched doing it. (That the
// operation table has every operation is checked in operations_test.cpp.)
namespace starling::tests {
namespace {

/// Runs every operation twice: the second time all memory that it is not said to read holds other
/// bytes. Then what it is said to write must come out the same, and the rest must be as it was.
class Watching final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::set<std::string> names;
  std::string complaints;

  std::shared_ptr<Storage> allocate(std::size_t bytes) override {
    auto block = std::make_shared<Block>(*this, inner().allocate(bytes), bytes);
    blocks_.push_back(block.get());
    return block;
  }

 private:
  class Block final : public Storage {
   public:
    Block(Watching& watching, std::shared_ptr<Storage> memory, std::size_t bytes)
        : Storage(watching, memory->data(), bytes),
          watching_(watching),
          memory_(std::move(memory)) {}
    ~Block() override { std::erase(watching_.blocks_, this); }

   private:
    Watching& watching_;
    std::shared_ptr<Storage> memory_;
  };
  using Bytes = std::vector<std::byte>;

  bool notes_accesses() const override { return true; }
  void before(std::string_view name, const Accesses& accesses) override {
    name_ = name;
    accesses_ = accesses;
  }

  std::vector<Bytes> memory() const {
    std::vector<Bytes> result;
    for (const Block* block : blocks_)
      result.emplace_back(block->data(), block->data() + block->bytes());
    return result;
  }
  void restore(const std::vector<Bytes>& bytes) {
    for (std::size_t i = 0; i < blocks_.size(); ++i)
      std::copy(bytes[i].begin(), bytes[i].end(), blocks_[i]->data());
  }
  /// The same as memory(), with `inside` where a tensor of the list lies, and `outside` elsewhere.
  std::vector<Bytes> map_of(const std::vector<Tensor>& list) const {
    std::vector<Bytes> result;
    for (const Block* block : blocks_) {
      Bytes map(block->bytes());
      for (const Tensor& x : list) {
        if (x.raw() < block->data() || x.raw() >= block->data() + block->bytes()) continue;
        std::fill_n(map.begin() + (x.raw() - block->data()), x.bytes(), std::byte{1});
      }
      result.push_back(std::move(map));
    }
    return result;
  }
  void complain(const std::string& what) {
    if (complaints.find(name_ + ": " + what) == std::string::npos)
      complaints += name_ + ": " + what + "\n";
  }

  void around(std::string_view name, const std::function<void()>& operation) override {
    names.emplace(name);
    if (name_ != name) return complain("no list of accesses came before it");
    const std::vector<Bytes> first = memory(), reads = map_of(accesses_.reads),
                             writes = map_of(accesses_.writes);
    operation();
    const std::vector<Bytes> result = memory();
    std::vector<Bytes> poisoned = first;
    for (std::size_t i = 0; i < poisoned.size(); ++i) {
      for (std::size_t j = 0; j < poisoned[i].size(); ++j) {
        if (reads[i][j] == std::byte{0}) poisoned[i][j] = std::byte{0x3f};
      }
    }
    restore(poisoned);
    operation();
    const std::vector<Bytes> again = memory();
    for (std::size_t i = 0; i < again.size(); ++i) {
      for (std::size_t j = 0; j < again[i].size(); ++j) {
        if (writes[i][j] != std::byte{0}) {
          if (again[i][j] != result[i][j])
            complain("it reads more than it is said to, or does not write all that it is said to");
        } else if (result[i][j] != first[i][j]) {
          complain("it writes more than it is said to");
        }
      }
    }
    restore(result);
    name_.clear();
    accesses_ = {};
  }

  std::vector<Block*> blocks_;
  std::string name_;
  Accesses accesses_;
};

}  // namespace

TEST_CASE("kernels/accesses: every operation reads and writes what it is said to, and no more") {
  CpuBackend cpu(1);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
    CAPTURE(name_of(dtype));
    Watching watching(cpu);
    for (const Operation& op : operation_table()) {
      CAPTURE(op.name);
      run(op, watching, dtype, random_inputs(op, dtype), random_seed(op, dtype));
      CHECK(watching.complaints == "");
      watching.complaints.clear();
    }
    CHECK(watching.names.contains("update"));
    CHECK(watching.names.size() > 30);
  }
}

}  // namespace starling::tests
