#include "apps/inference/inference.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <numeric>
#include <optional>

#include "apps/inference/description.h"
#include "apps/inference/generation.h"
#include "apps/inference/hugging_face.h"
#include "apps/inference/model_file.h"
#include "apps/inference/model_source.h"
#include "apps/inference/plugins.h"
#include "apps/inference/test_views.h"
#include "apps/pictures/picture.h"
#include "apps/text/chat.h"
#include "apps/text/tokenizer.h"
#include "core/autograd.h"
#include "core/error.h"
#include "core/host.h"
#include "core/log.h"
#include "core/operations/pointwise.h"
#include "core/text.h"
#include "kernels/open_backend.h"
#include "layers/layer.h"

namespace starling {
namespace {

struct Formats {
  DType parameters = DType::kFloat32, activations = DType::kFloat32;
};

Formats formats_of(const InferenceOptions& options) {
  if (options.precision == "fp32") return {};
  if (options.precision == "fp64") return {DType::kFloat64, DType::kFloat64};
  if (options.precision == "bf16") return {DType::kFloat32, DType::kBFloat16};
  if (options.precision == "fp16" && options.device == "cuda")
    return {DType::kFloat32, DType::kFloat16};
  fail(ExitCode::kUsage, "inference",
       "precision is {}; allowed: fp32, fp64, bf16, and fp16 on a GPU", options.precision);
}

std::unique_ptr<Backend> backend_of(const InferenceOptions& options) {
  if (options.device != "cpu" && options.device != "cuda")
    fail(ExitCode::kUsage, "inference", "device is {}; allowed: cpu, cuda", options.device);
  if (options.threads < 0)
    fail(ExitCode::kUsage, "inference", "threads is {}; allowed: >= 0", options.threads);
  const int threads = options.threads > 0 ? options.threads : usable_cores();
  return open_backend(options.device == "cuda" ? DeviceType::kCuda : DeviceType::kCpu, threads);
}

/// Views of the run's evaluate.tta; models of before that key were tested without.
std::vector<TestView> described_views(const nlohmann::json& config, const std::string& source) {
  const auto evaluate = config.find("evaluate");
  if (evaluate == config.end() || !evaluate->is_object() || !evaluate->contains("tta"))
    return test_views("none");
  ConfigSection section(*evaluate, source + ": starling.config: evaluate");
  return test_views(section.choice("tta", "none", test_view_names(), ""));
}

/// Whether a key of the run's config has this value; files of before that key have none.
bool says(const nlohmann::json& config, const char* key, const char* value) {
  const nlohmann::json::json_pointer place(key);
  return config.contains(place) && config[place] == value;
}

class LoadedModel final : public InferenceModel {
 public:
  LoadedModel(const std::string& path, const InferenceOptions& options)
      : formats_(formats_of(options)) {
    const ModelSource found = find_model(path);
    source_ = found.path;
    if (!found.told.empty()) log::info("{}", found.told);
    register_builtin_layers();
    register_builtin_models();
    load_plugins(options.plugins);
    const SafetensorsFile file = read_described(source_);
    description_ = description_of(file, source_);
    const nlohmann::json config = parse_json(description_.config, source_);
    model_ = described_model(description_, config, source_);
    is_text_ = model_->language_model() || says(config, "/task/type", "language_model");
    bounds_ = text_bounds(description_);
    if (says(config, "/data/type", "chat")) chat_data_ = config["data"].value("template", "");
    if (chat_data_ == "auto") chat_data_.clear();  // as next to the model
    views_ = described_views(config, source_);
    if (is_language_model() && !description_.tokenizer.empty()) {
      tokenizer_ = Tokenizer::parse(description_.tokenizer, source_ + ": starling.tokenizer");
      if (tokenizer_->vocab() > output().back())
        fail(
            ExitCode::kUsage, "model file",
            "{}: starling.tokenizer has {} tokens, the model {}; needed: the tokenizer that it was "
            "trained with",
            source_, tokenizer_->vocab(), output().back());
    }
    separate_outputs_ = says(config, "/loss/type", "bce_with_logits");
    // A model may have more outputs than its data had classes (model.num_classes): programs index
    // the names by output.
    const std::vector<std::string> known = classes();
    for (auto i = known.size(); i < static_cast<std::size_t>(output().back()); ++i)
      description_.classes.push_back(name_of_output(known, i));
    backend_ = backend_of(options);
    if (const auto refusal = model_->unsupported(formats_.activations, backend_->device()))
      throw Error(*refusal);
    model_->allocate(*backend_, formats_.parameters, formats_.activations);
    load_model_tensors(file, source_, "", *model_);
    model_->refresh_low();
    for (std::size_t c = 0;
         description_.pictures && c < static_cast<std::size_t>(description_.image[2]); ++c) {
      for (std::size_t v = 0; v < 256; ++v) {
        numbers_[c][v] = math::normalized_pixel<float>(
            static_cast<std::uint8_t>(v), description_.scale.mean[c], description_.scale.std[c]);
      }
    }
  }
  // Its tensors go before the backend that holds their memory
  ~LoadedModel() override { model_.reset(); }

