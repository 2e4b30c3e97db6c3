#include "apps/training/evaluate_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <iterator>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "apps/data/image_collate.h"
#include "apps/inference/description.h"
#include "apps/inference/hugging_face.h"
#include "apps/inference/model_file.h"
#include "apps/training/tasks/metric.h"
#include "comm/agreement.h"
#include "core/console.h"
#include "core/csv.h"
#include "core/file_io.h"
#include "core/safetensors.h"
#include "core/text.h"
#include "layers/functions.h"

namespace starling {
namespace {

constexpr std::string_view kTableBegin = "true class",
                           kSamplesBegin = "file,class,prediction,probability,loss\n",
                           kNumbersBegin = "file,target,prediction,error\n";

/// The result for one sample. Ranks send its bytes to rank 0.
struct SampleOutput {
  double loss;         ///< plain cross entropy; of numbers the difference's size
  double probability;  ///< of what is predicted; of numbers what is predicted
  std::int64_t sample;
  std::int32_t label, predicted;  ///< the latter -1 where an output is no number
  double target;                  ///< of numbers
};
static_assert(std::is_trivially_copyable_v<SampleOutput>);

/// Adds a batch's numbers, in the target's own unit.
void add_numbers(const TaskOutput& output, std::span<const std::int64_t> samples,
                 const DatasetInfo& data, std::vector<SampleOutput>& all) {
  const auto numbers = [&](const Tensor& given) {
    const Tensor wide = functions::in_format(given, DType::kFloat64, given.backend());
    std::vector<double> result(samples.size());
    given.backend().copy_to_host(wide, result.data());
    for (double& number : result) number = number * data.target_deviation + data.target_mean;
    return result;
  };
  const std::vector<double> given = numbers(output.outputs.value()),
                            wanted = numbers(output.targets);
  for (std::size_t i = 0; i < samples.size(); ++i)
    all.push_back({.loss = std::abs(given[i] - wanted[i]),
                   .probability = given[i],
                   .sample = samples[i],
                   .label = 0,
                   .predicted = 0,
                   .target = wanted[i]});
}

/// Adds a batch's. `separate`: outputs are a yes or no each, whose probability is the sigmoid.
void add_outputs(const TaskOutput& output, std::span<const std::int64_t> samples, bool separate,
                 std::vector<SampleOutput>& all) {
  const Tensor given = output.outputs.value();
  const Tensor wide = functions::in_format(given, DType::kFloat64, given.backend());
  const auto classes = static_cast<std::size_t>(given.shape().back());
  std::vector<double> scores(static_cast<std::size_t>(wide.elements()));
  std::vector<std::int32_t> labels(samples.size());
  given.backend().copy_to_host(wide, scores.data());
  given.backend().copy_to_host(output.targets, labels.data());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const std::span<const double> row(scores.data() + i * classes, classes);
    const auto best = std::ranges::max_element(row);
    double sum = 0.0;
    for (const double score : row) sum += std::exp(score - *best);
    const bool number = !std::isnan(sum);
    all.push_back({.loss = std::log(sum) + *best - row[static_cast<std::size_t>(labels[i])],
                   .probability = !number    ? sum
                                  : separate ? 1.0 / (1.0 + std::exp(-*best))
                                             : 1.0 / sum,
                   .sample = samples[i],
                   .label = labels[i],
                   .predicted = number ? static_cast<std::int32_t>(best - row.begin()) : -1,
                   .target = 0.0});
  }
}

/// The samples of all ranks as CSV, those with the largest loss first, on rank 0. Collective.
std::string samples_csv(const std::vector<SampleOutput>& own, const DataSettings& data,
                        Dataset::Split split, bool classes, World& world) {
  const std::string mine(reinterpret_cast<const char*>(own.data()),
                         own.size() * sizeof(SampleOutput));
  const std::vector<std::string> parts = world.all_gather(mine);
  if (world.rank() != 0) return {};
  std::vector<SampleOutput> all;
  for (const std::string& part : parts) {
    const std::size_t before = all.size();
    all.resize(before + part.size() / sizeof(SampleOutput));
    std::memcpy(all.data() + before, part.data(), part.size());
  }
  std::ranges::sort(all, [](const SampleOutput& a, const SampleOutput& b) {
    // What is no number is the worst.
    const bool none = std::isnan(a.loss), other_none = std::isnan(b.loss);
    if (none != other_none) return none;
    if (!none && a.loss != b.loss) return a.loss > b.loss;
    return a.sample < b.sample;
  });
  const std::vector<std::string>& names = data.info.class_names;
  std::string text(classes ? kSamplesBegin : kNumbersBegin);
  for (const SampleOutput& one : all) {
    const std::string name = csv_cell(data.dataset->name(split, one.sample));
    if (!classes) {
      text += fmt::format("{},{:.9g},{:.9g},{:.6g}\n", name, one.target, one.probability,
                          one.probability - one.target);
      continue;
    }
    text +=
        fmt::format("{},{},{},{:.6g},{:.6g}\n", name,
                    csv_cell(name_of_output(names, static_cast<std::size_t>(one.label))),
                    one.predicted < 0
                        ? ""
                        : csv_cell(name_of_output(names, static_cast<std::size_t>(one.predicted))),
                    one.probability, one.loss);
  }
  return text;
}

/// Classes of other names, or in another order, would be measured as errors.
void check_same_names(const SafetensorsFile& saved, const std::string& file,
                      const std::vector<std::string>& of_data) {
  // The file is another program's, or has no class names.
  if (saved.metadata.count(kConfigMetadata) == 0 || of_data.empty()) return;
  const std::vector<std::string> of_model = description_of(saved, file).classes;
  if (const auto k = first_other_class(of_model, of_data))
    fail(ExitCode::kUsage, "evaluate",
         "{}: its class {} is {}, the data's is {}; needed: data of the model's classes, in their "
         "order",
         file, *k, told_apart(of_model[*k]), told_apart(of_data[*k]));
}

}  // namespace

