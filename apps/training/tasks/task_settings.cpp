#include "apps/training/tasks/task_settings.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "apps/data/image_collate.h"
#include "apps/training/tasks/metric.h"
#include "core/error.h"
#include "core/typed_section.h"
#include "layers/functions.h"

namespace starling {

std::unique_ptr<Task> read_task(ConfigSection& root, const DatasetInfo& data,
                                std::vector<std::string>& metrics) {
  ConfigSection section =
      root.section("task", "what is trained: tensors of a batch in, loss and metrics out");
  const std::string type =
      section.text("type", data.task, "see `--list tasks`; default: what the data set is for");
  std::unique_ptr<Task> task = make_typed(tasks(), type, section, data);
  task->set_name(tasks().whose(type));
  metrics = section.texts("metrics", task->usual_metrics(),
                          "what tests measure, see `--list metrics`; default: the task's own");
  section.finish();
  return task;
}

namespace {

/// `loss.class_weights`, of a loss that has been made for this task.
LossSettings read_class_weights(ConfigSection& section, const std::string& type,
                                const DatasetInfo& data, const Model* model, const Task* task,
                                Loss* loss) {
  const char* key = "class_weights";
  const nlohmann::json given =
      section.raw(key, "list of numbers or text",
                  "how much each class counts: a number >= 0 for each output, or \"balanced\": "
                  "samples / (classes × samples of the class)");
  if (given.is_null()) return {};
  if (!loss->takes_class_weights())
    section.error(key, "is not for {}; allowed with cross_entropy, focal", type);
  if (task->ignores())
    section.error(key,
                  "is not for targets that may count for nothing, as this task's; leave it out");
  const TensorInfo* targets = data.find(task->target());
  if (!targets || targets->dtype != DType::kInt32)
    section.error(key, "is for classes, and the targets of this task are numbers; leave it out");
  const std::int64_t outputs = model->output_shape().back();
  if (given.is_string()) {
    section.choice(key, "", {"balanced"}, "");
    if (data.classes == 0)
      section.error(key,
                    "is balanced, but a sample has no one class here; needed: a list of {} numbers",
                    outputs);
    // A trace on shapes is to find that there are some; which, the open data says.
    loss->set_class_weights(std::vector<double>(static_cast<std::size_t>(outputs), 1.0));
    return {.balanced_classes = true};
  }
  const std::vector<double> weights = section.numbers(key, {}, Range::at_least(0.0), "");
  if (static_cast<std::int64_t>(weights.size()) != outputs)
    section.error(key, "has {} numbers; needed: {}, one for each output", weights.size(), outputs);
  if (std::ranges::all_of(weights, [](double w) { return w == 0.0; }))
    section.error(key, "has zeros alone, so nothing would count; needed: a number above 0");
  loss->set_class_weights(weights);
  return {};
}

}  // namespace

std::vector<double> balanced_weights(const std::vector<std::int64_t>& samples_of_classes,
                                     std::int64_t outputs) {
  double samples = 0.0, classes = 0.0;
  for (const std::int64_t count : samples_of_classes) {
    samples += static_cast<double>(count);
    classes += count > 0 ? 1.0 : 0.0;
  }
  std::vector<double> weights(static_cast<std::size_t>(outputs), 0.0);
  for (std::size_t c = 0; c < samples_of_classes.size(); ++c) {
    if (samples_of_classes[c] > 0)
      weights[c] = samples / (classes * static_cast<double>(samples_of_classes[c]));
  }
  return weights;
}

LossSettings read_loss(ConfigSection& root, const DatasetInfo& data, const Model* model,
                       const std::vector<std::string>& metric_names, Task* task) {
  ConfigSection loss = root.section("loss", "what is minimised");
  const std::string type =
      loss.text("type", task->usual_loss(), "see `--list losses`; default: the task's own");
  std::unique_ptr<Loss> made = make_typed(losses(), type, loss);
  const LossSettings settings = read_class_weights(loss, type, data, model, task, made.get());
  if (task->ignores()) {
    if (!made->takes_ignored())
      loss.error("type",
                 "is {}, which leaves no target out, and some of this data may be {}; allowed: "
                 "cross_entropy, focal",
                 type, functions::kIgnoreIndex);
    made->ignore();
  }
  task->set_loss(std::move(made), losses().whose(type));
  loss.finish();
  std::vector<std::unique_ptr<Metric>> chosen;
  for (const std::string& name : metric_names)
    chosen.push_back(metrics().make(name, root.path("task.metrics"), model->output_shape().back()));
  const TensorInfo* targets = data.find(task->target());
  // Metrics of no samples say what their values will be called.
  std::map<std::string, std::string> givers;
  for (std::size_t m = 0; m < chosen.size(); ++m) {
    const std::string& name = metric_names[m];
    named("metric", metrics().whose(name), [&] {
      const std::int64_t sums = chosen[m]->sums();
      if (sums < 0)
        fail(ExitCode::kUsage, "metric", {.key = metrics().whose(name)},
             "it keeps {} sums; allowed: 0 or more", sums);
      const std::string needed =
          targets ? chosen[m]->needs(model->output_shape(), *targets) : std::string();
      if (!needed.empty()) {
        root.error("task.metrics",
                   "{} does not fit the task {}, whose targets are {} of shape {} for outputs of "
                   "shape {}; needed: {}",
                   name, root.resolved()["task"].value("type", ""), name_of(targets->dtype),
                   targets->shape.text(), model->output_shape().text(), needed);
      }
      for (const MetricValue& value : chosen[m]->of_tests(data)) {
        const auto [giver, added] = givers.emplace(value.name, name);
        if (!added || value.name.empty()) {
          root.error("task.metrics",
                     "{} and {} both give a number named '{}'; each needs a name of its own",
                     metrics().whose(giver->second), metrics().whose(name), value.name);
        }
      }
    });
  }
  task->set_metrics(std::move(chosen));
  return settings;
}

void settle_mixing(const ConfigSection& root, const Augmenters& augment, const DatasetInfo& data,
                   const Model& model, std::int64_t batch_size, Task& task) {
  const std::string key = mixing_key(augment);
  if (key.empty()) return;
  const std::string path = "data.augment." + key;
  const TensorInfo* tensor = data.find(task.target());
  if (!tensor || tensor->dtype != DType::kInt32 || tensor->shape.rank() != 0) {
    root.error(
        path,
        "mixes classes, but the task has no one class for each image (task.type); leave it out");
  }
  if (!task.loss()->takes_shares()) {
    root.error(path,
               "makes targets that are shares of classes, which this loss does not take "
               "(loss.type); allowed with cross_entropy, bce_with_logits");
  }
  if (batch_size < 2)
    root.error("batch_size", "is {}, but {} mixes the images of a batch; needed: >= 2", batch_size,
               path);
  task.share_targets(model.output_shape().back());
}

std::unique_ptr<Model> read_model(ConfigSection& root, const DatasetInfo& data, const Task* task) {
  ConfigSection section = root.section("model", "the network");
  if (!root.has("model")) root.missing("model", R"(an object such as {"type": "resnet20"})");
  std::unique_ptr<Model> model = make_model(section, task->input(), task->outputs());
  task->check_model(*model, section);
  const ImageCollate& images = images_of(data);
  if (images.test_image) model->check_takes(*images.test_image);
  for (const std::int64_t side :
       images.growth ? images.growth->sides() : std::vector<std::int64_t>{}) {
    model->check_takes(Shape{side, side, 3});
  }
  if (model->parameters().empty())
    section.error("", "has no parameters, so there is nothing to train");
  return model;
}

EvaluateSettings read_evaluate(ConfigSection& root, const DatasetInfo& data) {
  ConfigSection evaluate =
      root.section("evaluate", "tests of the mean model; one more comes at the end");
  EvaluateSettings settings{.interval = read_interval(evaluate, "test"), .views = {}, .prompt = {}};
  const std::string tta =
      evaluate.choice("tta", "none", test_view_names(),
                      "what tests and starling-predict show of an image, before the mean of the "
                      "outputs is taken; mirror: it and its mirror image; mirror_translate: both, "
                      "and both moved by a pixel to either side with half the weight each");
  evaluate.read("prompt", settings.prompt,
                "of a language model: a text that each test goes on with, told in metrics.jsonl "
                "and on the terminal; drawn as starling-predict does by itself");
  evaluate.read("prompt_tokens", settings.prompt_tokens, Range::closed(1, 1 << 20),
                "how many tokens are added to prompt at most");
  if (!settings.prompt.empty() && !data.find("tokens"))
    evaluate.error("prompt",
                   "is for a language model, and samples of this data have no tokens; "
                   "leave it out");
  settings.views = test_views(tta);
  if (settings.views.size() > 1 && !data.find("image"))
    evaluate.error(
        "tta", "is {}, which is for images, and this data set has none; allowed here: none", tta);
  evaluate.finish();
  return settings;
}

}  // namespace starling