  const Shape& input() const override { return model_->input_shape(); }
  const Shape& output() const override { return model_->output_shape(); }
  const std::vector<std::string>& classes() const override { return description_.classes; }
  std::int64_t parameter_count() const override { return model_->parameter_count(); }
  const std::string& config() const override { return description_.config; }

  std::vector<float> logits(std::span<const float> batch) override {
    if (is_language_model())
      fail(ExitCode::kUsage, "inference", "{}: a language model takes tokens; call generate()",
           source_);
    const std::int64_t samples = samples_of(batch.size(), "numbers");
    if (samples == 0) return {};
    const Tensor numbers(*backend_, input().with_batch(samples), DType::kFloat32);
    backend_->copy_from_host(batch.data(), numbers);
    Pass pass{*backend_};
    Tensor given = numbers;
    if (formats_.activations != DType::kFloat32) {
      given = Tensor(*backend_, numbers.shape(), formats_.activations);
      backend_->cast({.x = numbers, .y = given});
    }
    std::vector<float> result;
    read_numbers(model_->forward(Variable(given), pass).value(), result);
    if (const TableColumns* table = columns()) {  // in the target's own unit
      for (float& number : result)
        number = static_cast<float>(number * table->target_deviation + table->target_mean);
    }
    return result;
  }

  std::vector<float> logits(std::span<const std::uint8_t> images) override {
    need_pictures();
    samples_of(images.size(), "bytes");
    const auto channels = static_cast<std::size_t>(input()[2]);
    std::vector<float> batch(images.size());
    for (std::size_t i = 0; i < batch.size(); ++i) batch[i] = numbers_[i % channels][images[i]];
    return logits(std::span<const float>(batch));
  }

  std::vector<float> scores(std::span<const std::uint8_t> images) override {
    if (views_.size() == 1) return logits(images);
    need_pictures();
    const std::int64_t samples = samples_of(images.size(), "bytes");
    std::vector<float> mean(static_cast<std::size_t>(samples * output().elements()), 0.0F);
    for (const TestView& view : views_) {
      std::vector<std::uint8_t> shown(images.begin(), images.end());
      for (std::int64_t i = 0; i < samples; ++i)
        show(view, {shown.data() + i * input().elements(), input()[0], input()[1], input()[2]});
      const std::vector<float> of_view = logits(std::span<const std::uint8_t>(shown));
      for (std::size_t k = 0; k < mean.size(); ++k)
        mean[k] += static_cast<float>(view.weight) * of_view[k];
    }
    return mean;
  }

  std::vector<double> probabilities(std::span<const float> logits) const override {
    if (!separate_outputs_) return starling::probabilities(logits);
    std::vector<double> result;
    for (const float logit : logits)
      result.push_back(1.0 / (1.0 + std::exp(-static_cast<double>(logit))));
    return result;
  }

  std::vector<std::uint8_t> read_picture(const std::string& file) const override {
    need_pictures();
    const Shape& image = input();
    if (image.rank() != 3 || (image[2] != 1 && image[2] != 3))
      fail(ExitCode::kUsage, "inference",
           "{}: its inputs are {}, and pictures have 1 or 3 channels", source_, image.text());
    PictureDecoder decoder(
        {.interpolation = interpolation_of(description_.interpolation), .scaled_decoding = false});
    std::vector<std::uint8_t> pixels(static_cast<std::size_t>(image.elements()));
    const std::int64_t resize =
        description_.resize > 0 ? description_.resize : std::min(image[0], image[1]);
    const auto centre = [&](const PictureSize& size) {
      return PicturePart::centre(size, resize, image[0], image[1]);
    };
    decoder.decode(read_picture_file(file), file, centre, image[0], image[1], image[2],
                   pixels.data());
    return pixels;
  }

  const TableColumns* columns() const override {
    return description_.table ? &*description_.table : nullptr;
  }
  TableRows read_table(const std::string& file) const override {
    if (columns()) return read_rows(file, *columns());
    fail(ExitCode::kUsage, "inference", "{}: it was trained on no table, so {} has no rows for it",
         source_, file);
  }

  bool is_language_model() const override { return is_text_; }

