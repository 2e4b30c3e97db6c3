#include "tests/fakes/cuda/fake_cudnn.h"

#include <array>
#include <cstddef>
#include <cstring>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/operations/attention.h"
#include "core/operations/convolutions.h"
#include "core/operations/pointwise.h"
#include "kernels/cuda/runtime/runtime.h"
#include "kernels/open_backend.h"
#include "tests/fakes/cuda/shim.h"

namespace starling::cuda::shim {

Tensor borrowed(Backend& cpu, void* data, const Shape& shape, DType dtype) {
  class Borrowed final : public Storage {
   public:
    Borrowed(Backend& backend, std::byte* memory, std::size_t bytes)
        : Storage(backend, memory, bytes) {}
  };
  const std::size_t size = static_cast<std::size_t>(shape.elements()) * size_of(dtype);
  return {std::make_shared<Borrowed>(cpu, static_cast<std::byte*>(data), size), 0, shape, dtype};
}

namespace {

/// Numbers of `dtype` as fp32, or fp64 where they are that.
Tensor widened(void* from, const Shape& shape, DType dtype, Backend& cpu) {
  Tensor tensor(cpu, shape, is_low_precision(dtype) ? DType::kFloat32 : dtype);
  cpu.cast({borrowed(cpu, from, shape, dtype), tensor});
  return tensor;
}
/// And back, rounded once.
void store(const Tensor& from, void* to, DType dtype, Backend& cpu) {
  cpu.cast({from, borrowed(cpu, to, from.shape(), dtype)});
}

/// Does what cuDNN's graph for `spec` would, on memory that the CPU reaches: in fp32, results
/// rounded once to the graph's type. Every bound tensor must be the graph's, and the graph's all
/// bound.
class GraphOnCpu {
 public:
  GraphOnCpu(const GraphSpec& spec, const Bindings& bindings, Backend& cpu)
      : spec_(spec), bindings_(bindings), cpu_(cpu) {}

  void run() {
    if (spec_.kind >= GraphKind::kAttentionForward) {
      spec_.kind == GraphKind::kAttentionForward ? attention_forward() : attention_backward();
    } else {
      convolution();
    }
    require(used_ == bindings_.size(), "shim", "{}: {} of {} tensors were the graph's", text(spec_),
            used_, bindings_.size());
  }

 private:
  void convolution() {
    const auto& [n, h, w, c] = spec_.x;
    const auto& [m, p, q, o] = spec_.y;
    const Shape x{n, h, w, c}, y{m, p, q, o},
        weight{o, spec_.kernel[0], spec_.kernel[1], c / spec_.groups};
    const Window2d window{spec_.kernel, spec_.stride, spec_.padding, spec_.dilation, spec_.groups};
    const DType io = spec_.dtype, wide = DType::kFloat32;
    switch (spec_.kind) {
      case GraphKind::kForward: {
        const Conv2dForward args{.x = in(GraphTensor::kX, x, io),
                                 .weight = in(GraphTensor::kWeight, weight, io),
                                 .y = Tensor(cpu_, y, wide),
                                 .window = window};
        cpu_.conv2d_forward(args);
        out(GraphTensor::kY, args.y, io);
        break;
      }
      case GraphKind::kBackwardData: {
        const Conv2dBackwardData args{in(GraphTensor::kDy, y, io),
                                      in(GraphTensor::kWeight, weight, io), Tensor(cpu_, x, wide),
                                      window};
        cpu_.conv2d_backward_data(args);
        out(GraphTensor::kDx, args.dx, io);
        break;
      }
      case GraphKind::kBackwardWeights: {
        const Tensor dweight(cpu_, weight, wide);
        cpu_.conv2d_backward_weights({.x = in(GraphTensor::kX, x, io),
                                      .dy = in(GraphTensor::kDy, y, io),
                                      .dweight = dweight,
                                      .window = window});
        out(GraphTensor::kDweight, dweight, io);
        break;
      }
      default: fail(ExitCode::kInternal, "shim", "no convolution: {}", text(spec_));
    }
  }

