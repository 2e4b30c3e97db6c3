#pragma once

// The operations of a backend. Each has a struct of arguments, in the header of its family, which
// defines what it does and which tensors it reads and writes; check() in the family's .cpp, of a
// small family in checks.cpp, validates them for all backends. STARLING_OPERATIONS generates the
// declarations (core/backend.h), forwarding, the meta backend, the checks of the order between
// streams, and the counts of bytes and FLOPs. A new operation is a struct, a check and a line of
// the list; a function in CpuBackend and CudaBackend; rows in tests/operations; and a caller in
// layers/.
//
// Tensors are contiguous, and floating tensors of a call have the same dtype, unless stated
// otherwise. "accumulate" adds to the output instead of overwriting it. Optional tensors may be
// empty. Outputs must not alias inputs unless a comment allows it.
// Low precision: if activations (x, y, dy, dx, residuals, logits) are bf16 or fp16, weights of
// products have the same dtype, and everything else is fp32: biases (of a Matmul in either), gamma,
// beta, statistics, losses, and gradients of parameters (dweight, dbias, dgamma, dbeta, the c and
// row_sums of a Matmul for a weight's gradient). Arithmetic and sums are in fp32 or better.
namespace starling {

// X(arguments, function)
#define STARLING_OPERATIONS(X)                      \
  X(Conv2dForward, conv2d_forward)                  \
  X(Conv2dBackwardData, conv2d_backward_data)       \
  X(Conv2dBackwardWeights, conv2d_backward_weights) \
  X(Matmul, matmul)                                 \
  X(Map, map)                                       \
  X(Reduce, reduce)                                 \
  X(BatchNormForward, batch_norm_forward)           \
  X(BatchNormBackward, batch_norm_backward)         \
  X(BatchNormFinish, batch_norm_finish)             \
  X(LayerNormForward, layer_norm_forward)           \
  X(LayerNormBackward, layer_norm_backward)         \
  X(SoftmaxForward, softmax_forward)                \
  X(SoftmaxBackward, softmax_backward)              \
  X(AttentionForward, attention_forward)            \
  X(AttentionBackward, attention_backward)          \
  X(Rotary, rotary)                                 \
  X(Pool2dForward, pool2d_forward)                  \
  X(Pool2dBackward, pool2d_backward)                \
  X(Resample, resample)                             \
  X(StridedCopy, strided_copy)                      \
  X(Dropout, dropout)                               \
  X(TargetLoss, target_loss)                        \
  X(Gather, gather)                                 \
  X(ScatterAdd, scatter_add)                        \
  X(TopK, topk)                                     \
  X(CumulativeSum, cumulative_sum)                  \
  X(Cast, cast)                                     \
  X(AugmentImages, augment_images)                  \
  X(ResizePictures, resize_pictures)                \
  X(ChangePixels, change_pixels)                    \
  X(WeightedSum, weighted_sum)                      \
  X(Encode, encode)                                 \
  X(Decode, decode)                                 \
  X(SparseEncode, sparse_encode)                    \
  X(SparseDecode, sparse_decode)                    \
  X(SquaredNorms, squared_norms)                    \
  X(GradientControl, gradient_control)              \
  X(Update, update)

#define STARLING_DECLARE_CHECK(Arguments, name)                             \
  struct Arguments;                                                         \
  /** Throws Error(kInternal) where the arguments do not fit each other. */ \
  void check(const Arguments& args);
STARLING_OPERATIONS(STARLING_DECLARE_CHECK)
#undef STARLING_DECLARE_CHECK

/// Declares the functions of a backend that implements all operations.
#define STARLING_ISSUE_OPERATION(Arguments, name) void issue(const Arguments& args) override;

#define STARLING_COUNT_OPERATION(Arguments, name) +1
inline constexpr int kOperations = 0 STARLING_OPERATIONS(STARLING_COUNT_OPERATION);
#undef STARLING_COUNT_OPERATION

}  // namespace starling
