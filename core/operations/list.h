#pragma once

// The operations of a backend. A struct of each family's header says what an operation takes and
// does, and which tensors it reads and writes; check() in the family's .cpp looks at them once for
// all backends. From STARLING_OPERATIONS come the declarations (core/backend.h), forwarding, the
// meta backend, checks of the order between streams, counts of bytes and arithmetic. A new
// operation is a struct, a check and a line of the list; a function of CpuBackend and one of
// CudaBackend; rows in tests/operations; and what calls it in layers/.
//
// Tensors of a call are contiguous; its floating tensors of one call share a dtype
// unless said otherwise. "accumulate" adds to the output instead of overwriting it. An empty Tensor
// means "not wanted" where a comment says optional. No output may alias an input unless a comment
// allows it.
// Low precision: where activations (x, y, dy, dx, residuals, logits) are bf16 or fp16, weights of
// products have their dtype, and everything else is fp32: biases, gamma, beta, statistics, losses,
// and the gradients of parameters (dweight, dbias, dgamma, dbeta, the c of a Matmul that makes a
// weight's gradient). Arithmetic and sums are fp32 at least.
namespace starling {

// X(arguments, name of the function that takes them)
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
  X(SquaredNorms, squared_norms)                    \
  X(GradientControl, gradient_control)              \
  X(Update, update)

#define STARLING_DECLARE_CHECK(Arguments, name)                             \
  struct Arguments;                                                         \
  /** Throws Error(kInternal) where the arguments do not fit each other. */ \
  void check(const Arguments& args);
STARLING_OPERATIONS(STARLING_DECLARE_CHECK)
#undef STARLING_DECLARE_CHECK

/// For a backend that has them all: declares its functions.
#define STARLING_ISSUE_OPERATION(Arguments, name) void issue(const Arguments& args) override;

#define STARLING_COUNT_OPERATION(Arguments, name) +1
inline constexpr int kOperations = 0 STARLING_OPERATIONS(STARLING_COUNT_OPERATION);
#undef STARLING_COUNT_OPERATION

}  // namespace starling
