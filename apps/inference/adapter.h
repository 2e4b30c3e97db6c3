#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/safetensors.h"
#include "layers/layer.h"

// Adapters: matrices of low rank that a run trains in addition to a base, a model which stays as it
// is (LoRA, Hu et al. 2021, arXiv 2106.09685). Files of such a run, and folders of PEFT's, have
// what was trained alone, and say which base it goes with.

namespace starling {

/// What a base is known by: where it is, and that it is still the same.
struct BaseModel {
  std::string file;    ///< absolute path of a file, or of a checkpoint's folder
  std::string digest;  ///< digest_of() its tensors; empty: not known
};

struct Adapter {
  /// The tensors that were trained, under the model's names, and the metadata of their file
  SafetensorsFile file;
  BaseModel base;
  std::int64_t rank = 0;
  double alpha = 0.0, dropout = 0.0;  ///< as in Linear::Adapter
};

/// Says in a file that its model is an adapter: as metadata starling.base.
void describe_adapter(const Adapter& adapter, SafetensorsFile& file);
/// Reads that, without tensors. Nothing where a file does not say it.
std::optional<Adapter> described_adapter(const SafetensorsFile& file, const std::string& path);

/// `path`: what find_model() found. Nothing where that is no adapter. Error(kUsage), which names
/// the file and the key, where an adapter_config.json asks for what is not computed here.
/// `tensors`: also reads these.
std::optional<Adapter> read_adapter(const std::string& path, bool tensors = true);

/// A base's tensors under the names of `model`, without those that hold nothing.
SafetensorsFile read_base(const std::string& path, const Model& model);
/// A checksum of names, shapes, formats and numbers.
std::string digest_of(const SafetensorsFile& file);
/// Error(kUsage) unless the base is the one that the adapter was trained on. `path`: the adapter's.
void check_base(const Adapter& adapter, const std::string& path, const std::string& base,
                const std::string& digest);

/// Where the base's head is its table of embeddings: takes PEFT's copy of a trained one out, or
/// refuses, Error(kUsage), what gives the two different numbers.
void take_tied_head(Adapter& adapter, const std::string& path, Model& model);

/// The whole model, as a file that has no adapter: weight + (alpha / rank) · B · A in fp32, or fp64
/// where one of them is. Error(kUsage) where the base is gone, or another.
SafetensorsFile merged(Adapter adapter, const std::string& path);

/// Writes `destination`, an empty or new folder, as PEFT loads it: adapter_model.safetensors and
/// adapter_config.json. `path`: the adapter's.
void export_adapter(const Adapter& adapter, const std::string& path,
                    const std::string& destination);

}  // namespace starling
