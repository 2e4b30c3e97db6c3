#include "tests/cudnn/model_calls.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "apps/training/config/plugins.h"
#include "apps/training/config/train_config.h"
#include "core/autograd.h"
#include "core/config.h"
#include "core/forwarding_backend.h"
#include "core/operations/attention.h"
#include "core/operations/convolutions.h"
#include "layers/layer.h"

namespace starling::testing {

namespace {

/// Notes what cuDNN would be asked for.
class Listener final : public ForwardingBackend {
 public:
  using ForwardingBackend::ForwardingBackend;
  std::string model;
  std::map<cuda::GraphSpec, std::string> graphs;

  void issue(const Conv2dForward& args) override { note(args); }
  void issue(const Conv2dBackwardData& args) override { note(args); }
  void issue(const Conv2dBackwardWeights& args) override { note(args); }
  void issue(const AttentionForward& args) override { note(args); }
  void issue(const AttentionBackward& args) override { note(args); }

 private:
  template <class Args>
  void note(const Args& args) {
    std::string why;
    if (const auto spec = cuda::spec_of(args, why)) graphs.emplace(*spec, model);
  }
};

}  // namespace

TracedModel grouped_model() {
  return {"groups",
          R"({"type": "sequential", "num_classes": 10, "layers": [
    {"type": "conv2d", "out_channels": 32, "kernel_size": 3, "padding": 1}, {"type": "relu"},
    {"type": "conv2d", "out_channels": 64, "kernel_size": 3, "stride": 2, "padding": 1, "groups": 4}, {"type": "batch_norm"}, {"type": "relu"},
    {"type": "conv2d", "out_channels": 64, "kernel_size": 3, "padding": 2, "dilation": 2, "bias": false}, {"type": "batch_norm"}, {"type": "relu"},
    {"type": "conv2d", "out_channels": 64, "kernel_size": 3, "padding": 1, "groups": 64}, {"type": "relu"},
    {"type": "global_avg_pool"}, {"type": "linear", "out_features": 10}]})",
          {32, 32, 3},
          64};
}

std::vector<TracedModel> configured_models() {
  register_builtins();
  std::vector<TracedModel> models;
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(STARLING_CONFIGS)) {
    if (entry.path().extension() == ".json") files.insert(entry.path());
  }
  for (const std::filesystem::path& file : files) {
    nlohmann::json json = nlohmann::json::parse(std::ifstream(file));
    nlohmann::json alone = json;
    alone.erase("sync");  // the topology may want more ranks than one
    TrainConfig config = read_train_config(alone, file.string(), {});
    TracedModel model{.name = file.filename().string(),
                      .json = json["model"].dump(),
                      .input = config.task->input(),
                      .batch = config.length.batch_size,
                      .task = std::move(config.task)};
    const std::int64_t samples = config.data.info.test_samples;  // 0 of tokens: counted when opened
    for (const std::int64_t ranks : {1, 2, 4}) {
      if (samples < ranks) continue;
      for (std::int64_t rank = 0; rank < ranks; ++rank) {
        const std::int64_t own = (samples - rank + ranks - 1) / ranks,
                           batch = std::min(own, config.length.batch_size);
        model.evaluated.insert(batch);
        if (own % batch != 0) model.evaluated.insert(own % batch);
      }
    }
    models.push_back(std::move(model));
  }
  return models;
}

std::map<cuda::GraphSpec, std::string> trace_graphs(const std::vector<TracedModel>& models,
                                                    DType dtype) {
  register_builtin_layers();
  register_builtin_models();
  std::map<cuda::GraphSpec, std::string> graphs;
  for (const TracedModel& traced : models) {
    const auto meta = make_meta_backend();
    Listener listener(*meta);
    listener.model = traced.name;
    const nlohmann::json config = nlohmann::json::parse(traced.json);
    ConfigSection section(config, "model");
    const std::unique_ptr<Model> model = make_model(section, traced.input);
    section.finish();
    model->allocate(listener, DType::kFloat32, dtype);
    Tape tape(listener);
    Pass pass{.backend = listener, .tape = &tape, .training = true};
    std::shared_ptr<Task> task = traced.task;
    if (!task) task = classification_task(model->input_shape(), model->output_shape().back());
    const auto batch_of = [&](std::int64_t samples) {
      return empty_batch(task->tensors(), listener, samples, dtype);
    };
    training_pass(*task, *model, batch_of(traced.batch), pass);
    for (const std::int64_t batch : traced.evaluated) {
      Pass evaluation{listener};
      task->predict(*model, batch_of(batch), evaluation);
    }
    graphs.merge(listener.graphs);  // what is there stays
  }
  return graphs;
}

}  // namespace starling::testing
