#include "kernels/cpu/dnnl_operations.h"

#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "kernels/cpu/workspace.h"

namespace starling::cpu {
namespace {

using dnnl::memory;
using Dims = memory::dims;
using Scratch = Workspace<std::byte>;

enum Operation : Index { kForward, kBackwardData, kBackwardWeights, kMatmul };
/// An operation and its shape, whole.
using Key = std::array<Index, 19>;
using Type = memory::data_type;

template <class T>
constexpr Type kType = std::is_same_v<T, BFloat16> ? Type::bf16 : Type::f32;

Key key_of(Operation operation, const Geometry& g, Type type, bool flag) {
  return {operation,    static_cast<Index>(type),
          flag,         g.images,
          g.height,     g.width,
          g.channels,   g.out_height,
          g.out_width,  g.out_channels,
          g.kernel_h,   g.kernel_w,
          g.stride_h,   g.stride_w,
          g.pad_h,      g.pad_w,
          g.dilation_h, g.dilation_w,
          g.groups};
}

std::string text(const Geometry& g) {
  return fmt::format(
      "{}×{}×{}×{} with {} filters of {}×{}, stride {}, padding {}, dilation {}, {} groups",
      g.images, g.height, g.width, g.channels, g.out_channels, g.kernel_h, g.kernel_w, g.stride_h,
      g.pad_h, g.dilation_h, g.groups);
}

/// One tensor of a primitive: its format and a handle to set the address of.
struct Argument {
  int name = 0;
  memory handle;
};

/// A primitive with its arguments, ready to run on any addresses.
struct Plan {
  dnnl::primitive primitive;
  std::array<Argument, 4> arguments;  ///< src, weights, bias, dst; unused ones have no handle
  memory scratchpad;
  std::size_t scratchpad_bytes = 0;
  // Weights between the plain format and the primitive's own.
  bool reorders = false;
  memory plain_weights;
  std::size_t weights_bytes = 0;
  dnnl::reorder reorder;
};

dnnl::primitive_attr with_user_scratchpad(dnnl::primitive_attr attr = {}) {
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

memory::desc plain_activation(Index n, Index h, Index w, Index c, Type type) {
  return {Dims{n, c, h, w}, type, Dims{h * w * c, 1, w * c, c}};
}

/// O×kH×kW×I in oneDNN's logical order, with a group dimension in front where there are groups.
memory::desc plain_weights(const Geometry& g, Type type) {
  const Index in = g.channels / g.groups, out = g.out_channels / g.groups, row = g.kernel_w * in,
              filter = g.kernel_h * row;
  if (g.groups == 1) return {Dims{out, in, g.kernel_h, g.kernel_w}, type, Dims{filter, 1, row, in}};
  return {Dims{g.groups, out, in, g.kernel_h, g.kernel_w}, type,
          Dims{out * filter, filter, 1, row, in}};
}
memory::desc any_weights(const Geometry& g, Type type) {
  const Index in = g.channels / g.groups, out = g.out_channels / g.groups;
  if (g.groups == 1) return {Dims{out, in, g.kernel_h, g.kernel_w}, type, memory::format_tag::any};
  return {Dims{g.groups, out, in, g.kernel_h, g.kernel_w}, type, memory::format_tag::any};
}

/// The description of a primitive P, from what oneDNN 3.x takes between engine and attributes; 2.x
/// makes it in two steps. `hint`: the forward primitive's, of a gradient.
template <class P, class... Parts>
typename P::primitive_desc describe(const dnnl::engine& engine, const dnnl::primitive_attr& attr,
                                    const Parts&... parts) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, parts..., attr};
#else
  return {{parts...}, attr, engine};
#endif
}
template <class P, class... Parts>
typename P::primitive_desc describe_gradient(const dnnl::engine& engine,
                                             const dnnl::primitive_attr& attr,
                                             const dnnl::convolution_forward::primitive_desc& hint,
                                             const Parts&... parts) {
#if DNNL_VERSION_MAJOR >= 3
  return {engine, parts..., hint, attr};
#else
  return {{parts...}, attr, engine, hint};
#endif
}

/// Lets a reorder or a product add to its destination.
dnnl::primitive_attr accumulating() {
  dnnl::primitive_attr attr;
  dnnl::post_ops ops;
  ops.append_sum(1.0f);
  attr.set_post_ops(ops);
  return attr;
}

}  // namespace

