#include <doctest/doctest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "core/error.h"
#include "core/operations/codecs.h"
#include "core/operations/convolutions.h"
#include "core/operations/copying.h"
#include "core/operations/losses.h"
#include "core/operations/map.h"
#include "core/operations/norms.h"
#include "core/operations/pictures.h"
#include "core/operations/pointwise.h"
#include "core/operations/products.h"
#include "core/operations/reduce.h"
#include "core/operations/updates.h"
#include "kernels/math/pixel_steps.h"
#include "tests/cuda/compare.h"
#include "tests/cuda/support.h"
#include "tests/kernels/optimizer_reference.h"
#include "tests/operations/rows.h"

// Operations, numbers and settings that no row of the operation table has.
namespace starling::tests {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Fills elements [first, first + n) of a tensor of zeros and looks at every byte.
template <class T>
void check_fill(DType dtype, T value, double number, std::int64_t first, std::int64_t n) {
  CAPTURE(name_of(dtype));
  CAPTURE(first);
  CAPTURE(n);
  const std::int64_t size = first + n + 9;
  const Tensor all(gpu(), Shape{size}, dtype);
  gpu().fill(all, 0.0);
  gpu().fill(all.slice(first, Shape{n}), number);
  std::vector<T> found(static_cast<std::size_t>(size)), expected(found.size(), T{});
  for (std::int64_t i = first; i < first + n; ++i) expected[static_cast<std::size_t>(i)] = value;
  gpu().copy_to_host(all, found.data());
  CHECK(std::memcmp(found.data(), expected.data(), all.bytes()) == 0);
}

/// The squared norms of all at once, with what lies around them.
std::vector<double> many(const std::vector<Tensor>& x) {
  const Tensor totals(gpu(), {static_cast<std::int64_t>(x.size()) + 2}, DType::kFloat64);
  gpu().fill(totals, -1.0);
  gpu().squared_norms({x, totals, 1});
  return to_numbers(totals);
}
std::vector<double> one_by_one(const std::vector<Tensor>& x) {
  const Tensor totals(gpu(), {static_cast<std::int64_t>(x.size()) + 2}, DType::kFloat64);
  gpu().fill(totals, 0.0);
  for (std::size_t i = 0; i < x.size(); ++i)
    gpu().reduce(Reduce::squared_distance(x[i], {}, totals, static_cast<std::int64_t>(i) + 1));
  std::vector<double> numbers = to_numbers(totals);
  numbers.front() = numbers.back() = -1.0;
  return numbers;
}

}  // namespace

TEST_CASE("cuda/operations: casts between all types give the CPU's bits") {
  constexpr std::int64_t kN = 1023;
  Numbers given = random_numbers(kN, 3);
  for (std::size_t i = 0; i < given.size(); ++i)
    given[i] *= 70000.0 * std::pow(2.0, i % 4 == 1 ? -1.0 * static_cast<double>(i % 110) : 0.0);
  given[3] = std::nan("");
  given[5] = kInfinity;
  given[7] = -kInfinity;
  for (const DType from : kFloatingTypes) {
    for (const DType to : kFloatingTypes) {
      CAPTURE(name_of(from));
      CAPTURE(name_of(to));
      const Tensor y(plain_cpu(), {kN}, to);
      plain_cpu().cast({to_tensor(plain_cpu(), given, {kN}, from), y});
      for (const std::int64_t offset : {0, 1, 2}) {
        const Tensor found = to_tensor(gpu(), Numbers(kN, 0.0), {kN}, to, offset);
        gpu().cast({to_tensor(gpu(), given, {kN}, from, offset == 2 ? 3 : offset), found});
        CHECK(distance(to_numbers(found), to_numbers(y)) == 0.0);
      }
    }
    const Tensor bytes = to_tensor(gpu(), {0, 1, 127, 128, 255}, {5}, DType::kUInt8),
                 numbers(gpu(), {5}, from);
    gpu().cast({bytes, numbers});
    CHECK(to_numbers(numbers) == Numbers{0, 1, 127, 128, 255});
  }
}

