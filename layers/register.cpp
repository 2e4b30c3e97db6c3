#include <mutex>

#include "core/error.h"
#include "core/typed_section.h"
#include "layers/builtin.h"
#include "layers/language_model.h"
#include "layers/layer.h"

namespace starling {

LayerRegistry& layers() {
  static LayerRegistry registry("layer");
  return registry;
}

ModelRegistry& models() {
  static ModelRegistry registry("model");
  return registry;
}

void register_builtin_layers() {
  static std::once_flag once;
  std::call_once(once, [] {
#define STARLING_ADD(name) builtin::add_##name(layers());
    STARLING_LAYERS(STARLING_ADD)
#undef STARLING_ADD
  });
}

void register_builtin_models() {
  static std::once_flag once;
  std::call_once(once, [] {
#define STARLING_ADD(name) builtin::add_##name(models());
    STARLING_MODELS(STARLING_ADD)
#undef STARLING_ADD
  });
}

std::unique_ptr<Model> make_model(ConfigSection& section, const Shape& input,
                                  std::int64_t classes) {
  const std::string type = section.required_text("type", "the model, see `--list models`");
  ModelOutputs site;
  site.num_classes = section.integer("num_classes", classes, Range::closed(1, 1 << 24),
                                     "outputs; default: the data's classes");
  auto root = make_typed(models(), type, section, site);
  section.finish();
  const auto* const text = dynamic_cast<LanguageModel*>(root.get());
  if (text && input.rank() == 1 && input[0] > text->context())
    section.error("context",
                  "is {}, but a sample has {} tokens (data.sequence_length); allowed: as many or "
                  "more, or shorter samples",
                  text->context(), input[0]);
  return std::make_unique<Model>(std::move(root), input);
}

}  // namespace starling