struct DnnlOperations::State {
  explicit State(CachingAllocator& a)
      : allocator(a), engine(dnnl::engine::kind::cpu, 0), stream(engine) {}

  CachingAllocator& allocator;
  dnnl::engine engine;
  dnnl::stream stream;
  std::map<Key, Plan> plans;

  memory handle(const memory::desc& desc) const { return memory(desc, engine, nullptr); }

  template <class Descriptor>
  void set_scratchpad(Plan& plan, const Descriptor& descriptor) const {
    plan.scratchpad_bytes = descriptor.scratchpad_desc().get_size();
    if (plan.scratchpad_bytes > 0) plan.scratchpad = handle(descriptor.scratchpad_desc());
  }

  Plan make_convolution(Operation operation, const Geometry& g, Type type, bool flag) const {
    Plan plan;
    // Gradients of weights are always fp32; the forward primitive needed as a hint has one type.
    const Type of_weights = operation == kBackwardWeights ? Type::f32 : type;
    const memory::desc plain = plain_weights(g, of_weights);
    memory::desc own;
    constexpr auto kDirect = dnnl::algorithm::convolution_direct;
    const memory::desc x = plain_activation(g.images, g.height, g.width, g.channels, type),
                       y = plain_activation(g.images, g.out_height, g.out_width, g.out_channels,
                                            type),
                       bias = operation == kForward && flag
                                  ? memory::desc(Dims{g.out_channels}, Type::f32, Dims{1})
                                  : memory::desc(),
                       weights = any_weights(g, of_weights);
    const Dims strides{g.stride_h, g.stride_w}, dilates{g.dilation_h - 1, g.dilation_w - 1},
        padding{g.pad_h, g.pad_w};
    const dnnl::primitive_attr attributes = with_user_scratchpad();
    const auto forward = describe<dnnl::convolution_forward>(
        engine, attributes, dnnl::prop_kind::forward_training, kDirect, x, any_weights(g, type),
        bias, y, strides, dilates, padding, padding);
    if (operation == kForward) {
      own = forward.weights_desc();
      plan.primitive = dnnl::convolution_forward(forward);
      plan.arguments = {Argument{DNNL_ARG_SRC, handle(forward.src_desc())},
                        Argument{DNNL_ARG_WEIGHTS, handle(own)},
                        Argument{DNNL_ARG_BIAS, flag ? handle(bias) : memory()},
                        Argument{DNNL_ARG_DST, handle(forward.dst_desc())}};
      set_scratchpad(plan, forward);
    } else if (operation == kBackwardData) {
      const auto backward = describe_gradient<dnnl::convolution_backward_data>(
          engine, attributes, forward, kDirect, x, weights, y, strides, dilates, padding, padding);
      own = backward.weights_desc();
      plan.primitive = dnnl::convolution_backward_data(backward);
      plan.arguments = {Argument{DNNL_ARG_DIFF_SRC, handle(backward.diff_src_desc())},
                        Argument{DNNL_ARG_WEIGHTS, handle(own)}, Argument{},
                        Argument{DNNL_ARG_DIFF_DST, handle(backward.diff_dst_desc())}};
      set_scratchpad(plan, backward);
    } else {
      const auto backward = describe_gradient<dnnl::convolution_backward_weights>(
          engine, attributes, forward, kDirect, x, weights, bias, y, strides, dilates, padding,
          padding);
      own = backward.diff_weights_desc();
      plan.primitive = dnnl::convolution_backward_weights(backward);
      plan.arguments = {Argument{DNNL_ARG_SRC, handle(backward.src_desc())},
                        Argument{DNNL_ARG_DIFF_WEIGHTS, handle(own)}, Argument{},
                        Argument{DNNL_ARG_DIFF_DST, handle(backward.diff_dst_desc())}};
      set_scratchpad(plan, backward);
    }
    const bool to_plain = operation == kBackwardWeights;
    const bool accumulate = to_plain && flag;
    plan.reorders = accumulate || own != plain;
    if (plan.reorders) {
      plan.plain_weights = handle(plain);
      plan.weights_bytes = own.get_size();
      const auto attr = accumulate ? accumulating() : dnnl::primitive_attr();
      plan.reorder =
          dnnl::reorder(to_plain ? dnnl::reorder::primitive_desc(engine, own, engine, plain, attr)
                                 : dnnl::reorder::primitive_desc(engine, plain, engine, own, attr));
    }
    return plan;
  }