std::string class_table(const EvaluationResult& result, const std::vector<std::string>& names) {
  const Confusions& table = result.confusion;
  std::size_t width = 5;
  for (const std::string& name : names) width = std::max(width, shown(name).size());
  std::map<std::int64_t, std::int64_t> samples;
  for (const auto& [pair, count] : table.counts) samples[pair.first] += count;
  std::string text = fmt::format("{:<{}}  samples  accuracy\n", "class", width);
  for (std::int64_t c = 0; c < std::min(table.classes, std::ssize(names)); ++c) {
    const std::int64_t own = samples[c];
    text += fmt::format("{:<{}}  {:>7}  ", shown(names[static_cast<std::size_t>(c)]), width, own);
    text += own > 0 ? fmt::format("{:>6.2f} %\n", 100.0 * static_cast<double>(table.at(c, c)) /
                                                      static_cast<double>(own))
                    : std::string("       -\n");
  }
  return text;
}

std::string confusion_csv(const EvaluationResult& result, const std::vector<std::string>& names) {
  const Confusions& table = result.confusion;
  const auto name = [&](std::int64_t c) {
    return csv_cell(name_of_output(names, static_cast<std::size_t>(c)));
  };
  std::string text(kTableBegin);
  if (table.classes > Confusions::kMostInTable) {
    text += ",predicted class,samples\n";
    for (const auto& [pair, count] : table.counts)
      text += fmt::format("{},{},{}\n", name(pair.first),
                          pair.second < table.classes ? name(pair.second) : "no number", count);
    return text;
  }
  const bool lacks = table.lacks_numbers();
  for (std::int64_t c = 0; c < table.classes; ++c) text += "," + name(c);
  text += lacks ? ",no number\n" : "\n";
  for (std::int64_t r = 0; r < std::min(table.classes, std::ssize(names)); ++r) {
    text += name(r);
    for (std::int64_t c = 0; c < table.classes + (lacks ? 1 : 0); ++c)
      text += fmt::format(",{}", table.at(r, c));
    text += "\n";
  }
  return text;
}

