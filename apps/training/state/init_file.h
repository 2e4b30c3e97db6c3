#pragma once

#include <map>
#include <string>
#include <vector>

#include "apps/data/dataset.h"
#include "layers/layer.h"

namespace starling {

/// `init`: the source of initial values.
struct InitialFile {
  /// .safetensors, or a checkpoint's folder; empty: the model's own initialisation
  std::string file;
  /// Shell patterns of tensors that keep their own initialisation: `*` any text, `?` a character
  std::vector<std::string> skip;
  std::string told = {};  ///< ModelSource::told
  /// Of a run with `lora`: an adapter of that file's model, as find_model() found it; empty: none
  std::string adapter = {};
};

/// Loads the model's tensors from the file, except those that match a pattern. The model must
/// already have its own initialisation. Error(kUsage) in one line for a missing or additional
/// tensor; for all tensors of different shape, with patterns to skip them; for a pattern without
/// match. Where the model has adapters, returns the digest of the file as their base (digest_of());
/// Error(kUsage) where init.adapter is of another.
std::string load_initial_file(const InitialFile& init, Model& model);
/// Whether a tensor of the model matches a pattern, and keeps its own initialisation.
bool keeps_own(const InitialFile& init, const Model& model, const std::string& name);
/// Checks the file's shapes and numbers before a run. The model has no memory afterwards.
void check_initial_file(const InitialFile& init, Model& model, DType dtype = DType::kFloat32,
                        DType compute = DType::kFloat32);
/// Metadata of the file to keep in the run's models: additional files (Companions), and its
/// tokenizer if the data has none. Empty if its token embedding is skipped. Error(kUsage) if tokens
/// mean something else to the file, or the tokenizer next to it, than to the open data set; a
/// warning where its classes have other names, or another order.
std::map<std::string, std::string> check_initial_meaning(const InitialFile& init, Model& model,
                                                         const DatasetInfo& data);

}  // namespace starling