  static Shape shape(const std::array<std::int64_t, 4>& s) { return {s[0], s[1], s[2], s[3]}; }
  /// Numbers of q's sizes, or k's, as they lie; `i` counts AttentionGraph::strides.
  View heads(GraphTensor id, const std::array<std::int64_t, 4>& sizes, std::size_t i) {
    return strided(pointer(id), shape(sizes), spec_.attention.strides[i], 1);
  }
  View strided(void* from, const Shape& sizes, const std::array<std::int64_t, 3>& stride,
               std::int64_t last) {
    std::int64_t reach = 1 + (sizes[3] - 1) * last;
    for (int d = 0; d < 3; ++d) reach += (sizes[d] - 1) * stride[static_cast<std::size_t>(d)];
    return View(widened(from, {reach}, spec_.dtype, cpu_), sizes,
                {stride[0], stride[1], stride[2], last}, 0);
  }
  /// A result: what a graph writes of memory that others' numbers lie between.
  void give(const View& from, GraphTensor id, std::size_t i) {
    auto* to = static_cast<std::byte*>(pointer(id));
    const Shape& s = from.shape();
    const auto& stride = spec_.attention.strides[i];
    for (std::int64_t row = 0; row < s[0] * s[1] * s[2]; ++row) {
      const std::int64_t t = row % s[2], h = row / s[2] % s[1], n = row / s[2] / s[1];
      const Tensor line = from.tensor().slice(row * s[3], {s[3]});
      store(line,
            to + static_cast<std::size_t>(n * stride[0] + h * stride[1] + t * stride[2]) *
                     size_of(spec_.dtype),
            spec_.dtype, cpu_);
    }
  }
  View result(const std::array<std::int64_t, 4>& sizes) {
    return Tensor(cpu_, shape(sizes), DType::kFloat32);
  }
  Attention attention() {
    const AttentionGraph& graph = spec_.attention;
    Attention args;
    args.q = heads(GraphTensor::kQ, spec_.x, 0);
    args.k = heads(GraphTensor::kK, spec_.y, 1);
    args.v = heads(GraphTensor::kV, spec_.y, 2);
    static_cast<AttentionMask&>(args) = graph.places;
    args.scale = static_cast<double>(graph.scale);
    if (graph.mask[2] > 0) {
      const auto& stride = graph.mask_stride;
      args.mask = strided(pointer(GraphTensor::kMask),
                          {spec_.x[0], spec_.x[1], graph.mask[2], graph.mask[3]},
                          {stride[0], stride[1], stride[2]}, stride[3]);
    }
    return args;
  }
  void attention_forward() {
    AttentionForward args;
    static_cast<Attention&>(args) = attention();
    args.y = result(spec_.x);
    args.lse = Tensor(cpu_, {spec_.x[0], spec_.x[1], spec_.x[2]}, DType::kFloat32);
    cpu_.attention_forward(args);
    give(args.y, GraphTensor::kY, 3);
    // cuDNN has no sum where nothing is seen.
    for (float& sum : args.lse.span<float>()) {
      if (sum == std::numeric_limits<float>::infinity())
        sum = std::numeric_limits<float>::quiet_NaN();
    }
    store(args.lse, pointer(GraphTensor::kStats), DType::kFloat32, cpu_);
  }
  void attention_backward() {
    AttentionBackward args;
    static_cast<Attention&>(args) = attention();
    args.y = heads(GraphTensor::kY, spec_.x, 3);
    args.dy = heads(GraphTensor::kDy, spec_.x, 4);
    args.lse = widened(pointer(GraphTensor::kStats), {spec_.x[0], spec_.x[1], spec_.x[2]},
                       DType::kFloat32, cpu_);
    args.dq = result(spec_.x), args.dk = result(spec_.y), args.dv = result(spec_.y);
    cpu_.attention_backward(args);
    give(args.dq, GraphTensor::kDq, 5);
    give(args.dk, GraphTensor::kDk, 6);
    give(args.dv, GraphTensor::kDv, 7);
  }

