#include "apps/data/tokens/text_collate.h"

#include "core/error.h"

namespace starling {

std::shared_ptr<const Tokenizer> tokenizer_of_model(const SafetensorsFile& file,
                                                    const std::string& source,
                                                    const Tokenizer* own) {
  if (file.metadata.count(kConfigMetadata) == 0) return nullptr;  // of another program
  const std::string text = description_of(file, source).tokenizer;
  if (text.empty()) return nullptr;
  auto other = Tokenizer::parse(text, source + ": metadata starling.tokenizer");
  if (own && (other->vocab() != own->vocab() || !agree(*other, *own)))
    fail(ExitCode::kUsage, "data", {.key = "data.tokenizer"},
         "has {} tokens that are not those ({}) that the model of {} was trained with; needed: "
         "its tokenizer",
         own->vocab(), other->vocab(), source);
  return other;
}

}  // namespace starling
