#include "apps/training/beginning.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <system_error>
#include <tuple>
#include <utility>
#include <vector>

#include "apps/inference/description.h"
#include "apps/inference/hugging_face.h"
#include "apps/inference/model_file.h"
#include "apps/inference/model_source.h"
#include "apps/training/config/given_config.h"
#include "apps/training/config/model_metadata.h"
#include "apps/training/output/metrics.h"
#include "apps/training/output_folder.h"
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

/// The names of the parameters that are trained.
std::set<std::string> names_of_trained(const Model& model) {
  std::set<std::string> names;
  for (const Parameter* parameter : model.parameters()) {
    if (parameter->trainable) names.insert(parameter->name);
  }
  return names;
}

/// Whether a tensor of a checkpoint is one of these parameters, or a state of it.
bool is_of(const std::string& name, const std::set<std::string>& parameters) {
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    if (parameters.contains(name.substr(dot + 1))) return true;
  }
  return false;
}

struct ReadCheckpoint {
  int made = 0, replica = 1;  ///< ranks that made it, and sync.replica then
  bool others = false;        ///< all files are to be averaged
  std::string source;         ///< rank 0's file
  RankFiles files;
};

/// The newest checkpoint that is whole on all ranks; `step` becomes its step. One line says which
/// damaged ones were left out. Where none is whole, the error is the newest's. Collective.
ReadCheckpoint read_newest_checkpoint(const CheckpointFolder& checkpoints, const Model& model,
                                      const RankLayout& site, World& world, std::int64_t& step,
                                      bool elastic, bool sets_aside) {
  // The first rank of a replica reads what its ranks share.
  std::set<std::string> shared;
  if (world.rank() % site.replica > 0) shared = names_of_trained(model);
  const auto left_out = [&](const std::string& name) { return is_of(name, shared); };
  std::optional<AgreedError> first;
  std::vector<std::int64_t> damaged;
  while (true) {
    ReadCheckpoint state;
    const auto error = try_on_all_ranks(world, [&] {
      state.made = checkpoints.ranks(step);
      state.source = checkpoints.rank_file(step, 0);
      const CheckpointFile made = checkpoints.open(step);
      state.replica =
          saved_replica(made.read(0, [](const std::string&) { return true; }), state.source);
      state.others = elastic && state.made > 0 &&
                     (state.made != world.size() || state.replica != site.replica);
      // Without --elastic check_resumable() says on rank 0 what is not as it was.
      for (int rank = world.rank(); rank < std::max(state.made, 1); rank += world.size()) {
        state.files.emplace_back(
            checkpoints.rank_file(step, rank),
            state.others || shared.empty() ? made.read(rank) : made.read(rank, left_out));
        if (!state.others) break;
      }
    });
    if (!error) {
      on_all_ranks(world, [&] {
        if (world.rank() != 0 || damaged.empty()) return;
        log::warning("{}; going on from step {}, the newest whole checkpoint", first->message(),
                     step);
        for (const std::int64_t bad : damaged) {
          if (!sets_aside) break;
          const std::string reason = checkpoints.set_aside(bad);
          if (!reason.empty())
            log::warning("{} is damaged and cannot be renamed: {}", checkpoints.step_folder(bad),
                         reason);
        }
      });
      return state;
    }
    if (!first) first = *error;
    if (error->code() != ExitCode::kUsage) throw AgreedError(*error);
    std::int64_t before = -1;
    if (world.rank() == 0) before = checkpoints.newest(step).value_or(-1);
    world.broadcast(&before, sizeof before, 0);
    if (before < 0) throw AgreedError(*first);
    damaged.push_back(step);
    step = before;
  }
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
    config.companions = check_initial_meaning(init, *config.model, config.data.info);
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

SafetensorsFile read_newest_state(const CheckpointFolder& checkpoints, bool elastic,
                                  const RankLayout& site, World& world, std::int64_t& step,
                                  TrainConfig& config, bool sets_aside) {
  ReadCheckpoint checkpoint =
      read_newest_checkpoint(checkpoints, *config.model, site, world, step, elastic, sets_aside);
  SafetensorsFile state;
  const bool others = checkpoint.others;
  // On ranks beyond those that made it, which check_resumable() refuses on rank 0
  const bool none = !others && checkpoint.files.empty();
  if (others) {
    const std::set<std::string> parameters = names_of_trained(*config.model);
    const bool needs_weights = config.sync.algorithm.topology == TopologyKind::kColumnStochastic;
    state = mean_of_ranks(std::move(checkpoint.files), checkpoint.made, parameters, needs_weights,
                          world);
  } else if (!none) {
    checkpoint.source = checkpoint.files.front().first;
    state = std::move(checkpoint.files.front().second);
  }
  on_all_ranks(world, [&] {
    if (none) return;
    std::vector<Stretch>& stretches = config.length.stretches;
    stretches = saved_stretches(state, checkpoint.source);
    // A replica counts as one rank, with the batch of all of its ranks
    const std::int64_t asked = config.length.batch_size * site.replica,
                       made = saved_config(state, checkpoint.source)
                                  .value("batch_size", config.length.batch_size) *
                              checkpoint.replica;
    const int ranks = site.replicas().ranks, ranks_then = checkpoint.made / checkpoint.replica;
    if (others && ranks_then == ranks && made == asked) return;
    if (!others && (made == asked || checkpoint.made != site.ranks)) return;
    if (stretches.empty()) stretches = {{.ranks = ranks_then, .batch_size = made}};
    stretches = continued(std::move(stretches), steps_in(state, checkpoint.source), ranks,
                          config.state.elastic, made == asked ? 0 : asked, site.replica);
  });
  return state;
}

}  // namespace starling
