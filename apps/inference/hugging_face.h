#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "apps/text/tokenizer.h"
#include "core/safetensors.h"
#include "layers/layer.h"

// Models of text as Hugging Face's transformers keep them: a folder with `config.json`,
// `model.safetensors` and `tokenizer.json`. Tensors have the same names and shapes here and there.

namespace starling {

/// What its config.json says of a model, given section `model` of a resolved config. Error(kUsage)
/// where model.type is none that transformers' AutoModelForCausalLM has under these names.
nlohmann::json hugging_face_config(const nlohmann::json& model);

/// Section `model` that the config.json next to a model file says, with all keys but the defaults
/// of its type. Error(kUsage) names file and key of what is not computed here.
nlohmann::json section_beside(const std::string& model_file);

/// A config whose model is `{"type": "pretrained", "path": DIR}` with that model's own section in
/// its place, its weights as `init`, and its tokenizer for text; another config as it is. `source`
/// names the config in errors.
nlohmann::json with_pretrained(nlohmann::json config, const std::string& source);
/// Describes `pretrained` among the models; with_pretrained() is what makes it.
void add_pretrained_model(ModelRegistry& registry);

/// Error(kUsage), which names file and key, where the config.json next to a file of initial values
/// says that they are of another model than section `model`, or of one that computes what is not
/// computed here: other scaled rotary embeddings, another activation. Sizes of tensors for which
/// `skipped` says true may be others. Nothing where there is no config.json, or one that is not of
/// Hugging Face's form.
void check_hugging_face_config(const std::string& model_file, const nlohmann::json& model,
                               const std::function<bool(const std::string&)>& skipped = {});

/// Error(kUsage) where a tokenizer has more tokens than the model's table of them rows.
void check_vocabulary(const Tokenizer& tokenizer, const std::string& source, std::int64_t rows);

/// The file of the tokenizer next to a model file: tokenizer.json, or GPT-2's vocab.json; empty
/// where there is none.
std::string tokenizer_beside(const std::string& model_file);

/// A model file's tensors, if `tensors`, and what it says of itself. One that says nothing, in a
/// folder of Hugging Face's form, says what config.json, tokenizer and the rest say, and its
/// tensors have the names of the model that is made of that; its data have no path.
SafetensorsFile read_described(const std::string& model_file, bool tensors = true);

/// Writes `destination`, an empty or new folder: model.safetensors, or files of at most `most`
/// bytes and model.safetensors.index.json, config.json, where the model has a tokenizer
/// tokenizer.json and tokenizer_config.json, and what else it has (Companions). Of a model of text
/// that transformers does not have, such as a plug-in's, config.json is its section `model`, with
/// `type` as model_type. `run`: a run's folder, or its model.safetensors. An adapter's becomes
/// PEFT's folder (export_adapter()), unless it `merges` it with its base.
void export_to_hugging_face(const std::string& run, const std::string& destination,
                            bool merges = false, std::uint64_t most = UINT64_MAX);
/// A folder for an export's files. Error(kUsage) where it has some.
void make_export_folder(const std::string& destination);

}  // namespace starling
