#include "core/operations/sparse.h"

#include <algorithm>
#include <cmath>

#include "core/backend.h"
#include "core/error.h"
#include "core/operations/list.h"

namespace starling {

SparseLayout::SparseLayout(Backend& backend, std::int64_t of,
                           const std::vector<std::pair<std::int64_t, std::int64_t>>& parts,
                           std::int64_t block_size, double share, int bits)
    : elements(of), block(block_size), value_bits(bits) {
  require(block >= 32 && block <= 65536 && block % 32 == 0, "sparse",
          "blocks of {}; needed: a multiple of 32 from 32 to 65536", block);
  require(share > 0.0 && share <= 1.0, "sparse", "a share of {}; needed: above 0, to 1", share);
  require(bits == 2 || bits == 4 || bits == 8, "sparse", "values of {} bits; needed: 2, 4 or 8",
          bits);
  std::vector<std::int64_t> table;
  for (const auto& [first, size] : parts) {
    require(first >= 0 && size >= 0 && first + size <= elements, "sparse",
            "a part of {} from {} on, of {} elements", size, first, elements);
    for (std::int64_t at = 0; at < size; at += block) {
      const std::int64_t m = std::min(block, size - at),
                         k = std::clamp<std::int64_t>(
                             static_cast<std::int64_t>(std::ceil(share * static_cast<double>(m))),
                             1, m);
      table.insert(table.end(), {first + at, m, k, bytes, chosen});
      chosen += k;
      bytes += (k * (wide() ? 16 : 12) + 7) / 8 + (k * bits + 7) / 8;
    }
  }
  count = static_cast<std::int64_t>(table.size()) / kFields;
  bytes += count * 4;
  for (std::int64_t b = 0; b < count; ++b)
    table[static_cast<std::size_t>(b * kFields + 3)] += count * 4;
  blocks = Tensor(backend, Shape{std::max<std::int64_t>(count, 1), kFields}, DType::kInt64);
  if (count > 0) backend.copy_from_host(table.data(), blocks);
}

namespace {

void check_sparse(const char* operation, const Tensor& numbers, const Tensor& message,
                  const SparseLayout& layout) {
  require(numbers && (numbers.dtype() == DType::kFloat32 || numbers.dtype() == DType::kFloat64) &&
              numbers.elements() == layout.elements,
          operation, "{} numbers for a layout of {}; needed: as many, fp32 or fp64",
          numbers ? numbers.elements() : 0, layout.elements);
  require(message && message.dtype() == DType::kUInt8 && message.elements() == layout.bytes,
          operation, "a message of {} bytes; needed: {}", message ? message.elements() : 0,
          layout.bytes);
}

}  // namespace

void check(const SparseEncode& args) {
  check_sparse("sparse_encode", args.x, args.message, args.layout);
  for (const Tensor* other : {&args.minus, &args.residual}) {
    require(!*other || (other->dtype() == args.x.dtype() && other->elements() == args.x.elements()),
            "sparse_encode", "a {} of another size or type than the numbers",
            other == &args.minus ? "subtrahend" : "residual");
  }
}

void check(const SparseDecode& args) {
  require(!args.messages.empty(), "sparse_decode", "no messages; needed: 1 or more");
  require(args.weights.empty() || args.weights.size() == args.messages.size(), "sparse_decode",
          "{} weights of {} messages", args.weights.size(), args.messages.size());
  for (const float weight : args.weights)
    require(weight > 0.0f, "sparse_decode", "a weight of {}; needed: above 0", weight);
  for (const Tensor& message : args.messages)
    check_sparse("sparse_decode", args.out, message, args.layout);
}

}  // namespace starling
