#include "apps/training/beginning.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "apps/inference/description.h"
#include "apps/inference/hugging_face.h"
#include "apps/inference/model_file.h"
#include "apps/inference/model_source.h"
#include "apps/training/config/given_config.h"
#include "apps/training/config/model_metadata.h"
#include "apps/training/config/plugins.h"
#include "apps/training/output/prometheus.h"
#include "apps/training/output_folder.h"
#include "apps/training/resume.h"
#include "apps/training/state/data_contents.h"
#include "apps/training/state/elastic.h"
#include "apps/training/state/init_file.h"
#include "apps/training/state/training_state.h"
#include "apps/training/timeline.h"
#include "comm/agreement.h"
#include "core/backend.h"
#include "core/error.h"
#include "core/file_io.h"
#include "core/log.h"
#include "core/text.h"

namespace starling {
namespace {

/// The initial model may have been trained on samples that this run would test it with.
void warn_of_known_tests(const TrainConfig& config) {
  const std::string& file = config.state.init.file;
  if (file.empty() || !config.data.info.test_share) return;
  const SafetensorsFile model = read_model_metadata(file);
  const auto of_model = model.metadata.find(kConfigMetadata);
  if (of_model == model.metadata.end() ||
      data_path_of(parse_json(of_model->second, file)) != data_path_of(config.resolved))
    return;
  const auto share = test_share_of(model, file);
  const auto& tests = config.data.info.test_share->most;
  if (!share || share->most.size() != tests.size() || share->by != config.data.info.test_share->by)
    return;
  const auto& held = share->most;
  const bool within = std::equal(held.begin(), held.end(), tests.begin(),
                                 [](const auto& kept, const auto& own) { return own <= kept; });
  if (within && share->seed == config.data.info.test_share->seed) return;
  log::info(
      "warning: init: {} was trained on some of the samples that are for tests here, as its run "
      "held out others; give its seed, {}, and no larger data.val_fraction than it had",
      file, share->seed);
}

/// Checks that a file can be written, without changing it.
void check_output(const char* key, const std::string& path, const OutputKind& kind) {
  std::error_code error;
  if (path.empty() ||
      (std::filesystem::exists(path, error) && !std::filesystem::is_regular_file(path, error) &&
       !std::filesystem::is_directory(path, error)))
    return;  // a device or a pipe, which is not opened for a look
  open_output(key, path, kind);
}

}  // namespace

void open_data(const TrainOptions& options, TrainConfig& config, const RankLayout& site) {
  const std::vector<TensorInfo> declared = config.data.info.tensors;
  if (!options.evaluate.empty()) {
    const std::string& file = options.evaluate;
    const SafetensorsFile model = read_described(file, false);
    if (auto share = test_share_of(model, file)) config.data.dataset->use_test_share(*share);
  }
  const auto opened = [&] {
    return datasets().whose(config.resolved["data"].value("type", "")) + ": open()";
  };
  named("data", opened, [&] { config.data.dataset->open(); });
  config.data.info = config.data.dataset->info();
  for (const std::string& name : config.data.info.class_names) {
    if (!is_utf8(name))
      fail(ExitCode::kUsage, "data",
           "the class {} has a name that is not UTF-8, which model files cannot keep; rename it",
           shown(name));
  }
  require(config.data.info.tensors == declared, "data",
          "a data set changed its tensors or classes when it was opened");
  config.task->know_sizes(config.data.info);
  tell_classes(config);
  if (!options.evaluate.empty()) return;
  check_data_size(config, source_of(options), site);
  warn_of_known_tests(config);
}

void check_outputs(const TrainConfig& config, bool first_rank) {
  // An older version's timeline began with its events
  check_output("trace", config.output.trace,
               {{kTimelineBegin, "{\"traceEvents\":[\n"}, "timeline of a run"});
  if (first_rank)
    check_output("prometheus", config.output.prometheus,
                 {{PrometheusFile::kBegin}, "numbers of a run"});
}

void check_start(TrainConfig& config) {
  if (const InitialFile& init = config.state.init; !init.file.empty()) {
    check_hugging_face_config(
        init.file, config.resolved.at("model"),
        [&](const std::string& tensor) { return keeps_own(init, *config.model, tensor); });
    check_initial_file(init, *config.model, config.device.dtype, config.device.compute);
    config.companions = check_initial_tokens(init, *config.model, config.data.info);
  }
  if (!config.evaluate.prompt.empty() && description_of(config).tokenizer.empty())
    fail(ExitCode::kUsage, "config", {.file = config.source, .key = "evaluate.prompt"},
         "is a text, and nobody knows the tokens of this data; give data.tokenizer, or leave it "
         "out");
}

void check_beginning(const TrainOptions& options, TrainConfig& config, const RankLayout& site,
                     World& world) {
  std::string run;
  std::int64_t step = -1;
  on_all_ranks(world, [&] {
    if (!options.resume.empty()) std::tie(run, step) = newest_of_run(options);
    if (step < 0 && world.rank() == 0) check_start(config);
  });
  if (step < 0) return;
  const CheckpointFolder checkpoints(run);
  const SafetensorsFile state =
      read_newest_state(checkpoints, options.elastic, site, world, step, config, false);
  on_all_ranks(world, [&] {
    const bool mean = is_mean_of_ranks(state);
    const std::string source = checkpoints.rank_file(step, mean ? 0 : world.rank());
    check_resumable(state, source, config.resolved, config.written, world.size(),
                    config.device.compute, mean, &config.data.info);
    config.model->allocate(meta_backend(), config.device.dtype);
    load_model_tensors(state, source, "model.", *config.model);
    config.model->drop_memory();
  });
}

}  // namespace starling
