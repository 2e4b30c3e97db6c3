#include "apps/trainer/evaluate_model.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <exception>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/inference/description.h"
#include "apps/inference/model_file.h"
#include "apps/trainer/data/image_collate.h"
#include "comm/agreement.h"
#include "core/console.h"
#include "core/csv.h"
#include "core/file_io.h"
#include "core/safetensors.h"
#include "core/text.h"

namespace starling {
namespace {

/// The counts as a table: so many columns for outputs, and one for what is no number.
struct ConfusionTable {
  explicit ConfusionTable(const EvaluationResult& result) : counts(result.confusion) {
    while (outputs * (outputs + 1) < counts.size()) ++outputs;
  }
  double at(std::size_t label, std::size_t predicted) const {
    return counts[label * (outputs + 1) + predicted];
  }
  double row(std::size_t label) const {
    double sum = 0.0;
    for (std::size_t c = 0; c <= outputs; ++c) sum += at(label, c);
    return sum;
  }
  bool lacks_numbers() const {
    for (std::size_t c = 0; c < outputs; ++c) {
      if (at(c, outputs) > 0.0) return true;
    }
    return false;
  }
  const std::vector<double>& counts;
  std::size_t outputs = 0;
};

constexpr std::string_view kTableBegin = "true class";

/// The table's file, opened before hours go into what it is to hold. A file that is there and holds
/// something else is left alone.
std::unique_ptr<AtomicFile> open_table(const std::string& path) {
  const RegularFile there(path);
  if (there.fault().empty() && there.bytes() > 0) {
    std::string begin(kTableBegin.size(), '\0');
    if (::read(there.descriptor(), begin.data(), begin.size()) !=
            static_cast<ssize_t>(begin.size()) ||
        begin != kTableBegin) {
      fail(ExitCode::kUsage, "arguments",
           "--confusion {}: the file is there already and holds no confusion table; name another "
           "one",
           shown(path, 200));
    }
  }
  return std::make_unique<AtomicFile>(path);
}

std::string name_at(const std::vector<std::string>& names, std::size_t c) {
  return c < names.size() ? names[c] : std::to_string(c);
}

}  // namespace

std::string evaluated_file(const std::string& given) {
  std::error_code error;
  if (!std::filesystem::is_directory(given, error)) return given;
  const std::string file = given + "/model.safetensors";
  if (!std::filesystem::is_regular_file(file, error)) {
    fail(ExitCode::kUsage, "arguments",
         "--evaluate {}: the folder has no model.safetensors; needed: a run that has ended, or a "
         "model file",
         given);
  }
  return file;
}

bool counts_confusions(const TrainConfig& config) {
  const TensorInfo* label = config.data.info.find("label");
  return label && label->shape.rank() == 0 && label->classes > 0 &&
         config.model->output_shape().rank() == 1;
}

std::string class_table(const EvaluationResult& result, const std::vector<std::string>& names) {
  const ConfusionTable table(result);
  std::size_t width = 5;
  for (const std::string& name : names) width = std::max(width, shown(name).size());
  std::string text = fmt::format("{:<{}}  samples  accuracy\n", "class", width);
  for (std::size_t c = 0; c < std::min(table.outputs, names.size()); ++c) {
    const double samples = table.row(c);
    text +=
        fmt::format("{:<{}}  {:>7}  ", shown(names[c]), width, static_cast<std::int64_t>(samples));
    text += samples > 0.0 ? fmt::format("{:>6.2f} %\n", 100.0 * table.at(c, c) / samples)
                          : std::string("       -\n");
  }
  return text;
}

std::string confusion_csv(const EvaluationResult& result, const std::vector<std::string>& names) {
  const ConfusionTable table(result);
  const bool lacks = table.lacks_numbers();
  std::string text(kTableBegin);
  for (std::size_t c = 0; c < table.outputs; ++c) text += "," + csv_cell(name_at(names, c));
  text += lacks ? ",no number\n" : "\n";
  for (std::size_t r = 0; r < std::min(table.outputs, names.size()); ++r) {
    text += csv_cell(names[r]);
    for (std::size_t c = 0; c < table.outputs + (lacks ? 1 : 0); ++c)
      text += fmt::format(",{}", static_cast<std::int64_t>(table.at(r, c)));
    text += "\n";
  }
  return text;
}

namespace {

/// Classes of other names, or in another order, would be measured as errors.
void check_same_names(const SafetensorsFile& saved, const std::string& file,
                      const std::vector<std::string>& of_data) {
  // The file is another program's, or has names that nobody knows.
  if (saved.metadata.count(kConfigMetadata) == 0 || of_data.empty()) return;
  const std::vector<std::string> of_model = description_of(saved, file).classes;
  for (std::size_t k = 0; k < std::min(of_model.size(), of_data.size()); ++k) {
    if (of_model[k] == of_data[k]) continue;
    fail(ExitCode::kUsage, "evaluate",
         "{}: its class {} is {}, the data's is {}; needed: data of the model's classes, in their "
         "order",
         file, k, told_apart(of_model[k]), told_apart(of_data[k]));
  }
}

}  // namespace

ExitCode evaluate_model(const TrainOptions& options, TrainConfig& config, Backend& backend,
                        Transport& transport) {
  World& world = transport;
  const bool classes = counts_confusions(config);
  std::unique_ptr<AtomicFile> table;
  together(world, [&] {
    if (!classes && !options.confusion.empty()) {
      fail(ExitCode::kUsage, "arguments",
           "--confusion {}: samples of this data set have no classes to confuse; leave it out",
           options.confusion);
    }
    const std::string file = evaluated_file(options.evaluate);
    config.model->allocate(backend, config.device.dtype, config.device.compute);
    const SafetensorsFile saved = read_safetensors(file);
    load_model_tensors(saved, file, "", *config.model);
    check_same_names(saved, file, config.data.info.class_names);
    config.model->refresh_low();
    if (world.rank() == 0 && !options.confusion.empty()) table = open_table(options.confusion);
  });
  EvaluationLoader loader(*config.data.dataset, config.length.batch_size, world.rank(),
                          world.size(), backend, config.device.compute, 1, config.evaluate.views);
  const EvaluationResult result =
      evaluate(*config.task, *config.model, loader, backend, transport, classes);
  together(world, [&] {
    if (world.rank() != 0) return;
    std::exception_ptr unwritten;  // a full disk does not take the numbers with it
    if (classes) {
      const std::vector<std::string> names =
          config.data.info.names_of_classes(config.data.info.classes);
      if (table) {
        const std::string csv = confusion_csv(result, names);
        try {
          table->write(csv.data(), csv.size());
          table->commit();
        } catch (const Error&) {
          unwritten = std::current_exception();
        }
      }
      answer(class_table(result, names));
    }
    nlohmann::json line{{"samples", result.samples}};
    if (images_of(config.data.info).pictures) line["bad_pictures"] = result.left_out;
    for (const MetricValue& metric : result.values) line["test_" + metric.name] = metric.value;
    answer("{}\n", line.dump());
    if (unwritten) std::rethrow_exception(unwritten);
    for (const MetricValue& metric : result.values) {
      if (result.samples == 0 || std::isfinite(metric.value) || !metric.name.ends_with("loss"))
        continue;
      fail(ExitCode::kDiverged, "evaluate",
           "test_{} is {}: the model's outputs overflow; train it with a smaller learning rate",
           metric.name, metric.value);
    }
  });
  return ExitCode::kOk;
}

}  // namespace starling
