#pragma once

#include "comm/bucket.h"
#include "core/backend.h"
#include "kernels/optimizer.h"

// Gradients that lie in low precision. Engines of convolutions round a weight's gradient to bf16 or fp16; where it is the parameter's only
// contribution it stays as it is (Parameter::grad_in_low), and what reads gradients knows where each of them lies. Widening is exact, so no
// bit depends on it.
namespace starling {

/// Fills in where an update reads the bucket's gradients: gradient, gradient_low and decay. On the compute stream, before the event that
/// the update waits for.
void set_gradients(Backend& backend, Bucket& bucket, UpdateArgs& args);

/// Makes all of the bucket's gradients fp32, in one kernel: for what sums them over ranks. On the compute stream.
void widen_gradients(Backend& backend, Bucket& bucket);

}  // namespace starling
