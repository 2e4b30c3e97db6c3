#include "kernels/cuda/runtime/dependent_launches.h"

#include <fmt/format.h>

#include <memory>

#include "core/error.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/last_block.h"
#include "kernels/cuda/runtime/launch.h"

namespace starling::cuda {
namespace {

__global__ void double_and_add(unsigned* counter, unsigned term) {
  wait_for_previous_kernel();
  if (threadIdx.x == 0) *counter = 2 * *counter + term;
  let_next_kernel_come();
}

/// counter = 4 · counter + 1, if the second kernel waits for the first.
void issue_pair(unsigned* counter, StreamHandle stream) {
  launch(double_and_add, {.grid = {1}, .block = {kWarp}, .stream = stream}, counter, 0u);
  launch(double_and_add, {.grid = {1}, .block = {kWarp}, .stream = stream, .dependent = true}, counter, 1u);
}

}  // namespace

std::string why_not_dependent(unsigned* counter, StreamHandle stream) {
  constexpr unsigned kWanted = 4 * 1 + 1;  // one pair issued, one in a graph
  const std::unique_ptr<void, void (*)(void*)> host(pinned_allocate(sizeof(unsigned)), &pinned_free);
  if (!host) return "no page-locked memory to try them";
  auto* found = static_cast<unsigned*>(host.get());
  try {
    set_async(counter, 0, sizeof(unsigned), stream);
    issue_pair(counter, stream);
    begin_capture(stream);
    try {
      issue_pair(counter, stream);
    } catch (...) {
      abandon_capture(stream);
      throw;
    }
    const std::unique_ptr<void, void (*)(void*)> graph(end_capture(stream, true), [](void* made) { destroy_graph(made); });
    launch_graph(graph.get(), stream);
    copy_async(found, counter, sizeof(unsigned), CopyKind::kDeviceToHost, stream);
    set_async(counter, 0, sizeof(unsigned), stream);
    host_wait_stream(stream);
  } catch (const Error& error) {
    return error.what();
  }
  return *found == kWanted ? "" : fmt::format("two pairs of kernels counted to {}, not {}", *found, kWanted);
}

}  // namespace starling::cuda
