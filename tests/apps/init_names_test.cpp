#include <doctest/doctest.h>

#include <cstring>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/inference/model_file.h"
#include "apps/training/state/init_file.h"
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

/// A model, its tensors as files have them, and a file for other ones.
struct Trained {
  std::unique_ptr<Backend> backend = open_backend(DeviceType::kCpu, 1);
  std::unique_ptr<Model> model = made(*backend, true, 1);
  SafetensorsFile own;
  test::Folder folder;
  std::string path = folder / "other.safetensors";
  Trained() { add_model_tensors(*model, "", own); }
};

}  // namespace

TEST_CASE("init/names: a model begins from files that name its tensors as other programs do") {
  const Trained trained;
  const SafetensorsFile& own = trained.own;
  CHECK(own.tensors.count("lm_head.weight") == 0);
  // A matrix lies as Hugging Face's Conv1D has it.
  CHECK(own.tensors.at("transformer.h.0.attn.c_attn.weight").shape == Shape{8, 24});
  const auto load = [&](const std::function<void(SafetensorsFile&)>& change, bool tie = true) {
    SafetensorsFile file = own;
    change(file);
    write_safetensors(trained.path, file);
    const auto model = made(*trained.backend, tie, 2);
    load_initial_file({trained.path, {}}, *model);
    return bytes_of(*model);
  };
  const std::vector<std::byte> expected = bytes_of(*trained.model);
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
  const auto refused = [&](const FileTensor& tensor) {
    return test::error_of(ExitCode::kUsage, [&] {
      load([&](SafetensorsFile& file) { file.tensors["transformer.h.0.ln_1.weight"] = tensor; });
    });
  };
  const std::string norm = "other.safetensors: tensor transformer.h.0.ln_1.weight ";
  CHECK(test::contains(refused({DType::kFloat32, {9}, std::vector<std::byte>(36)}),
                       norm + "has shape 9, needed: 8"));
  CHECK(test::contains(refused({DType::kInt32, {8}, std::vector<std::byte>(32)}),
                       norm + "is int32, needed: fp32"));
  const auto other_head = [&](SafetensorsFile& file) {
    file.tensors[head] = file.tensors[table];
    file.tensors[head].bytes[0] ^= std::byte{1};
  };
  CHECK(test::fails(ExitCode::kUsage,
                    "tensor lm_head.weight differs from transformer.wte.weight, and the model "
                    "has one for both (model.tie is true)",
                    [&] { load(other_head); }));
  CHECK_NOTHROW(load(other_head, false));
  CHECK(test::fails(ExitCode::kUsage, "transformer.h.0.attn.q_norm does not belong to the model",
                    [&] {
                      load([](SafetensorsFile& file) {
                        file.tensors["transformer.h.0.attn.q_norm"] = {
                            DType::kFloat32, {8}, std::vector<std::byte>(32)};
                      });
                    }));
}

TEST_CASE("init/names: matrices that lie the other way round are turned, square ones too") {
  const Trained trained;
  const SafetensorsFile& own = trained.own;
  SafetensorsFile turned = own;
  for (const Parameter* parameter : trained.model->parameters()) {
    if (parameter->layout == TensorLayout::kTransposed)
      turned.tensors[parameter->name] = to_file_tensor(parameter->value, TensorLayout::kPlain);
  }
  const std::string square = "transformer.h.0.attn.c_proj.weight";
  CHECK(turned.tensors[square].shape == own.tensors.at(square).shape);
  CHECK(turned.tensors[square].bytes != own.tensors.at(square).bytes);
  const auto load = [&](const SafetensorsFile& file, const std::vector<std::string>& skip) {
    write_safetensors(trained.path, file);
    const auto model = made(*trained.backend, true, 2);
    load_initial_file({trained.path, skip}, *model);
    SafetensorsFile result;
    add_model_tensors(*model, "", result);
    return result;
  };
  CHECK(load(turned, {}).tensors[square].bytes == own.tensors.at(square).bytes);
  // Those that show it may be skipped
  const SafetensorsFile rest = load(turned, {"*.c_attn.*", "transformer.h.*.mlp.*"});
  CHECK(rest.tensors.at(square).bytes == own.tensors.at(square).bytes);
  CHECK(rest.tensors.at("transformer.h.0.mlp.c_fc.weight").bytes !=
        own.tensors.at("transformer.h.0.mlp.c_fc.weight").bytes);
  // Names without their front are skipped by either
  SafetensorsFile bare;
  for (const auto& [name, tensor] : turned.tensors)
    bare.tensors[name.substr(std::string("transformer.").size())] = tensor;
  CHECK(load(bare, {"h.0.attn.c_attn.*"}).tensors[square].bytes == own.tensors.at(square).bytes);
  turned.tensors["transformer.h.0.mlp.c_fc.weight"] =
      own.tensors.at("transformer.h.0.mlp.c_fc.weight");
  CHECK(test::fails(ExitCode::kUsage,
                    "the other way round, and so may square ones be (" + square + ")",
                    [&] { load(turned, {}); }));
}

TEST_CASE("init/names: what holds nothing is left out, of any type; numbers beyond the range not") {
  const Trained trained;
  const test::Folder& folder = trained.folder;
  SafetensorsFile own = trained.own;
  own.tensors["transformer.h.0.attn.bias"] = {
      DType::kUInt8, {1, 1, 4, 4}, std::vector<std::byte>(16)};
  write_safetensors(trained.path, own);
  std::string bytes = folder.read("other.safetensors");
  const std::size_t at = bytes.find(R"("dtype":"U8")");
  REQUIRE(at != std::string::npos);
  const std::string buffer = R"("dtype":"B8")";  // no dtype at all
  bytes.replace(at, buffer.size(), buffer);
  folder.write("other.safetensors", bytes);
  const auto model = made(*trained.backend, true, 2);
  load_initial_file({trained.path, {}}, *model);
  CHECK(bytes_of(*model) == bytes_of(*trained.model));

  own.tensors.erase("transformer.h.0.attn.bias");
  FileTensor& table = own.tensors["transformer.wpe.weight"];
  const auto with = [&](double value) {
    std::vector<double> numbers(static_cast<std::size_t>(table.shape.elements()), 0.5);
    numbers[3] = value;
    table.dtype = DType::kFloat64;
    table.bytes.resize(numbers.size() * sizeof(double));
    std::memcpy(table.bytes.data(), numbers.data(), table.bytes.size());
    write_safetensors(trained.path, own);
  };
  const auto refused = [&](DType dtype, DType compute) {
    return test::error_of(ExitCode::kUsage, [&] {
      check_initial_file({trained.path, {}}, *model, dtype, compute);
    });
  };
  const std::string named = "other.safetensors: tensor transformer.wpe.weight holds ";
  with(-1e39);
  CHECK(test::contains(refused(DType::kFloat32, DType::kFloat32), named + "-1e+39, which fp32"));
  CHECK(test::contains(refused(DType::kFloat32, DType::kBFloat16), named + "-1e+39, which fp32"));
  check_initial_file({trained.path, {}}, *model, DType::kFloat64, DType::kFloat64);
  with(3.4e38);  // bf16 rounds it up
  check_initial_file({trained.path, {}}, *model, DType::kFloat32, DType::kFloat32);
  CHECK(test::contains(refused(DType::kFloat32, DType::kBFloat16), named + "3.4e+38, which bf16"));
  with(70000.0);
  check_initial_file({trained.path, {}}, *model, DType::kFloat32, DType::kBFloat16);
  CHECK(test::contains(refused(DType::kFloat32, DType::kFloat16), named + "70000, which fp16"));
}