TEST_CASE("cuda/operations: large logits do not overflow, and an infinite one shows") {
  const auto loss_of = [](const Numbers& row, DType dtype) {
    const Tensor loss(gpu(), {1}, parameter_dtype(dtype));
    gpu().target_loss(
        {.x = to_tensor(gpu(), row, {1, static_cast<std::int64_t>(row.size())}, dtype),
         .targets = to_tensor(gpu(), {1}, {1}, DType::kInt32),
         .loss = loss});
    return to_numbers(loss)[0];
  };
  for (const DType dtype : kFloatingTypes) {
    CAPTURE(name_of(dtype));
    CHECK(loss_of({60000.0, 0.0}, dtype) == doctest::Approx(60000.0).epsilon(0.01));
    CHECK(loss_of({-60000.0, 0.0, -50000.0}, dtype) == doctest::Approx(0.0));
    CHECK(std::isnan(loss_of({kInfinity, 0.0, 1.0}, dtype)));
  }
}

TEST_CASE(
    "cuda/operations: a label outside the classes makes its own row NaN, and counts nowhere") {
  for (const std::int32_t label : {-1, 5, 1000000}) {
    CAPTURE(label);
    const Tensor logits = to_tensor(gpu(), random_numbers(15, 1), {3, 5}, DType::kFloat32),
                 dx(gpu(), {3, 5}, DType::kFloat32);
    const Tensor labels = to_tensor(gpu(), {2, static_cast<double>(label), 4}, {3}, DType::kInt32),
                 loss(gpu(), {1}, DType::kFloat32);
    const auto check = [&] {
      CHECK(std::isnan(to_numbers(loss)[0]));
      const Numbers gradient = to_numbers(dx);
      for (std::size_t i = 0; i < gradient.size(); ++i)
        CHECK(std::isnan(gradient[i]) == (i / 5 == 1));
    };
    gpu().target_loss({.x = logits, .targets = labels, .loss = loss, .dx = dx});
    check();
    for (const LossKind kind : {LossKind::kCrossEntropy, LossKind::kFocal, LossKind::kLogistic,
                                LossKind::kSquared, LossKind::kAbsolute, LossKind::kHuber}) {
      CAPTURE(static_cast<int>(kind));
      gpu().target_loss(
          {.kind = kind, .x = logits, .targets = labels, .loss = loss, .dx = dx, .parameter = 1.0});
      check();
    }
  }
}

TEST_CASE(
    "cuda/operations: the statistics of a large mean do not cancel, and a constant has no "
    "variance") {
  constexpr std::int64_t kRows = 3000, kChannels = 5;
  const Shape shape{kRows, kChannels};
  Numbers x = random_numbers(kRows * kChannels, 3);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<double>(static_cast<float>(1000.0 + x[i]));
    if (i % kChannels == 3) x[i] = 1000.1;
    if (i % kChannels == 2) sum += x[i];
  }
  const double mean = sum / kRows;
  for (std::size_t i = 2; i < x.size(); i += kChannels) squares += (x[i] - mean) * (x[i] - mean);
  const auto vector = [] { return Tensor(gpu(), {kChannels}, DType::kFloat32); };
  const Tensor in = to_tensor(gpu(), x, shape, DType::kFloat32), y(gpu(), shape, DType::kFloat32);
  const BatchNormForward whole{.x = in, .y = y, .saved_mean = vector(), .saved_inv_std = vector()};
  gpu().batch_norm_forward(whole);
  CHECK(to_numbers(whole.saved_mean)[2] == doctest::Approx(mean).epsilon(1e-7));
  CHECK(to_numbers(whole.saved_inv_std)[2] ==
        doctest::Approx(1.0 / std::sqrt(squares / kRows + 1e-5)).epsilon(1e-5));
  CHECK(to_numbers(whole.saved_inv_std)[3] == doctest::Approx(1.0 / std::sqrt(1e-5)).epsilon(1e-3));
  const BatchNormForward alone{.x = in, .saved_mean = vector(), .saved_inv_std = vector()};
  gpu().batch_norm_forward(alone);
  CHECK(to_numbers(alone.saved_mean) == to_numbers(whole.saved_mean));
  CHECK(to_numbers(alone.saved_inv_std) == to_numbers(whole.saved_inv_std));
  // Every block normalises by the statistics that one of them saves.
  const Tensor again(gpu(), shape, DType::kFloat32);
  gpu().batch_norm_forward({.x = in,
                            .y = again,
                            .saved_mean = whole.saved_mean,
                            .saved_inv_std = whole.saved_inv_std,
                            .training = false});
  CHECK(to_numbers(again) == to_numbers(y));
}