ExitCode evaluate_model(const TrainOptions& options, TrainConfig& config, Backend& backend,
                        Transport& transport) {
  World& world = transport;
  const bool classes = counts_confusions(config.data.info, *config.model);
  const TensorInfo* target = config.data.info.find("target");
  const bool numbers = target && is_floating(target->dtype) && target->shape == Shape{1} &&
                       config.task->target() == "target";
  std::unique_ptr<AtomicFile> table, samples_table;
  on_all_ranks(world, [&] {
    if (!classes && !options.confusion.empty())
      fail(ExitCode::kUsage, "arguments",
           "--confusion {}: samples of this data set have no classes to confuse; leave it out",
           options.confusion);
    if (!classes && !numbers && !options.samples.empty())
      fail(ExitCode::kUsage, "arguments",
           "--samples {}: samples of this data set have neither a class nor a number to predict; "
           "leave it out",
           options.samples);
    if (options.samples == options.confusion && !options.samples.empty() &&
        !options.samples.starts_with("/dev/"))
      fail(ExitCode::kUsage, "arguments",
           "--samples and --confusion are both {}; give each a file of its own", options.samples);
    const std::string& file = options.evaluate;
    if (config.data.info.test_samples == 0 && !options.of_training) {
      fail(ExitCode::kUsage, "evaluate", "there are no test samples{}; needed: {}",
           options.test.empty() ? "" : " in " + options.test,
           options.test.empty() ? "a test set, as by --test PATH" : "at least one");
    }
    config.model->allocate(backend, config.device.dtype, config.device.compute);
    check_hugging_face_config(file, config.resolved.at("model"));
    const SafetensorsFile saved = read_described(file);
    load_model_tensors(saved, file, "", *config.model);
    check_same_names(saved, file, config.data.info.class_names);
    config.model->refresh_low();
    if (world.rank() != 0) return;
    if (!options.confusion.empty())
      table = open_output("--confusion", options.confusion, {{kTableBegin}, "confusion table"});
    if (!options.samples.empty())
      samples_table = open_output("--samples", options.samples,
                                  {{classes ? kSamplesBegin : kNumbersBegin}, "table of samples"});
  });
  if (world.rank() == 0) say(config.data.info.contents);
  const auto split = options.of_training ? Dataset::Split::kTrain : Dataset::Split::kTest;
  if (options.of_training) {
    DatasetInfo tested = config.data.info;
    tested.test_samples = tested.train_samples;
    tested.test_bytes.reset();  // unknown for training samples
    config.task->know_sizes(tested);
  }
  EvaluationLoader loader(*config.data.dataset, config.length.batch_size, world.rank(),
                          world.size(), backend, config.device.compute, 1, config.evaluate.views,
                          split);
  std::vector<SampleOutput> outputs;
  EachOutput each;
  if (!options.samples.empty()) {
    const bool separate = config.resolved["loss"].value("type", "") == "bce_with_logits";
    each = [&, separate](const TaskOutput& output, std::span<const std::int64_t> samples) {
      if (classes) return add_outputs(output, samples, separate, outputs);
      add_numbers(output, samples, config.data.info, outputs);
    };
  }
  const EvaluationResult result =
      evaluate(*config.task, *config.model, loader, backend, transport, classes, {}, each);
  const std::string samples_text =
      options.samples.empty() ? "" : samples_csv(outputs, config.data, split, classes, world);
  on_all_ranks(world, [&] {
    if (world.rank() != 0) return;
    std::exception_ptr unwritten;  // a full disk does not take the numbers with it
    const auto write = [&](AtomicFile* file, const std::string& csv) {
      if (!file) return;
      try {
        file->write(csv.data(), csv.size());
        file->commit();
      } catch (const Error&) {
        unwritten = std::current_exception();
      }
    };
    write(samples_table.get(), samples_text);
    if (classes) {
      const std::vector<std::string> names =
          config.data.info.names_of_classes(config.data.info.classes);
      write(table.get(), confusion_csv(result, names));
      answer(class_table(result, names));
    }
    nlohmann::json line{{"samples", result.samples}};
    if (images_of(config.data.info).pictures) line["bad_pictures"] = result.left_out;
    const std::string of = options.of_training ? "train_" : "test_";
    for (const MetricValue& metric : result.values) line[of + metric.name] = metric.value;
    answer("{}\n", line.dump());
    if (unwritten) std::rethrow_exception(unwritten);
    for (const MetricValue& metric : result.values) {
      if (std::isfinite(metric.value) || !metric.name.ends_with("loss")) continue;
      fail(ExitCode::kDiverged, "evaluate",
           "{}{} is {}: the model's outputs overflow; train it with a smaller learning rate", of,
           metric.name, metric.value);
    }
  });
  return ExitCode::kOk;
}

}  // namespace starling