  /// Runs make() on the first use of a shape. The library's errors get operation and shape.
  template <class Make, class Run, class Text>
  void run(const Key& key, Make make, Run body, const char* operation, Text shape) {
    try {
      auto it = plans.find(key);
      if (it == plans.end()) it = plans.emplace(key, make()).first;
      body(it->second);
    } catch (const dnnl::error& error) {
      fail(error.status == dnnl_out_of_memory ? ExitCode::kMemory : ExitCode::kInternal, "cpu",
           "{} of {} failed in oneDNN: {}", operation, shape(),
           error.message ? error.message : "no reason given");
    }
  }

  void execute(Plan& plan, std::array<const void*, 4> pointers) {
    std::optional<Scratch> scratchpad;
    std::unordered_map<int, memory> arguments;
    for (std::size_t i = 0; i < 4; ++i) {
      if (!plan.arguments[i].name || !plan.arguments[i].handle) continue;
      plan.arguments[i].handle.set_data_handle(const_cast<void*>(pointers[i]));
      arguments.emplace(plan.arguments[i].name, plan.arguments[i].handle);
    }
    if (plan.scratchpad_bytes > 0) {
      scratchpad.emplace(allocator, static_cast<Index>(plan.scratchpad_bytes));
      plan.scratchpad.set_data_handle(scratchpad->data());
      arguments.emplace(DNNL_ARG_SCRATCHPAD, plan.scratchpad);
    }
    plan.primitive.execute(stream, arguments);
  }

  void convolve(Operation operation, const Geometry& g, Type type, bool flag,
                std::array<const void*, 4> pointers, const char* name) {
    run(
        key_of(operation, g, type, flag),
        [&] { return make_convolution(operation, g, type, flag); },
        [&](Plan& plan) {
          if (!plan.reorders) return execute(plan, pointers);
          const Scratch weights(allocator, static_cast<Index>(plan.weights_bytes));
          void* own = weights.data();
          plan.plain_weights.set_data_handle(const_cast<void*>(pointers[1]));
          pointers[1] = own;
          memory& own_handle = plan.arguments[1].handle;
          if (operation == kBackwardWeights) {
            execute(plan, pointers);
            plan.reorder.execute(stream, own_handle, plan.plain_weights);
          } else {
            own_handle.set_data_handle(own);
            plan.reorder.execute(stream, plan.plain_weights, own_handle);
            execute(plan, pointers);
          }
        },
        name, [&] { return text(g); });
  }

  Plan make_matmul(const Product& p, Type to, bool bias) const {
    Plan plan;
    const auto strides = [](bool transposed, Index line) {
      return transposed ? Dims{1, line} : Dims{line, 1};
    };
    const memory::desc a(Dims{p.m, p.k}, Type::bf16, strides(p.transpose_a, p.line_a));
    const memory::desc b(Dims{p.k, p.n}, Type::bf16, strides(p.transpose_b, p.line_b));
    const memory::desc c(Dims{p.m, p.n}, to, Dims{p.line_c, 1});
    const memory::desc row =
        bias ? memory::desc(Dims{1, p.n}, Type::f32, Dims{p.n, 1}) : memory::desc();
    const auto descriptor = describe<dnnl::matmul>(
        engine, with_user_scratchpad(p.accumulate ? accumulating() : dnnl::primitive_attr()), a, b,
        row, c);
    plan.primitive = dnnl::matmul(descriptor);
    plan.arguments = {Argument{DNNL_ARG_SRC, handle(a)}, Argument{DNNL_ARG_WEIGHTS, handle(b)},
                      Argument{DNNL_ARG_BIAS, bias ? handle(row) : memory()},
                      Argument{DNNL_ARG_DST, handle(c)}};
    set_scratchpad(plan, descriptor);
    return plan;
  }
};

DnnlOperations::DnnlOperations(CachingAllocator& allocator)
    : state_(std::make_unique<State>(allocator)) {}
