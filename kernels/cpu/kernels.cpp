#include "kernels/cpu/kernels.h"

namespace starling::cpu {
namespace {

/// Loads what every type has.
template <class T>
void load_common(Isa isa, Kernels<T>& table) {
  using Adder = void (*)(Kernels<T>&);
  select_isa<Adder>(isa, scalar::add_norm, avx2::add_norm, avx512::add_norm)(table);
  select_isa<Adder>(isa, scalar::add_reduce, avx2::add_reduce, avx512::add_reduce)(table);
  select_isa<Adder>(isa, scalar::add_copy, avx2::add_copy, avx512::add_copy)(table);
  select_isa<Adder>(isa, scalar::add_elementwise, avx2::add_elementwise,
                    avx512::add_elementwise)(table);
  select_isa<Adder>(isa, scalar::add_softmax, avx2::add_softmax, avx512::add_softmax)(table);
  select_isa<Adder>(isa, scalar::add_attention, avx2::add_attention, avx512::add_attention)(table);
}

}  // namespace

void load(Isa isa, Kernels<float>& table) {
  using Adder = void (*)(Kernels<float>&);
  load_common(isa, table);
  select_isa<Adder>(isa, scalar::add_pool, avx2::add_pool, avx512::add_pool)(table);
  select_isa<Adder>(isa, scalar::add_codec, avx2::add_codec, avx512::add_codec)(table);
  select_isa<Adder>(isa, scalar::add_depthwise, avx2::add_depthwise, avx512::add_depthwise)(table);
  select_isa<Adder>(isa, scalar::add_winograd, avx2::add_winograd, avx512::add_winograd)(table);
}

void load(Isa isa, Kernels<double>& table) {
  using Adder = void (*)(Kernels<double>&);
  load_common(isa, table);
  select_isa<Adder>(isa, scalar::add_pool, avx2::add_pool, avx512::add_pool)(table);
  select_isa<Adder>(isa, scalar::add_codec, avx2::add_codec, avx512::add_codec)(table);
  select_isa<Adder>(isa, scalar::add_depthwise, avx2::add_depthwise, avx512::add_depthwise)(table);
  select_isa<Adder>(isa, scalar::add_plain, avx2::add_plain, avx512::add_plain)(table);
}

void load(Isa isa, Kernels<BFloat16>& table) { load_common(isa, table); }
void load(Isa isa, Kernels<Float16>& table) { load_common(isa, table); }

}  // namespace starling::cpu
