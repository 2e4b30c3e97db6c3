// Views of tensors: where their numbers lie, and what they refuse.
#include <doctest/doctest.h>

#include "core/error.h"
#include "core/view.h"
#include "tests/core/host_backend.h"
#include "tests/support/errors.h"

namespace starling {

TEST_CASE("core/view: heads of one tensor, without a copy") {
  test::HostBackend backend;
  const Tensor x(backend, {2, 5, 24}, DType::kFloat32);
  const View keys = View(x).slice(2, 8, 8).split(2, 4).transposed(1, 2);
  CHECK(keys.shape() == Shape{2, 2, 5, 4});
  CHECK(keys.first() == 8);
  CHECK(keys.stride(0) == 120);
  CHECK(keys.stride(1) == 4);
  CHECK(keys.stride(2) == 24);
  CHECK(keys.stride(3) == 1);
  CHECK(keys.reach() == 120 + 4 + 4 * 24 + 3 + 1);
  CHECK(!keys.contiguous());
  CHECK(View(x).contiguous());
  CHECK(View(x).slice(0, 1, 1).whole().shape() == Shape{1, 5, 24});
  CHECK(View(x).slice(1, 5, 0).reach() == 0);
}

TEST_CASE("core/view: what lies outside is refused") {
  test::HostBackend backend;
  const Tensor x(backend, {2, 6}, DType::kFloat32);
  const auto refused = [](auto&& call) {
    return test::error_of(ExitCode::kInternal, [&] { (void)call(); });
  };
  CHECK(test::contains(refused([&] { return View(x).slice(1, 4, 3); }), "4 to 7 lie outside"));
  CHECK(test::contains(refused([&] { return View(x).transposed(0, 2); }), "no dimension 2"));
  CHECK(test::contains(refused([&] { return View(x).split(1, 4); }), "no whole number of 4"));
  CHECK(test::contains(refused([&] { return View(x, {2, 6}, {7, 1}, 0); }), "lies outside"));
  CHECK(test::contains(refused([&] { return View(x).slice(1, 0, 3).whole(); }), "one piece"));
}

}  // namespace starling