TEST_CASE("cuda/operations: a message that begins beside a multiple of 16 bytes is refused") {
  const Tensor bytes(gpu(), {4096}, DType::kUInt8), out(gpu(), {256}, DType::kFloat32);
  const Shape message{message_bytes(Code::kInt8, DType::kFloat32, 256, 256)};
  gpu().fill(bytes, 0.0);
  for (const std::int64_t from : {0, 8}) {
    const auto decode = [&] {
      gpu().decode({.messages = {bytes.slice(from, message)},
                    .weight = {1.0},
                    .terms = 1,
                    .out = out,
                    .code = Code::kInt8,
                    .block = 256});
    };
    if (from == 0) {
      CHECK_NOTHROW(decode());
    } else {
      CHECK_THROWS_AS(decode(), Error);
    }
  }
}

TEST_CASE(
    "cuda/operations: a batch norm's gradients alone are as many as its channels, and what lies "
    "behind stays") {
  const auto ones = [](const Shape& shape, DType dtype = DType::kFloat32) {
    return to_tensor(gpu(), Numbers(static_cast<std::size_t>(shape.elements()), 1.0), shape, dtype);
  };
  const Tensor both = ones({8});
  gpu().batch_norm_backward(
      {.x = ones({2, 5}),
       .dy = ones({2, 5}),
       .gamma = ones({5}),
       .saved_mean = ones({5}),
       .saved_inv_std = ones({5}),
       .dbeta = both.slice(0, {5}),
       .sums = BatchNormBackward::Sums::kGiven,
       .sum_dy = to_tensor(gpu(), Numbers(8, 3.0), {8}, DType::kFloat64).slice(0, {5}),
       .sum_dy_xhat = ones({5}, DType::kFloat64)});
  CHECK(to_numbers(both) == Numbers{3, 3, 3, 3, 3, 1, 1, 1});
}

TEST_CASE("cuda/fill: every dtype, with tails and misaligned starts, and nothing around them") {
  in_every_order([] {
    for (const std::int64_t first : {0, 1, 3, 16}) {
      for (const std::int64_t n : {0, 1, 2, 7, 16, 1000, 4099}) {
        check_fill<float>(DType::kFloat32, -2.5f, -2.5, first, n);
        check_fill<float>(DType::kFloat32, -0.0f, -0.0, first, n);
        check_fill<double>(DType::kFloat64, 0.1, 0.1, first, n);
        check_fill<std::uint16_t>(DType::kBFloat16, BFloat16(0.1f).bits, 0.1, first, n);
        check_fill<std::uint16_t>(DType::kFloat16, Float16(0.1f).bits, 0.1, first, n);
        check_fill<std::int64_t>(DType::kInt64, -7, -7.0, first, n);
        check_fill<std::int32_t>(DType::kInt32, 9, 9.0, first, n);
        check_fill<std::uint8_t>(DType::kUInt8, 200, 200.0, first, n);
      }
    }
  });
}

TEST_CASE(
    "cuda/squared_norms: many tensors at once have the bits of each alone, and nothing else is "
    "written") {
  in_every_order([] {
    std::vector<Tensor> x;
    for (const std::int64_t n : {1, 31, 32, 33, 255, 4095, 4096, 4097, 8192, 50003, 163847}) {
      for (const std::int64_t offset : {0, 1}) {
        x.push_back(to_tensor(gpu(), random_numbers(n, static_cast<std::uint64_t>(n + offset)), {n},
                              DType::kFloat32, offset));
      }
    }
    CHECK(many(x) == one_by_one(x));
  });
}

