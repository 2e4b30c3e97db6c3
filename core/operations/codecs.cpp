#include "core/operations/codecs.h"

#include "core/error.h"
#include "core/operations/list.h"

namespace starling {

std::int64_t message_bytes(Code code, DType dtype, std::int64_t elements, std::int64_t block) {
  const auto size = static_cast<std::int64_t>(size_of(dtype));
  const std::int64_t blocks = elements == 0 ? 0 : block == 0 ? 1 : (elements + block - 1) / block;
  switch (code) {
    case Code::kNone: return elements * size;
    case Code::kBf16: return elements * 2;
    case Code::kInt8: return elements + blocks * 4;
    case Code::kMinMax8: return elements + blocks * 8;
    case Code::kInt4: return elements / 2 + blocks * 4;
  }
  return 0;
}

void check_message(const char* operation, const Tensor& message, DType dtype, std::int64_t elements,
                   Code code, std::int64_t block) {
  require(dtype == DType::kFloat32 || dtype == DType::kFloat64, operation,
          "numbers must be fp32 or fp64");
  const int multiple = code == Code::kInt4 ? 8 : 4;
  require(elements % multiple == 0 && block >= 0 && block % 32 == 0, operation,
          "{} elements in blocks of {}; elements must be a multiple of {}, and blocks of 32",
          elements, block, multiple);
  const std::int64_t bytes = message_bytes(code, dtype, elements, block);
  require(message && message.dtype() == DType::kUInt8 && message.elements() == bytes, operation,
          "a message of {} bytes for {} elements; needed: {}", message ? message.elements() : 0,
          elements, bytes);
}

void check(const Encode& args) {
  require(static_cast<bool>(args.x), "encode", "numbers are missing");
  check_message("encode", args.message, args.x.dtype(), args.x.elements(), args.code, args.block);
  for (const Tensor* other : {&args.minus, &args.residual}) {
    require(!*other || (other->dtype() == args.x.dtype() && other->elements() == args.x.elements()),
            "encode", "a {} of {} {} for {} {}", other == &args.minus ? "subtrahend" : "residual",
            *other ? other->elements() : 0, *other ? name_of(other->dtype()) : "",
            args.x.elements(), name_of(args.x.dtype()));
  }
}

void check(const Decode& args) {
  require(static_cast<bool>(args.out), "decode", "numbers are missing");
  require(args.terms >= 1 && args.terms <= 8, "decode", "{} messages; at most 8", args.terms);
  for (int k = 0; k < args.terms; ++k) {
    check_message("decode", args.messages[static_cast<std::size_t>(k)], args.out.dtype(),
                  args.out.elements(), args.code, args.block);
  }
}

}  // namespace starling
