#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/autograd.h"
#include "core/backend.h"
#include "layers/layer.h"
#include "tests/support/errors.h"

namespace starling::testing {

/// One CPU backend of one thread for all tests of this program.
Backend& cpu();

/// The model that a config's `model` object describes, for samples of shape `input`; the text is
/// JSON.
std::unique_ptr<Model> model_from(const std::string& json, const Shape& input);
using test::contains;
using test::error_of;
using test::fails;
std::string model_error(const std::string& json, const Shape& input);

/// The shape whose sizes a text tells, as "8 8 3".
Shape shape_from(const std::string& sizes);

/// Numbers of fp64 in [-1, 1) from a hash of (seed, index).
std::vector<double> noise(std::uint64_t seed, std::int64_t count);
Tensor tensor_of(const std::vector<double>& numbers, const Shape& shape);
Tensor noise_tensor(std::uint64_t seed, const Shape& shape);
/// Numbers of a tensor of any floating type.
std::vector<double> numbers_of(const Tensor& tensor);
Tensor cast_to(const Tensor& tensor, DType dtype);
/// Class numbers, or as many as that over so many classes.
Tensor labels_of(const std::vector<std::int32_t>& numbers);
Tensor spread_labels(std::int64_t batch, std::int64_t classes);
/// |found - expected| / |expected|.
double relative_error(const std::vector<double>& found, const std::vector<double>& expected);

/// A scalar: Σ weight_i · x_i with fixed pseudo-random weights, on the tape.
Variable weighted_total(const Variable& x, Pass& pass);

/// Compares the gradients of a model's parameters and input with central differences in fp64 on the
/// CPU. `classes` > 0: the loss is cross entropy with label smoothing; otherwise weighted_total().
/// Fills all tensors with noise first unless `keep_values`. Of the parameters every `stride`-th is
/// checked. `training` false: gradients in evaluation mode. `tokens`: whole numbers to put in,
/// which have no gradient, in place of noise.
void check_gradients(Model& model, std::int64_t batch, std::int64_t classes = 0,
                     bool keep_values = false, std::size_t stride = 1, bool training = true,
                     const Tensor& tokens = {});

}  // namespace starling::testing
