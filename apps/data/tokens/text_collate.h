#pragma once

#include <memory>
#include <string>

#include "apps/data/collate.h"
#include "apps/inference/description.h"
#include "apps/text/tokenizer.h"

namespace starling {

/// Samples are already vectors of token ids; a model file records the tokenizer.
struct TextCollate final : Collate {
  explicit TextCollate(std::shared_ptr<const Tokenizer> own) : tokenizer(std::move(own)) {}
  std::shared_ptr<const Tokenizer> tokenizer;
  void describe(const DatasetInfo&, ModelDescription& description) const override {
    description.tokenizer = tokenizer->text();
  }
};

/// The tokenizer that a model file keeps; null: none. Error(kUsage) if it is another than `own`,
/// that of the data, which may be null.
std::shared_ptr<const Tokenizer> tokenizer_of_model(const SafetensorsFile& file,
                                                    const std::string& source,
                                                    const Tokenizer* own);

}  // namespace starling
