#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

// Models of text as Hugging Face's transformers keep them: a folder with `config.json`,
// `model.safetensors` and `tokenizer.json`. Tensors have the same names and shapes here and there.

namespace starling {

/// What its config.json says of a model, given section `model` of a resolved config. Error(kUsage)
/// where model.type is none that transformers' AutoModelForCausalLM has under these names.
nlohmann::json hugging_face_config(const nlohmann::json& model);

/// Error(kUsage), which names file and key, where the config.json beside a file of initial values
/// says that they are of another model than section `model`, or of one that computes what is not
/// computed here: scaled rotary embedding, another activation, a sliding window. Nothing where
/// there is no config.json, or one that is not of Hugging Face's form.
void check_hugging_face_config(const std::string& model_file, const nlohmann::json& model);

/// Writes `destination`, an empty or new folder: config.json, model.safetensors, and where the
/// model has a tokenizer tokenizer.json and tokenizer_config.json. `run`: a run's folder, or its
/// model.safetensors.
void export_to_hugging_face(const std::string& run, const std::string& destination);

}  // namespace starling