  void* pointer(GraphTensor id) {
    for (const Binding& binding : bindings_) {
      if (binding.tensor == id) return ++used_, binding.data;
    }
    fail(ExitCode::kInternal, "shim", "{}: tensor {} is not bound", text(spec_),
         static_cast<int>(id));
  }
  Tensor in(GraphTensor id, const Shape& shape, DType dtype) {
    return widened(pointer(id), shape, dtype, cpu_);
  }
  void out(GraphTensor id, const Tensor& tensor, DType dtype) {
    store(tensor, pointer(id), dtype, cpu_);
  }

  const GraphSpec& spec_;
  const Bindings& bindings_;
  Backend& cpu_;
  std::size_t used_ = 0;
};

class FakePlan final : public GraphPlan {
 public:
  FakePlan(FakeGraphs& maker, std::shared_ptr<Backend> cpu, const GraphSpec& spec, int candidates)
      : maker_(maker), cpu_(std::move(cpu)), spec_(spec), candidates_(candidates) {}

  int candidates() const override { return candidates_; }
  std::string name(int candidate) const override { return "stand-in " + std::to_string(candidate); }
  bool finalise(int candidate, std::string& why) override {
    ++maker_.finalised;
    if (!maker_.cannot_finalise || !maker_.cannot_finalise(candidate)) return true;
    why = "cannot be finalised";
    return false;
  }
  /// Which it overwrites; the last one needs none.
  std::size_t workspace(int candidate) const override {
    return candidate + 1 < candidates_ ? 4096 : 0;
  }

  void run(int candidate, const Bindings& bindings, void* workspace, StreamHandle stream) override {
    if (maker_.cannot_run && maker_.cannot_run(candidate))
      fail(ExitCode::kInternal, "cudnn", "cannot run");
    maker_.runs.push_back(candidate);
    launch_alone(
        stream,
        [spec = spec_, bindings, workspace, bytes = this->workspace(candidate), cpu = cpu_] {
          if (bytes > 0) std::memset(workspace, 0xff, bytes);
          GraphOnCpu(spec, bindings, *cpu).run();
        },
        "cudnn convolution");
  }

  double milliseconds(StreamHandle stream, const std::function<void()>& work) override {
    if (stream) host_wait_stream(stream);  // which a capture refuses, as it does on a GPU
    work();
    return maker_.times.at(static_cast<std::size_t>(maker_.runs.back()));
  }

 private:
  FakeGraphs& maker_;
  std::shared_ptr<Backend> cpu_;
  GraphSpec spec_;
  int candidates_;
};

}  // namespace

FakeGraphs::FakeGraphs() : cpu_(open_backend(DeviceType::kCpu, 1)) {}

std::unique_ptr<GraphPlan> FakeGraphs::plan(const GraphSpec& spec, const PlanRules& rules_wanted,
                                            std::string& why) {
  ++planned[spec];
  rules = rules_wanted;
  const bool none = refuses && refuses(spec);
  if (none) why = "refused by the test";
  return std::make_unique<FakePlan>(*this, cpu_, spec, none ? 0 : candidates);
}

void multiply(const Matmul& args, Backend& cpu) {
  const auto wide = [&](const Tensor& from) {
    return from ? widened(from.raw(), from.shape(), from.dtype(), cpu) : Tensor();
  };
  Matmul product = args;
  product.a = args.a.of(wide(args.a.tensor()));
  product.b = args.b.of(wide(args.b.tensor()));
  product.bias = wide(args.bias);
  product.before_gelu = wide(args.before_gelu);
  product.gelu_input = wide(args.gelu_input);
  // c lies in one piece here, or numbers between its rows go through fp32 and come back as they
  // were
  const Tensor& c = args.c.tensor();
  product.c = args.c.of(wide(c));
  cpu.matmul(product);
  store(product.c.tensor(), c.raw(), c.dtype(), cpu);
  if (const Tensor& before = args.before_gelu)
    store(product.before_gelu, before.raw(), before.dtype(), cpu);
}

}  // namespace starling::cuda::shim
