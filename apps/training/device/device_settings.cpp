#include "apps/training/device/device_settings.h"

#include <nlohmann/json.hpp>

#include "apps/training/device/device.h"

namespace starling {
namespace {

/// A word or a boolean.
GraphChoice read_cuda_graphs(ConfigSection& root) {
  const std::string key = "cuda_graphs",
                    doc =
                        "on GPUs: whole steps are captured as CUDA graphs and replayed; auto: "
                        "where possible, otherwise one line says why not; true: what is known "
                        "beforehand to make it impossible is an error. No effect on a CPU";
  if (!root.has(key)) {
    root.choice(key, "auto", {"auto", "true", "false"}, doc);
    return GraphChoice::kAuto;
  }
  const nlohmann::json graphs = root.raw(key, "`auto` or boolean", doc);
  if (graphs == true) return GraphChoice::kOn;
  if (graphs != false && graphs != "auto")
    root.error(key, "is {}; allowed: auto, true, false", graphs.dump());
  return graphs == false ? GraphChoice::kOff : GraphChoice::kAuto;
}

}  // namespace

DeviceSettings read_device(ConfigSection& root) {
  DeviceSettings settings;
  settings.type = root.choice("device", "auto", {"auto", "cpu", "cuda"},
                              "auto: GPUs if every rank of every host gets one, else the CPU");
  settings.precision = root.choice(
      "precision", "fp32", {"auto", "fp32", "fp64", "bf16", "fp16"},
      "number format of the computation; bf16 and fp16 keep fp32 masters of the parameters; auto: "
      "bf16 where the device is fast in it, else fp32; fp64 is for checks");
  settings.dtype = settings.precision == "fp64" ? DType::kFloat64 : DType::kFloat32;
  settings.compute = expected_compute(settings.precision, settings.type);
  if (settings.type == "cpu" && settings.compute == DType::kFloat16)
    root.error("precision", "{}", fp16_needs_gpu());
  root.read("threads", settings.threads, Range::closed(0, 4096),
            "compute threads of a rank; 0: usable cores / ranks on the host");
  root.read("deterministic", settings.deterministic,
            "only algorithms that give the same bits in every run; `async` needs false");
  root.read("tf32", settings.tf32, "on GPUs: fp32 matrix products may use TF32");
  root.read("cudnn_benchmark", settings.cudnn_benchmark,
            "on GPUs: time the candidate algorithms of each convolution");
  settings.cuda_graphs = read_cuda_graphs(root);
  root.read("recompute", settings.recompute,
            {{"auto", std::nullopt},
             {"none", Recompute::kNone},
             {"cheap", Recompute::kCheap},
             {"block", Recompute::kBlock}},
            "what the backward pass computes again instead of keeping it, to the same bits: norms "
            "and activations (cheap), or whole blocks of the model (block), of which their inputs "
            "alone are kept; auto: cheap on a CPU, none on a GPU");
  return settings;
}

}  // namespace starling
