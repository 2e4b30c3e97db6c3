#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "core/safetensors.h"

// Models of text as Hugging Face's transformers keep them: a folder with `config.json`,
// `model.safetensors` and `tokenizer.json`. Tensors have the same names and shapes here and there.

namespace starling {

/// What its config.json says of a model, given section `model` of a resolved config. Error(kUsage)
/// where model.type is none that transformers' AutoModelForCausalLM has under these names.
nlohmann::json hugging_face_config(const nlohmann::json& model);

/// Error(kUsage), which names file and key, where the config.json beside a file of initial values
/// says that they are of another model than section `model`, or of one that computes what is not
/// computed here: scaled rotary embedding, another activation, a sliding window. Sizes of tensors
/// for which `skipped` says true may be others. Nothing where there is no config.json, or one that
/// is not of Hugging Face's form.
void check_hugging_face_config(const std::string& model_file, const nlohmann::json& model,
                               const std::function<bool(const std::string&)>& skipped = {});

/// The file of the tokenizer beside a model file: tokenizer.json, or GPT-2's vocab.json; empty
/// where there is none.
std::string tokenizer_beside(const std::string& model_file);

/// A model file's tensors, if `tensors`, and what it says of itself. One that says nothing, in a
/// folder of Hugging Face's form, says what config.json, tokenizer and the rest say, and its
/// tensors have the names of the model that is made of that; its data have no path.
SafetensorsFile read_described(const std::string& model_file, bool tensors = true);

/// Writes `destination`, an empty or new folder: model.safetensors, config.json, where the model
/// has a tokenizer tokenizer.json and tokenizer_config.json, and what it has beside (Companions).
/// Of a model of text that transformers does not have, such as a plug-in's, config.json is its
/// section `model`, with `type` as model_type. `run`: a run's folder, or its model.safetensors. An
/// adapter's becomes PEFT's folder (export_adapter()), unless it `merges` it with its base.
void export_to_hugging_face(const std::string& run, const std::string& destination,
                            bool merges = false);
/// A folder for an export's files. Error(kUsage) where it has some.
void make_export_folder(const std::string& destination);

}  // namespace starling