DnnlOperations::~DnnlOperations() = default;

template <class T>
void DnnlOperations::conv_forward(const Geometry& g, const T* x, const T* weight, const float* bias,
                                  T* y) {
  state_->convolve(kForward, g, kType<T>, bias != nullptr, {x, weight, bias, y}, "conv2d forward");
}

template <class T>
void DnnlOperations::conv_backward_data(const Geometry& g, const T* dy, const T* weight, T* dx) {
  state_->convolve(kBackwardData, g, kType<T>, false, {dx, weight, nullptr, dy},
                   "conv2d backward of the data");
}

template <class T>
void DnnlOperations::conv_backward_weights(const Geometry& g, const T* x, const T* dy,
                                           float* dweight, bool accumulate) {
  state_->convolve(kBackwardWeights, g, kType<T>, accumulate, {x, dweight, nullptr, dy},
                   "conv2d backward of the weights");
}

template void DnnlOperations::conv_forward(const Geometry&, const float*, const float*,
                                           const float*, float*);
template void DnnlOperations::conv_forward(const Geometry&, const BFloat16*, const BFloat16*,
                                           const float*, BFloat16*);
template void DnnlOperations::conv_backward_data(const Geometry&, const float*, const float*,
                                                 float*);
template void DnnlOperations::conv_backward_data(const Geometry&, const BFloat16*, const BFloat16*,
                                                 BFloat16*);
template void DnnlOperations::conv_backward_weights(const Geometry&, const float*, const float*,
                                                    float*, bool);
template void DnnlOperations::conv_backward_weights(const Geometry&, const BFloat16*,
                                                    const BFloat16*, float*, bool);

template <class To>
void DnnlOperations::matmul(const Product& p, const BFloat16* a, const BFloat16* b,
                            const float* bias, To* c) {
  state_->run(
      Key{kMatmul, static_cast<Index>(kType<To>), bias != nullptr, p.m, p.n, p.k, p.transpose_a,
          p.transpose_b, p.accumulate, p.line_a, p.line_b, p.line_c},
      [&] { return state_->make_matmul(p, kType<To>, bias != nullptr); },
      [&](Plan& plan) {
        state_->execute(plan, {a, b, bias, c});
      },
      "matmul", [&] { return fmt::format("bf16 {}×{} by {}×{}", p.m, p.k, p.k, p.n); });
}

template void DnnlOperations::matmul(const Product&, const BFloat16*, const BFloat16*, const float*,
                                     float*);
template void DnnlOperations::matmul(const Product&, const BFloat16*, const BFloat16*, const float*,
                                     BFloat16*);

namespace {

/// The library takes megabytes of aligned memory for a large product and gives them back. What
/// glibc cuts off of a block, so that it is aligned, goes to its cache of this thread's small
/// blocks; then the whole never is one again, and the next product takes new pages: up to 60 MiB
/// for GPT-2. Where the cache is full, the pieces grow together.
void fill_thread_cache() {
  constexpr std::size_t kEntries = 7, kSizes = 11;  // glibc's, and up to 192 bytes
  std::array<void*, kEntries * kSizes> blocks;
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i] = std::malloc(24 + i / kEntries * 16);
  for (void* block : blocks) std::free(block);
}

}  // namespace

void DnnlOperations::matmul(const Product& p, const float* a, const float* b, float* c) {
  constexpr Index kLarge = Index{1} << 24;
  if (p.m * p.n * p.k >= kLarge) fill_thread_cache();
  // The plain function: faster than the matmul primitive where b is not transposed (2.6 on AVX-512:
  // 2.3 times), and as fast elsewhere.
  const dnnl_status_t status =
      dnnl_sgemm(p.transpose_a ? 'T' : 'N', p.transpose_b ? 'T' : 'N', p.m, p.n, p.k, 1.0f, a,
                 p.line_a, b, p.line_b, p.accumulate ? 1.0f : 0.0f, c, p.line_c);
  if (status != dnnl_success) {
    fail(status == dnnl_out_of_memory ? ExitCode::kMemory : ExitCode::kInternal, "cpu",
         "matmul of {}×{} by {}×{} failed in oneDNN with status {}", p.m, p.k, p.k, p.n,
         static_cast<int>(status));
  }
}

}  // namespace starling::cpu