TEST_CASE("cuda/squared_norms: more tensors than one launch takes, empty ones, and fp64") {
  std::vector<Tensor> x;
  for (int i = 0; i < 200; ++i)
    x.push_back(to_tensor(gpu(), random_numbers(1 + 37 * i, static_cast<std::uint64_t>(i)),
                          {1 + 37 * i}, DType::kFloat32));
  CHECK(many(x) == one_by_one(x));
  const Tensor some = to_tensor(gpu(), random_numbers(100, 5), {100}, DType::kFloat32);
  const Tensor none = some.slice(0, Shape{0});
  const std::vector<double> found = many({none, some, none, none, some, none});
  CHECK(found[1] == 0.0);
  CHECK(found[2] > 0.0);
  CHECK(found[3] == 0.0);
  CHECK(found[4] == 0.0);
  CHECK(found[5] == found[2]);
  CHECK(found[6] == 0.0);
  CHECK(many({none}) == std::vector<double>{-1.0, 0.0, -1.0});
  std::vector<Tensor> wide;
  for (const std::int64_t n : {5, 4096, 9001})
    wide.push_back(to_tensor(gpu(), random_numbers(n, 3), {n}, DType::kFloat64));
  CHECK(many(wide) == one_by_one(wide));
}

TEST_CASE("cuda/squared_norms: numbers that do not go together are refused") {
  const auto of = [](DType dtype) { return to_tensor(gpu(), random_numbers(8, 1), {8}, dtype); };
  CHECK_THROWS_AS(many({of(DType::kBFloat16), of(DType::kBFloat16)}), Error);
  CHECK_THROWS_AS(many({of(DType::kFloat64), of(DType::kFloat32)}), Error);
  CHECK_THROWS_AS(many({of(DType::kFloat32), Tensor()}), Error);
}

TEST_CASE("cuda/image: changed bytes are the CPU's") {
  using C = PixelChange;
  const std::int32_t half_turn = 0x3F000000, most_turn = 0x40B00000;  // 0.5 and 5.5 as fp32
  const std::vector<PixelStep> each{
      {C::kWindow, {2, -1, 1, 0}},
      {C::kWindow, {-1, 2, 0, 1}},
      {C::kTransform, {60000, -26000, 26000, 60000, 200000, 0, -90000, -1}},
      {C::kResize, {1, 0, 2, 3, 1}},
      {C::kResize, {0, 1, 3, 2, 2}},
      {C::kResize, {1, 1, 1, 1, 0}},
      {C::kScale, {21000}},
      {C::kContrast, {25000}},
      {C::kContrast, {9000}},
      {C::kSaturation, {29000}},
      {C::kHue, {half_turn}},
      {C::kHue, {most_turn}},
      {C::kSharpness, {30000}},
      {C::kSharpness, {2000}},
      {C::kInvert, {128, 255}},
      {C::kInvert, {256, 0xE0}},
      {C::kAutoContrast},
      {C::kEqualize}};
  in_every_order([&] {
    for (const Shape& image : {Shape{8, 6, 3}, Shape{5, 7, 3}, Shape{40, 70, 3}, Shape{4, 4, 1},
                               Shape{5, 16, 4}, Shape{4, 3, 2}}) {
      CAPTURE(image.text());
      // Each change alone, then all of them one after another, forwards and backwards, and an image
      // that stays as it is.
      constexpr std::int64_t kMost = 18;
      REQUIRE(each.size() == kMost);
      const auto images = static_cast<std::int64_t>(each.size()) + 3;
      const Shape shape{images, image[0], image[1], image[2]};
      std::vector<std::uint8_t> pixels(static_cast<std::size_t>(shape.elements()));
      for (std::size_t i = 0; i < pixels.size(); ++i)
        pixels[i] = static_cast<std::uint8_t>(20 + (i * 37 + i / 11) % 200);
      std::vector<PixelStep> steps(static_cast<std::size_t>(images * kMost));
      for (std::size_t i = 0; i < each.size(); ++i) {
        steps[i * kMost] = each[i];
        steps[kMost * kMost + i] = each[i];
        steps[(kMost + 1) * kMost + i] = each[each.size() - 1 - i];
      }
      std::vector<std::int32_t> numbers(steps.size() * kPixelStepNumbers);
      std::memcpy(numbers.data(), steps.data(), numbers.size() * sizeof(std::int32_t));
      const auto changed = [&](Backend& b) {
        const Tensor x(b, shape, DType::kUInt8), scratch(b, shape, DType::kUInt8),
            y(b, shape, DType::kUInt8);
        b.copy_from_host(pixels.data(), x);
        const Tensor given(b, {images, kMost, kPixelStepNumbers}, DType::kInt32);
        b.copy_from_host(numbers.data(), given);
        b.change_pixels({x, given, scratch, y});
        std::vector<std::uint8_t> bytes(pixels.size()), kept(pixels.size());
        b.copy_to_host(y, bytes.data());
        b.copy_to_host(x, kept.data());
        CHECK(kept == pixels);
        return bytes;
      };
      const std::vector<std::uint8_t> found = changed(gpu()), expected = changed(plain_cpu());
      const auto one = static_cast<std::size_t>(image.elements());
      for (std::size_t n = 0; n < static_cast<std::size_t>(images); ++n) {
        CAPTURE(n);
        CHECK(std::memcmp(found.data() + n * one, expected.data() + n * one, one) == 0);
      }
      // The last is as it was, and the others are not; half of them at least, as images of few
      // pixels or channels stay the same.
      std::size_t same = 0;
      for (std::size_t n = 0; n < static_cast<std::size_t>(images); ++n)
        same += std::memcmp(found.data() + n * one, pixels.data() + n * one, one) == 0;
      CHECK(std::memcmp(found.data() + (found.size() - one), pixels.data() + (found.size() - one),
                        one) == 0);
      CHECK(same <= each.size() / 2);
    }
  });
}