  Generated generate(std::string_view prompt, const GenerateOptions& options,
                     const EachPiece& each) override {
    need_tokenizer();
    return generate(std::span<const std::int32_t>(prompt_tokens(*tokenizer_, bounds_, prompt)),
                    options, each);
  }

  Generated generate(std::span<const std::int32_t> prompt, const GenerateOptions& options,
                     const EachPiece& each) override {
    need_text();
    tell_unapplied();
    return starling::generate(*model_, *backend_, tokenizer_.get(), bounds_, prompt, options, each);
  }

  Generated chat(std::span<const ChatMessage> messages, const std::string& name,
                 const GenerateOptions& options, const EachPiece& each) override {
    need_tokenizer();
    if (!chat_ || chat_->name() != name) {
      const bool trained = name == "auto" && !chat_data_.empty();
      std::string note;
      chat_.emplace(chat_template(trained ? chat_data_ : name, tokenizer_,
                                  chat_source_of(description_, source_), source_, "--template",
                                  note));
      if (!note.empty()) log::info("{}", note);
    }
    tell_unapplied();
    TextBounds bounds = bounds_;
    bounds.ends.push_back(chat_->end());
    return starling::generate(*model_, *backend_, tokenizer_.get(), bounds,
                              fitting(messages, options.tokens), options, each);
  }

  TextScore score(std::string_view context, std::string_view continuation) override {
    need_tokenizer();
    ScoredTokens own = tokens_to_score(*tokenizer_, bounds_, context, continuation);
    const std::int64_t most = context_of(*model_);
    if (own.count > most)
      fail(ExitCode::kUsage, "score", {.key = "continuation"},
           "has {} tokens; allowed: {}, the model's context", own.count, most);
    if (const auto all = std::ssize(own.tokens); all > most + 1)
      own.tokens.erase(own.tokens.begin(), own.tokens.end() - (most + 1));
    return score_tokens(*model_, *backend_, own.tokens, own.count);
  }

  TextPerplexity perplexity(std::string_view text, std::int64_t stride) override {
    need_tokenizer();
    const std::int64_t most = context_of(*model_);
    if (stride == 0) stride = most;
    if (stride < 1 || stride > most)
      fail(ExitCode::kUsage, "score", {.key = "stride"}, "is {}; allowed: 1 to {}, the context",
           stride, most);
    const std::vector<std::int32_t> tokens = prompt_tokens(*tokenizer_, bounds_, text);
    const auto all = std::ssize(tokens);
    if (all < 2)
      fail(ExitCode::kUsage, "score", {.key = "text"}, "has {} tokens; needed: 2 or more", all);
    TextPerplexity result;
    double sum = 0.0;
    for (std::int64_t done = 1, end = std::min(most + 1, all); done < all;
         done = end, end = std::min(end + stride, all)) {
      const std::int64_t begin = std::max<std::int64_t>(0, end - most - 1);
      sum += score_tokens(*model_, *backend_,
                          std::span(tokens).subspan(static_cast<std::size_t>(begin),
                                                    static_cast<std::size_t>(end - begin)),
                          end - done)
                 .logprob;
    }
    result.tokens = all - 1;
    for (std::size_t i = 1; i < tokens.size(); ++i)
      result.bytes += static_cast<std::int64_t>(tokenizer_->bytes_of(tokens[i]).size());
    result.loss = -sum / static_cast<double>(result.tokens);
    result.perplexity = std::exp(result.loss);
    result.bits_per_byte = -sum / std::numbers::ln2 / static_cast<double>(result.bytes);
    return result;
  }

 private:
  void need_tokenizer() const {
    need_text();
    if (tokenizer_) return;
    fail(ExitCode::kUsage, "generate",
         "{}: has no metadata starling.tokenizer, so a text is no tokens for it; needed: a model "
         "whose data.tokenizer was given when it was trained",
         source_);
  }

  void need_text() const {
    if (is_language_model()) return;
    fail(ExitCode::kUsage, "generate",
         "{}: is no language model, so it goes on with no text; its inputs are {}", source_,
         input().text());
  }

  void need_pictures() const {
    if (description_.pictures) return;
    fail(ExitCode::kUsage, "inference", "{}: its inputs are no images but {} numbers", source_,
         input().text());
  }

