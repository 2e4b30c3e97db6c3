#pragma once

#include <map>
#include <string>
#include <vector>

#include "apps/data/dataset.h"
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
/// Whether a tensor of the model keeps its own initialisation, as a pattern says.
bool keeps_own(const InitialFile& init, const Model& model, const std::string& name);
/// Checks the file on shapes and ranges of numbers alone, for parameters in `dtype` and arithmetic
/// in `compute`, before a run makes its output folder. The model has no memory afterwards.
void check_initial_file(const InitialFile& init, Model& model, DType dtype = DType::kFloat32,
                        DType compute = DType::kFloat32);
/// What goes on from the file to the run's own models, as metadata: what it has beside its weights
/// (Companions), and its tokenizer where the data has none. Nothing where its table of tokens is
/// not taken. Error(kUsage) where tokens of the data, which is open, have other meanings than its
/// own: as the file says, or the tokenizer beside it.
std::map<std::string, std::string> check_initial_tokens(const InitialFile& init, Model& model,
                                                        const DatasetInfo& data);

}  // namespace starling