TEST_CASE(
    "cuda/operations: settings that make no sense are refused, as the CPU and the trace on shapes "
    "do") {
  for (Backend* backend : {static_cast<Backend*>(&gpu()), &plain_cpu(), &meta_backend()}) {
    Backend& b = *backend;
    CAPTURE(b.description());
    const auto typed = [&](DType dtype, auto... extents) {
      return Tensor(b, Shape{extents...}, dtype);
    };
    const auto tensor = [&](auto... extents) { return typed(DType::kFloat32, extents...); };
    const Tensor four = tensor(4), table = tensor(4, 4), image = tensor(1, 9, 9, 4),
                 whole = typed(DType::kInt32, 4);
    const Tensor small = tensor(1, 4, 4, 2), half = tensor(1, 2, 2, 2),
                 totals = typed(DType::kFloat64, 2);
    const Tensor bytes = typed(DType::kUInt8, 2, 4, 4, 3), floats = tensor(2, 4, 4, 3),
                 filters = tensor(4, 3, 3, 4);
    const auto conv = [&](const Window2d& of) {
      b.conv2d_forward({.x = image, .weight = filters, .y = image, .window = of});
    };
    const std::function<void()> calls[] = {
        [&] {
          b.map({MapFunction::kAdd, whole, whole, whole});
        },
        [&] {
          b.map({MapFunction::kAdd, Tensor(), four, four});
        },
        [&] { b.dropout({.x = four, .y = four, .p = 1.5}); },
        [&] { b.weighted_sum({.terms = 9, .out = four}); },
        [&] {
          b.reduce({table, four.reshaped({2, 2})});
        },
        [&] { b.reduce(Reduce::squared_distance(four, {}, totals, 2)); },
        [&] { b.gradient_control({.totals = totals, .first = 1, .count = 2, .control = totals}); },
        [&] { b.layer_norm_forward({.x = table}); },
        [&] { b.batch_norm_forward({.x = table, .y = table, .training = false}); },
        [&] {
          b.batch_norm_backward({.x = table,
                                 .dy = table,
                                 .saved_mean = four,
                                 .saved_inv_std = four,
                                 .rectifier = {.relu = true}});
        },
        [&] {
          b.batch_norm_finish({.sum = four,
                               .square_sum = four,
                               .saved_mean = four,
                               .saved_inv_std = four,
                               .count = 0});
        },
        [&] {
          b.pool2d_forward({.kind = Pooling::kBlur,
                            .x = image,
                            .y = tensor(1, 2, 2, 4),
                            .window = window(8, 1, 0)});
        },
        [&] {
          b.pool2d_forward({.kind = Pooling::kBlur,
                            .x = image,
                            .y = tensor(1, 5, 5, 4),
                            .window = window(3, 1, 0, 2)});
        },
        [&] { b.pool2d_forward({.x = small, .y = half, .window = window(2, 0, 0)}); },
        [&] { b.pool2d_forward({.x = small, .window = window(2, 2, 0)}); },
        [&] { b.pool2d_backward({.dy = half, .dx = small, .window = window(2, 2, 0)}); },
        [&] {
          b.strided_copy({.x = four,
                          .y = table,
                          .dimensions = {StridedCopy::Dimension::whole(4, 1),
                                         StridedCopy::Dimension::whole(4, 1)},
                          .rank = 2});
        },
        [&] {
          b.strided_copy({.x = four,
                          .y = four,
                          .dimensions = {StridedCopy::Dimension{4, 1, 3, 2, 1}},
                          .rank = 1});
        },
        [&] { b.augment_images({.x = typed(DType::kUInt8, 1, 4, 4, 5), .y = tensor(1, 4, 4, 5)}); },
        [&] {
          b.augment_images({.x = bytes, .y = floats, .boxes = typed(DType::kInt32, 2, 5, 4)});
        },
        [&] { b.change_pixels({.x = bytes, .steps = typed(DType::kInt32, 2, 1, 9), .y = bytes}); },
        [&] { b.target_loss({.x = tensor(4, 0), .targets = whole, .loss = tensor(1)}); },
        [&] {
          b.matmul({.a = table, .b = table, .c = tensor(4, 4), .accumulate = true, .relu = true});
        },
        [&] { b.matmul({.a = table, .b = tensor(5, 4), .c = table}); },
        [&] { b.matmul({.a = table, .b = typed(DType::kFloat64, 4, 4), .c = table}); },
        [&] { conv(window(3, 1, 0)); },
        [&] { conv(window(3, 0, 1)); },
        [&] { conv(window(3, 1, 1, 1, 3)); },
    };
    const std::shared_ptr<OptimizerRule> rule = test::make_rule("adamw", nlohmann::json::object());
    const std::function<void(UpdateArgs&)> changes[] = {
        [](UpdateArgs& args) { args.x = Tensor(); },
        [](UpdateArgs& args) { args.states.pop_back(); },
        [](UpdateArgs& args) { args.weights.clear(); },
        [](UpdateArgs& args) { args.decay = Tensor(); },
        [](UpdateArgs& args) { args.step = 0; },
        [](UpdateArgs& args) { args.low = args.x; },
    };
    const auto update = [&](const std::function<void(UpdateArgs&)>& change) {
      const Tensor x = tensor(64);
      UpdateArgs args{
          .x = x, .x_out = x, .gradient = x, .states = {x, x}, .received = {x}, .weights = {0.5}};
      args.decay = typed(DType::kUInt8, 2);
      b.fill(args.decay, 1.0);
      b.fill(x, 1.0);
      change(args);
      b.update({*rule, args});
    };
    update([](UpdateArgs&) {});
    for (const auto& change : changes) {
      if (b.device() == DeviceType::kMeta) break;  // what a rule asks for is the rule's matter
      CAPTURE(&change - changes);
      CHECK_THROWS_AS(update(change), Error);
    }
    for (const auto& call : calls) {
      CAPTURE(&call - calls);
      CHECK_THROWS_AS(call(), Error);
    }
  }
}

}  // namespace starling::tests
