#include "tests/layers/function_table.h"

namespace starling::testing {

namespace {

const char *const kPointwise = "Pointwise functions", *const kReductions = "Reductions",
                  *const kAlong = "Along one dimension", *const kProducts = "Products",
                  *const kAttention = "Attention", *const kMoves = "Moves",
                  *const kPlaces = "Places by number", *const kNorms = "Normalisation",
                  *const kImages = "Images", *const kLosses = "Losses", *const kRest = "What else";

}  // namespace

const std::vector<FunctionRow>& function_rows() {
  static const std::vector<FunctionRow> rows{
      {kPointwise, "`add(a, b)`, `subtract`, `multiply`, `divide`",
       "of two values, or a value and a number", "in both", "chain"},
      {kPointwise, "`power(a, b)`", "aᵇ", "in both; 0 by the exponent where a is 0", "chain"},
      {kPointwise, "`maximum(a, b)`, `minimum`", "the larger, the smaller; NaN where one is",
       "in both; shared by equal operands", "chain"},
      {kPointwise, "`equal(a, b)`, `not_equal`, `less`, `less_equal`, `greater`, `greater_equal`",
       "1 or 0", "none", "chain"},
      {kPointwise, "`where(condition, a, b)`", "a where the condition is not 0, else b",
       "in a and b", "chain"},
      {kPointwise, "`clamp(x, low, high)`", "min(max(x, low), high)",
       "whole within the limits, both counted in", "chain"},
      {kPointwise, "`negative(x)`, `abs`, `square`, `reciprocal`, `sqrt`, `rsqrt`", "", "yes",
       "chain"},
      {kPointwise, "`exp(x)`, `log`, `log1p`, `sin`, `cos`, `tanh`, `erf`", "", "yes", "chain"},
      {kPointwise, "`sigmoid(x)`, `softplus`, `relu`, `silu`", "", "yes", "chain"},
      {kPointwise, "`gelu(x, pass, form)`", "exact, or by tanh (`GeluForm::kTanh`)", "yes",
       "chain"},
      {kPointwise, "`sign(x)`", "-1, 0 or 1", "none", "chain"},

      {kReductions, "`sum(x, dims, keepdim)`, `mean`", "over dimensions; none given: over all",
       "spread", "1; 1"},
      {kReductions, "`max(x, dims, keepdim)`, `min`", "the largest, the least; NaN where one is",
       "shared by equal numbers", "1; 2"},
      {kReductions, "`variance(x, dims, correction, keepdim)`", "Σ (x - mean)² / (n - correction)",
       "yes", "2; 1"},
      {kReductions, "`logsumexp(x, dims, keepdim)`", "log Σ eˣ", "yes", "2; 1"},
      {kReductions, "`norm(x, dims, keepdim)`", "√Σ x²", "0 where the norm is 0", "1; 1"},

      {kAlong, "`softmax(x, dim)`, `log_softmax`", "x's shape", "yes", "1; 1"},
      {kAlong, "`cumsum(x, dim)`", "x's shape: sums up to each place", "sums from each on", "1; 1"},
      {kAlong, "`topk(x, k, dim)`", "k along dim: `values` and `index`; the first of equal ones",
       "in the values", "1, on a GPU k up to 16, then a sort; a scatter"},
      {kAlong, "`argmax(x, dim, keepdim)`", "int32: the first of equal ones; NaN is largest",
       "none", "1"},

      {kProducts, "`matmul(a, b)`", "…×M×K by …×K×N gives …×M×N; batches broadcast", "in both",
       "a product; two"},
      {kProducts, "`linear(x, weight, bias)`", "…×I by O×I gives …×O, + bias, ReLU", "in all",
       "a product; two"},

      {kMoves, "`reshape(x, shape)`, `unsqueeze`, `squeeze`", "the numbers in another shape", "yes",
       "none"},
      {kMoves, "`transpose(x, a, b)`, `permute`, `flip`", "other dimensions, or turned around",
       "yes", "a copy; a copy"},
      {kMoves, "`expand(x, shape)`", "repeated", "summed", "a copy; 1"},
      {kMoves, "`slice(x, dim, begin, end)`", "places of a dimension, negative ones from behind",
       "0 elsewhere", "a copy but along the first; a copy"},
      {kMoves, "`split(x, sizes, dim)`, `concat`, `stack`", "several values of one, one of several",
       "in all", "a copy; a copy"},
      {kMoves, "`pad(x, {before, after, …}, value)`", "the last dimension first", "yes",
       "a copy; a copy"},
      {kMoves, "`flatten(x)`", "N×H×W×C to N×(C·H·W)", "yes", "a copy; a copy"},
      {kMoves, "`subsample_pad(x, stride, channels)`", "every stride-th pixel, with more channels",
       "yes", "a copy; a copy"},

      {kAttention, "`scaled_dot_product_attention(q, k, v, mask, causal, scale, dropout)`",
       "softmax(scale · q·kᵀ + mask) · v of q N×H×T×D, k and v N×Hkv×S×D", "in q, k and v",
       "two products; five"},
      {kAttention, "`packed_attention(qkv, heads, kv_heads, mask, …)`",
       "the same of one projection N×T×(H + 2·Hkv)·D, as N×T×(H·D): nothing is copied",
       "in the projection", "two products; five"},
      {kAttention, "`rotary(x, positions, base, interleaved)`, `rotary(x, dim, first, …)`",
       "pairs of numbers turned by position · base^(-2i/D): halves, or `interleaved` neighbours",
       "in x", "1; 1"},

      {kPlaces, "`gather(x, dim, index)`", "the index's shape: a number for each",
       "in x, added in order", "a copy; a sort of the index"},
      {kPlaces, "`index_select(x, dim, index)`", "the places of a list", "in x, added in order",
       "a copy; a sort of the index"},
      {kPlaces, "`embedding(tokens, table)`", "…, of rows×C: …×C", "in the table, added in order",
       "a copy; a sort of the tokens"},
      {kPlaces, "`scatter_add(x, dim, index, source)`", "x, with the source added by number",
       "in x and the source", "a copy and a sort of the index; a copy"},
      {kPlaces, "`one_hot(index, classes, dtype)`", "… gives …×classes", "none",
       "a sort of the index"},

      {kNorms, "`layer_norm(x, gamma, beta, eps)`", "over the last of …×C", "in all", "1; 1"},
      {kNorms, "`rms_norm(x, weight, eps)`", "over the last of …×C", "in both", "1; 1"},
      {kNorms, "`group_norm(x, num_groups, gamma, beta, eps)`",
       "over N×…×C's middle and groups of channels; gamma and beta may be null", "in all", "3; 3"},
      {kNorms, "`instance_norm(x, gamma, beta, eps)`", "a group for each channel", "in all",
       "3; 3"},
      {kNorms, "`batch_norm(x, state, active, residual)`",
       "over all but the channels; then + residual, and ReLU", "in all", "2; 2"},
      {kNorms, "`layer_scale(x, scale, residual)`", "x · scale[C] + residual", "in all", "1; 2"},

      {kImages, "`conv2d(x, weight, bias, window)`", "N×H×W×I gives N×P×Q×O", "in all",
       "a convolution; two"},
      {kImages, "`conv_transpose2d(x, weight, bias, window, output_padding)`",
       "N×H×W×I gives N×P×Q×O, larger by the stride", "in all", "a convolution; two"},
      {kImages, "`pool2d(x, kind, window)`", "the largest, the mean or the blur of each window",
       "yes", "1; 1"},
      {kImages, "`upsample(x, scale_factor, mode)`",
       "nearest, or bilinear with align_corners false", "yes", "1; 1"},
      {kImages, "`adaptive_avg_pool2d(x, {P, Q})`", "N×H×W×C gives N×P×Q×C", "yes", "1; 1"},

      {kLosses, "`cross_entropy(logits, labels, smoothing, scale)`",
       "the mean over …×C; int32 labels, of which -100 counts for nothing, or shares",
       "in the logits", "1; none"},
      {kLosses, "`linear_cross_entropy(x, weight, targets, scale)`",
       "that of `linear(x, weight)`, of which a few rows are there at once", "in both",
       "three products; 1"},
      {kLosses, "`target_loss(x, targets, settings, scale)`",
       "focal, logistic, squared, absolute and Huber losses too", "in x", "1; none"},
      {kLosses, "`mean_loss(x, scale)`", "the mean, as the end of a loss of your own", "yes",
       "1; 1"},

      {kRest, "`parameter(weight)`", "a parameter as an operand", "in the parameter", "none; 1"},
      {kRest, "`dropout(x, p)`, `stochastic_depth`", "zeros, of numbers or of whole samples", "yes",
       "1; 1"},
      {kRest, "`activation(x, kind)`", "a pass of its own, which fuses with no chain", "yes",
       "1; 1"},
      {kRest, "`in_format(tensor, dtype)`", "the numbers in another floating format", "none", "1"},
  };
  return rows;
}

std::string table_of(const std::string& group) {
  std::string table = "| function | what | gradient | cost |\n|---|---|---|---|\n";
  for (const FunctionRow& row : function_rows()) {
    if (group != row.group) continue;
    for (const char* cell : {row.call, row.what, row.gradient, row.cost})
      table += *cell ? std::string("| ") + cell + " " : "| ";
    table += "|\n";
  }
  return table;
}

}  // namespace starling::testing