  /// A conversation's tokens, with room for an answer. As in training its oldest messages leave
  /// whole, and a system's text stays. Error(kUsage) if the last message alone is too long.
  std::vector<std::int32_t> fitting(std::span<const ChatMessage> messages, std::int64_t answer) {
    const std::int64_t context = context_of(*model_), room = std::min(answer, context / 2);
    std::vector<ChatMessage> kept(messages.begin(), messages.end());
    std::vector<std::int32_t> tokens = chat_->ask(kept);
    const std::ptrdiff_t first =
        !kept.empty() && kept[0].role == ChatMessage::Role::kSystem ? 1 : 0;
    while (std::ssize(tokens) + room > context && std::ssize(kept) - first > 1) {
      // An answer does not stay without its question
      const auto oldest = kept.begin() + first;
      kept.erase(oldest, std::find_if(oldest + 1, kept.end() - 1, [](const ChatMessage& message) {
                   return message.role == ChatMessage::Role::kUser;
                 }));
      tokens = chat_->ask(kept);
    }
    if (std::ssize(tokens) >= context)
      fail(ExitCode::kUsage, "chat",
           "{}: with its template the question is {} tokens long; allowed: fewer than the model's "
           "context, {}",
           source_, tokens.size(), context);
    if (kept.size() < messages.size() && !std::exchange(told_left_out_, true))
      log::warning(
          "the conversation no longer fits the context of {} tokens: its oldest messages "
          "leave",
          context);
    return tokens;
  }

  /// Says once what generation_config.json asks for and nothing here does.
  void tell_unapplied() {
    if (std::exchange(told_unapplied_, true) || description_.companions.empty()) return;
    const auto files = Companions::parse(description_.companions, source_).files;
    const auto file = files.find("generation_config.json");
    if (file == files.end()) return;
    const auto asked = nlohmann::json::parse(file->second, nullptr, false);
    // What changes logits or the end, and the values that do not
    const nlohmann::json usual = {{"repetition_penalty", 1},
                                  {"no_repeat_ngram_size", 0},
                                  {"encoder_no_repeat_ngram_size", 0},
                                  {"min_new_tokens", 0},
                                  {"min_length", 0},
                                  {"num_beams", 1},
                                  {"typical_p", 1},
                                  {"min_p", 0},
                                  {"epsilon_cutoff", 0},
                                  {"eta_cutoff", 0},
                                  {"suppress_tokens", nullptr},
                                  {"begin_suppress_tokens", nullptr},
                                  {"bad_words_ids", nullptr},
                                  {"forced_bos_token_id", nullptr},
                                  {"forced_eos_token_id", nullptr},
                                  {"stop_strings", nullptr},
                                  {"sequence_bias", nullptr},
                                  {"penalty_alpha", nullptr},
                                  {"exponential_decay_length_penalty", nullptr}};
    for (const auto& [key, value] : usual.items()) {
      const auto found = asked.is_object() ? asked.value(key, nlohmann::json()) : nlohmann::json();
      if (!found.is_null() && found != value && !(found.is_array() && found.empty()))
        log::info("generation_config.json asks for {} {}, which is not applied", key,
                  shown(found.dump(), 100));
    }
  }

  std::int64_t samples_of(std::size_t count, const char* what) const {
    const auto own = static_cast<std::size_t>(input().elements());
    if (count % own == 0) return static_cast<std::int64_t>(count / own);
    fail(ExitCode::kUsage, "inference", "{} {} are no whole samples of {} = {}", count, what,
         input().text(), own);
  }

  std::string source_;
  Formats formats_;
  ModelDescription description_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Model> model_;
  std::vector<TestView> views_;
  std::shared_ptr<const Tokenizer> tokenizer_;  ///< null: none is known
  bool is_text_ = false, told_unapplied_ = false, told_left_out_ = false;
  TextBounds bounds_;      ///< of texts
  std::string chat_data_;  ///< the template of conversations that it was trained on
  std::optional<ChatTemplate> chat_;
  bool separate_outputs_ = false;  ///< the loss treats outputs as independent binary decisions
  std::array<std::array<float, 256>, 4> numbers_{};  ///< of a channel's bytes
};

}  // namespace

std::vector<double> probabilities(std::span<const float> logits) {
  std::vector<double> result(logits.begin(), logits.end());
  if (result.empty()) return result;
  const double most = *std::max_element(result.begin(), result.end());
  for (double& value : result) value = std::exp(value - most);
  const double sum = std::accumulate(result.begin(), result.end(), 0.0);
  for (double& value : result) value /= sum;
  return result;
}

std::vector<std::int64_t> largest(std::span<const float> logits, std::int64_t count) {
  std::vector<std::int64_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto end = order.begin() + std::clamp<std::int64_t>(count, 0, std::ssize(order));
  std::partial_sort(order.begin(), end, order.end(), [&](std::int64_t a, std::int64_t b) {
    const float x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
    return x != y ? x > y : a < b;
  });
  order.erase(end, order.end());
  return order;
}

std::unique_ptr<InferenceModel> load_model(const std::string& path,
                                           const InferenceOptions& options) {
  return std::make_unique<LoadedModel>(path, options);
}

}  // namespace starling
