#pragma once

#include <string>
#include <vector>

#include "apps/trainer/data/dataset.h"
#include "layers/layer.h"

namespace starling {

/// `init`: where initial values come from.
struct InitialFile {
  /// .safetensors, or a checkpoint's folder; empty: all values are the model's own initialisation
  std::string file;
  /// Patterns of tensors that keep that, as a shell's: `*` any text, `?` a character
  std::vector<std::string> skip;
  std::string told = {};  ///< ModelSource::told
};

/// Loads the model's tensors from the file, but for those that a pattern skips; what the file has
/// under such a name is left alone. The model's tensors hold their own initialisation already.
/// Error(kUsage) in one line: a tensor that is missing, or none of the model's; all that differ in
/// shape, with the patterns that would skip them; a pattern that matches nothing.
void load_initial_file(const InitialFile& init, Model& model);
/// Checks the file on shapes alone, before a run makes its output folder. The model has no memory
/// afterwards.
void check_initial_file(const InitialFile& init, Model& model);
/// Error(kUsage) where tokens of the data, which is open, have other meanings than those of the
/// model whose table of tokens is taken: as the file says, or tokenizer.json beside it.
void check_initial_tokens(const InitialFile& init, Model& model, const DatasetInfo& data);

}  // namespace starling
