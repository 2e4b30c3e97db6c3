#include "apps/training/device/device.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>

#include "comm/agreement.h"
#include "core/host.h"
#include "core/log.h"
#include "core/text.h"
#include "kernels/cpu/isa.h"
#include "kernels/gpu_update.h"
#include "kernels/open_backend.h"

namespace starling {
namespace {

/// Whether this host has NVIDIA's driver. Without it the plug-in with its large libraries need not
/// be opened; with it a user may wonder why the GPU is not used.
bool has_gpu_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
  if (library) dlclose(library);
  return library != nullptr;
}

bool has_gpu(const std::string& answer) { return answer[0] == '+'; }

/// Opens devices for "auto": a GPU on every rank, or none anywhere. What each rank found is told to
/// all, and rank 0 says in one line why the CPU is taken where there are GPUs or drivers at all.
std::unique_ptr<Backend> gpu_on_every_rank(const BackendSettings& settings, World& world) {
  std::unique_ptr<Backend> backend;
  std::string mine = "-";  // "+": a GPU; "-": no driver; "!": a driver, but this error
  if (has_gpu_driver()) {
    try {
      backend = open_backend(DeviceType::kCuda, settings);
      mine = "+";
    } catch (const Error& error) {
      mine = "!" + std::string(error.what());
    }
  }
  const std::vector<std::string> all = world.all_gather(mine);
  if (std::ranges::all_of(all, has_gpu)) return backend;
  const std::string why = why_not_gpus(all);
  if (!why.empty() && world.rank() == 0) log::info("{}", why);
  return nullptr;
}

/// Hosts' configs may differ in the device: one that names a kind asks for all that leave it open.
std::string device_of_all(const std::string& mine, World& world) {
  const std::vector<std::string> all = world.all_gather(mine);
  for (const char* asked : {"cuda", "cpu"}) {
    if (mine == "auto" && std::ranges::find(all, asked) != all.end()) return asked;
  }
  return mine;
}

}  // namespace

std::string why_not_gpus(const std::vector<std::string>& answers) {
  const auto first = std::ranges::find_if_not(answers, has_gpu);
  const bool none_anywhere =
      std::ranges::all_of(answers, [](const std::string& answer) { return answer[0] == '-'; });
  if (first == answers.end() || none_anywhere) return {};
  return fmt::format(
      "device auto: the CPU, because {} of {} cannot use a GPU; rank {}: {}",
      std::ranges::count_if(answers, [](const std::string& answer) { return !has_gpu(answer); }),
      counted(static_cast<std::int64_t>(answers.size()), "rank"), first - answers.begin(),
      first->size() > 1 ? first->substr(1) : "its host has no NVIDIA driver");
}

int compute_threads(const DeviceSettings& settings, int local_ranks) {
  return settings.threads > 0 ? settings.threads : std::max(1, cores_of_rank(local_ranks));
}

int spare_threads(const DeviceSettings& settings, const World& world, DeviceType device) {
  const int computing =
      device != DeviceType::kCpu ? 1 : compute_threads(settings, world.local_size());
  return std::max(1, cores_of_rank(world.local_size()) - computing);
}

std::shared_ptr<Backend> choose_backend(const DeviceSettings& settings, const OptimizerRule& rule,
                                        const Model& model, World& world,
                                        std::shared_ptr<Backend> before) {
  std::shared_ptr<Backend> backend;
  BackendSettings opened;
  opened.threads = compute_threads(settings, world.local_size());
  opened.local_rank = world.local_rank();
  opened.local_size = world.local_size();
  opened.tf32 = settings.tf32;
  opened.benchmark = settings.cudnn_benchmark;
  opened.deterministic = settings.deterministic;
  const std::string device = device_of_all(settings.type, world);
  if (device == "cuda") {
    on_all_ranks(world, [&] { backend = open_backend(DeviceType::kCuda, opened); });
    return backend;
  }
  const auto unsupported = model.unsupported(settings.compute, DeviceType::kCuda);
  if (device == "auto" && unsupported) {
    if (has_gpu_driver() && world.rank() == 0)
      log::info("device auto: the CPU, because of a layer: {}", unsupported->parts().sentence());
  } else if (device == "auto" && runs_on_gpu(rule)) {
    backend = gpu_on_every_rank(opened, world);
  } else if (device == "auto" && has_gpu_driver() && world.rank() == 0) {
    log::info(
        "device auto: the CPU, because the optimizer's plug-in has no GPU kernels "
        "(docs/extending.md)");
  }
  if (backend) return backend;
  on_all_ranks(world, [&] { backend = open_backend(DeviceType::kCpu, opened); });
  if (before && before->description() == backend->description()) return before;
  if (usable_cores() < opened.threads) {
    const std::string cores = counted(usable_cores(), "usable core");
    if (world.size() > 1)
      log::warning("{} threads on {}: mpirun may have bound this rank; use mpirun --bind-to none",
                   opened.threads, cores);
    else
      log::warning("{} threads on {}: more than one a core take turns; use fewer threads",
                   opened.threads, cores);
  }
  return backend;
}

bool choose_precision(DeviceSettings& settings, const Backend& backend, World& world) {
  const DType before = settings.compute;
  const bool cpu = backend.device() == DeviceType::kCpu;
  if (settings.precision == "auto") {
    double slow = cpu && !cpu::fast_bf16() ? 1.0 : 0.0;
    world.max(&slow, 1);  // machines may differ, formats may not
    settings.compute = slow > 0.0 ? DType::kFloat32 : DType::kBFloat16;
  }
  on_all_ranks(world, [&] {
    if (!cpu) return;
    if (settings.compute == DType::kFloat16) {
      fail(ExitCode::kUsage, "config", "precision: {}", fp16_needs_gpu());
    }
    if (settings.compute == DType::kBFloat16 && !cpu::fast_bf16()) {
      fail(ExitCode::kUsage, "config",
           "precision: bf16 needs a processor that multiplies it (AMX or AVX512_BF16), which {} "
           "does not; use fp32, auto, or a GPU",
           cpu::processor_name());
    }
  });
  return settings.compute != before;
}

DType expected_compute(const std::string& precision, const std::string& device) {
  if (precision == "fp64") return DType::kFloat64;
  if (precision == "bf16") return DType::kBFloat16;
  if (precision == "fp16") return DType::kFloat16;
  if (precision == "auto" && (device == "cuda" || cpu::fast_bf16())) return DType::kBFloat16;
  return DType::kFloat32;
}

std::string fp16_needs_gpu() {
  return fmt::format("fp16 needs a GPU; use {}", cpu::fast_bf16() ? "bf16 or fp32" : "fp32");
}

}  // namespace starling
