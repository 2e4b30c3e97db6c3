#include "comm/averaging.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/error.h"
#include "core/operations/pointwise.h"
#include "core/operations/reduce.h"

namespace starling {
namespace {

constexpr std::int64_t kMeanPieceBytes = 4 << 20;
constexpr std::size_t kDepth = 4;  // pieces in flight

struct Piece {
  Ticket ticket = 0;
  Tensor sum, out;
};

}  // namespace

void mean_model(Transport& transport, const std::vector<Tensor>& in,
                const std::vector<Tensor>& out) {
  require(in.size() == out.size(), "averaging", "{} tensors into {}", in.size(), out.size());
  const double scale = 1.0 / transport.size();
  std::array<Piece, kDepth> ring;
  std::array<Tensor, kDepth> scratch;
  std::size_t started = 0, finished = 0;
  const auto finish_next = [&] {
    Piece& piece = ring[finished++ % kDepth];
    transport.wait(piece.ticket);
    piece.out.backend().weighted_sum(
        {.in = {piece.sum}, .weight = {scale}, .terms = 1, .out = piece.out});
  };
  for (std::size_t k = 0; k < in.size(); ++k) {
    require(in[k].elements() == out[k].elements() && in[k].dtype() == out[k].dtype(), "averaging",
            "tensor {} has another size or type than its mean", k);
    if (in[k].elements() == 0) continue;
    require(in[k].raw() != out[k].raw(), "averaging", "tensor {} would be averaged in place", k);
    Backend& backend = in[k].backend();
    if (transport.size() == 1) {
      backend.copy(in[k], out[k]);
      continue;
    }
    backend.synchronize();  // the transport reads what the device has written
    const auto step = kMeanPieceBytes / static_cast<std::int64_t>(size_of(in[k].dtype()));
    for (std::int64_t first = 0; first < in[k].elements(); first += step) {
      if (started - finished == kDepth) finish_next();
      const Shape shape{std::min(step, in[k].elements() - first)};
      Tensor& buffer = scratch[started % kDepth];
      if (!buffer || &buffer.backend() != &backend)
        buffer = Tensor(backend, Shape{kMeanPieceBytes}, DType::kUInt8);
      Piece& piece = ring[started++ % kDepth];
      piece.sum = Tensor(buffer.storage(), 0, shape, in[k].dtype());
      piece.out = out[k].slice(first, shape);
      piece.ticket = transport.start_sum(in[k].slice(first, shape), piece.sum,
                                         {-1, static_cast<int>(k), first / step});
    }
  }
  while (finished < started) finish_next();
}

std::vector<Tensor> mean_model(Transport& transport, const std::vector<Tensor>& in) {
  std::vector<Tensor> out;
  out.reserve(in.size());
  for (const Tensor& tensor : in)
    out.emplace_back(tensor.backend(), tensor.shape(), tensor.dtype());
  mean_model(transport, in, out);
  return out;
}

ConsensusDistance consensus_distance(Transport& transport, Backend& backend,
                                     const std::vector<Bucket>& buckets,
                                     const std::vector<Tensor>& mean, Transport* all) {
  require(buckets.size() == mean.size(), "averaging", "{} means for {} buckets", mean.size(),
          buckets.size());
  ConsensusDistance result;
  if (buckets.empty()) return result;
  Tensor totals(backend, Shape{static_cast<std::int64_t>(buckets.size())}, DType::kFloat64);
  backend.fill(totals, 0.0);
  for (std::size_t b = 0; b < buckets.size(); ++b) {
    const auto add = [&](const Tensor& own, const Tensor& of_mean) {
      backend.reduce(Reduce::squared_distance(own, of_mean, totals, static_cast<std::int64_t>(b)));
    };
    if (buckets[b].own) {  // whose padding is 0 in all
      add(buckets[b].own_part(buckets[b].parameters), buckets[b].own_part(mean[b]));
      continue;
    }
    for (const BucketSlot& slot : buckets[b].layout->slots) {
      const Shape shape{slot.elements};
      add(buckets[b].parameters.slice(slot.offset, shape), mean[b].slice(slot.offset, shape));
    }
  }
  std::vector<double> squares(buckets.size());
  backend.copy_to_host(totals, squares.data());
  (all ? *all : transport).world().sum(squares.data(), squares.size());
  double total = 0.0;
  for (const double square : squares) {
    result.per_bucket.push_back(std::sqrt(square / transport.size()));
    total += square;
  }
  result.total = std::sqrt(total / transport.size());
  return result;
}

}  // namespace starling
