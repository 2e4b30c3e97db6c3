#include "core/backend.h"

#include "core/error.h"

namespace starling {

std::shared_ptr<std::byte> Backend::allocate_host(std::size_t bytes) { return {new std::byte[bytes], std::default_delete<std::byte[]>()}; }

void check_cast(const Cast& args) {
  require(args.x && args.y && args.x.elements() == args.y.elements(), "cast", "x and y must have as many elements");
  if (!args.blocks) return;
  require(is_low_precision(args.x.dtype()) && args.y.dtype() == DType::kFloat32, "cast", "blocks of {} as {}; only low precision as fp32",
          name_of(args.x.dtype()), name_of(args.y.dtype()));
  require(args.blocks.dtype() == DType::kUInt8 && args.blocks.elements() * kCastBlock == args.x.elements(), "cast",
          "{} entries for {} elements; one for each {} is needed", args.blocks.elements(), args.x.elements(), kCastBlock);
}

}  // namespace starling
