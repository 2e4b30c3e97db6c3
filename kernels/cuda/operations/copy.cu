#include "core/operations/copying.h"
#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/pointwise.h"
#include "kernels/cuda/device/row_grid.h"

// Copies by strides. Matrices that are transposed go through shared memory; of everything else a
// thread takes a pack of y where x has one too, else a number.
namespace starling::cuda {
namespace {

/// StridedCopy in packs along the last dimension.
struct CopyPlan {
  StridedCopy::Dimension of[Shape::kMaxRank];
  int rank;
  Index first, packs;
  bool keep;            ///< other places stay
  std::uint64_t other;  ///< what they become
};

template <class T, int kCount>
__global__ void strided_copy(CopyPlan p, const T* x, T* y) {
  const Index threads = Index{gridDim.x} * blockDim.x;
  for (Index i = Index{blockIdx.x} * blockDim.x + threadIdx.x; i < p.packs; i += threads) {
    Index from = p.first, rest = i;
    bool inside = true;
    for (int d = p.rank - 1; d >= 0; --d) {
      const StridedCopy::Dimension& dimension = p.of[d];
      const Quotient at = divide(rest, dimension.size);
      rest = at.whole;
      const Index place = at.rest - dimension.begin;
      inside = inside && place >= 0;
      // The same for all threads, which mostly save a quotient
      const Quotient k =
          dimension.step == 1 ? Quotient{place, 0} : divide(place < 0 ? 0 : place, dimension.step);
      inside = inside && k.rest == 0 && k.whole < dimension.count;
      from += k.whole * dimension.stride;
    }
    if (!inside && p.keep) continue;
    T values[kCount];
    if (inside) {
      load<kCount>(x + from * kCount, values);
    } else {
#pragma unroll
      for (int j = 0; j < kCount; ++j) values[j] = static_cast<T>(p.other);
    }
    store<kCount>(values, y + i * kCount);
  }
}

constexpr int kCopyTile = 32, kCopyTileRows = 8;

/// y[image][c][r] = x[image][r][c], through tiles in shared memory, so that both sides' threads
/// touch neighbouring addresses.
template <class T>
__global__ void transpose(const T* x, T* y, Index images, Index rows, Index columns) {
  // padding: the elements of a column are in different banks
  __shared__ T tile[kCopyTile][kCopyTile + 1];
  const Index column_tiles = (columns + kCopyTile - 1) / kCopyTile,
              tiles = (rows + kCopyTile - 1) / kCopyTile * column_tiles;
  const int tx = static_cast<int>(threadIdx.x), ty = static_cast<int>(threadIdx.y);
  for (Index work = blockIdx.x; work < images * tiles; work += gridDim.x) {
    const Quotient image = divide(work, tiles), place = divide(image.rest, column_tiles);
    const Index row = place.whole * kCopyTile, column = place.rest * kCopyTile,
                offset = image.whole * rows * columns;
    for (int i = ty; i < kCopyTile; i += kCopyTileRows) {
      if (row + i < rows && column + tx < columns)
        tile[i][tx] = x[offset + (row + i) * columns + column + tx];
    }
    __syncthreads();
    for (int i = ty; i < kCopyTile; i += kCopyTileRows) {
      if (column + i < columns && row + tx < rows)
        y[offset + (column + i) * rows + row + tx] = tile[tx][i];
    }
    __syncthreads();
  }
}

/// Matrices one after another, whose transposes are y.
struct Transposes {
  Index images = 0, rows = 0, columns = 0;  ///< of x
};
Transposes transposes_of(const StridedCopy& copy) {
  const auto& d = copy.dimensions;
  const std::size_t last = static_cast<std::size_t>(copy.rank) - 1;
  if (copy.rank < 2 || copy.rank > 3 || copy.first != 0) return {};
  for (std::size_t i = 0; i <= last; ++i) {
    if (!d[i].is_whole()) return {};
  }
  const Index rows = d[last].size, columns = d[last - 1].size;
  const bool turned = d[last - 1].stride == 1 && d[last].stride == columns &&
                      (copy.rank == 2 || d[0].stride == rows * columns);
  return turned ? Transposes{copy.rank == 2 ? 1 : d[0].size, rows, columns} : Transposes{};
}

template <class T>
void copy_by_strides(CudaBackend& backend, const StridedCopy& copy) {
  const T* x = reinterpret_cast<const T*>(copy.x.raw());
  T* y = reinterpret_cast<T*>(copy.y.raw());
  if (const Transposes t = transposes_of(copy); t.images > 0) {
    const Index tiles = t.images * ((t.rows + kCopyTile - 1) / kCopyTile) *
                        ((t.columns + kCopyTile - 1) / kCopyTile);
    return launch(transpose<T>,
                  {{blocks_for(tiles, 1)}, {kCopyTile, kCopyTileRows}, backend.handle()}, x, y,
                  t.images, t.rows, t.columns);
  }
  CopyPlan plan{.rank = copy.rank,
                .first = copy.first,
                .packs = copy.y.elements(),
                .keep = !copy.others,
                .other = copy.other_bits()};
  for (int d = 0; d < copy.rank; ++d) plan.of[d] = copy.dimensions[static_cast<std::size_t>(d)];
  StridedCopy::Dimension& line = plan.of[copy.rank - 1];
  // A pack's size, a power of two, divides all of these where it divides this.
  Index together = line.size | line.begin | line.count | plan.first;
  for (int d = 0; d + 1 < copy.rank; ++d) together |= plan.of[d].stride;
  const auto run = [&]<int kCount>() {
    line.size /= kCount, line.begin /= kCount, line.count /= kCount;
    plan.first /= kCount, plan.packs /= kCount;
    for (int d = 0; d + 1 < copy.rank; ++d) plan.of[d].stride /= kCount;
    launch(strided_copy<T, kCount>,
           {{blocks_for(plan.packs, kThreads)}, {kThreads}, backend.handle()}, plan, x, y);
  };
  if (line.stride == 1 && line.step == 1) return with_packs<T>(together, run, x, y);
  run.template operator()<1>();
}

}  // namespace

void CudaBackend::issue(const StridedCopy& args) {
  const StridedCopy copy = args.joined();
  if (copy.y.elements() == 0) return;
  switch (size_of(copy.x.dtype())) {
    case 1: return copy_by_strides<std::uint8_t>(*this, copy);
    case 2: return copy_by_strides<std::uint16_t>(*this, copy);
    case 4: return copy_by_strides<std::uint32_t>(*this, copy);
    default: return copy_by_strides<std::uint64_t>(*this, copy);
  }
}

}  // namespace starling::cuda
