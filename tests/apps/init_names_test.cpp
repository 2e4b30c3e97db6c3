#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/inference/model_file.h"
#include "apps/trainer/state/init_file.h"
#include "core/safetensors.h"
#include "kernels/open_backend.h"
#include "layers/layer.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

using namespace starling;

namespace {

std::unique_ptr<Model> made(Backend& backend, bool tie, std::uint64_t seed) {
  register_builtin_models();
  const nlohmann::json json{{"type", "gpt2"}, {"layers", 1}, {"heads", 2},
                            {"width", 8},     {"vocab", 11}, {"tie", tie}};
  ConfigSection section(json, "model");
  auto model = make_model(section, {4});
  model->allocate(backend, DType::kFloat32);
  model->initialise(seed);
  return model;
}

std::vector<std::byte> bytes_of(const Model& model) {
  SafetensorsFile file;
  add_model_tensors(model, "", file);
  std::vector<std::byte> all;
  for (const auto& [name, tensor] : file.tensors)
    all.insert(all.end(), tensor.bytes.begin(), tensor.bytes.end());
  return all;
}

}  // namespace

TEST_CASE("init/names: a model begins from files that name its tensors as other programs do") {
  const auto backend = open_backend(DeviceType::kCpu, 1);
  const auto trained = made(*backend, true, 1);
  const test::Folder folder;
  const std::string path = folder / "other.safetensors";
  SafetensorsFile own;
  add_model_tensors(*trained, "", own);
  CHECK(own.tensors.count("lm_head.weight") == 0);
  // A matrix lies as Hugging Face's Conv1D has it.
  CHECK(own.tensors.at("transformer.h.0.attn.c_attn.weight").shape == Shape{8, 24});
  const auto load = [&](const std::function<void(SafetensorsFile&)>& change, bool tie = true) {
    SafetensorsFile file = own;
    change(file);
    write_safetensors(path, file);
    const auto model = made(*backend, tie, 2);
    load_initial_file({path, {}}, *model);
    return bytes_of(*model);
  };
  const std::vector<std::byte> expected = bytes_of(*trained);
  const std::string table = "transformer.wte.weight", head = "lm_head.weight";
  CHECK(load([](SafetensorsFile&) {}) == expected);
  CHECK(load([&](SafetensorsFile& file) {
          file.tensors[head] = file.tensors[table];
          file.tensors["transformer.h.0.attn.bias"] = {
              DType::kFloat32, {1, 1, 4, 4}, std::vector<std::byte>(64)};
          file.tensors["transformer.h.0.attn.masked_bias"] = {DType::kFloat32, Shape{},
                                                              std::vector<std::byte>(4)};
        }) == expected);
  CHECK(load([](SafetensorsFile& file) {
          std::map<std::string, FileTensor> bare;
          for (const auto& [name, tensor] : file.tensors)
            bare[name.substr(std::string("transformer.").size())] = tensor;
          file.tensors = bare;
        }) == expected);
  const auto other_head = [&](SafetensorsFile& file) {
    file.tensors[head] = file.tensors[table];
    file.tensors[head].bytes[0] ^= std::byte{1};
  };
  CHECK(test::contains(test::error_of(ExitCode::kUsage, [&] { load(other_head); }),
                       "tensor lm_head.weight differs from transformer.wte.weight, and the model "
                       "has one for both (model.tie is true)"));
  CHECK_NOTHROW(load(other_head, false));
  CHECK(test::contains(test::error_of(ExitCode::kUsage,
                                      [&] {
                                        load([](SafetensorsFile& file) {
                                          file.tensors["transformer.h.0.attn.q_norm"] = {
                                              DType::kFloat32, {8}, std::vector<std::byte>(32)};
                                        });
                                      }),
                       "transformer.h.0.attn.q_norm does not belong to the model"));
}
