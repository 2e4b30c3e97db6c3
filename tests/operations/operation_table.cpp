#include "tests/operations/operation_table.h"
#include "core/operations/map.h"

#include <algorithm>
#include <utility>

#include "core/operations/codecs.h"
#include "core/operations/convolutions.h"
#include "core/operations/losses.h"
#include "core/operations/norms.h"
#include "core/operations/pointwise.h"
#include "tests/operations/rows.h"

namespace starling::tests {

namespace {

void add_reductions(std::vector<Operation>& table) {
  for (const Reduction by : {Reduction::kSum, Reduction::kLargest, Reduction::kLeast}) {
    table.push_back(reduction(by, {40, 7}, {7}, {40, 7}, {7}));
    table.push_back(reduction(by, {5, 33, 24}, {5, 1, 24}, {5, 33, 24}, {5, 1, 24}));
    table.push_back(reduction(by, {300, 65}, {300, 1}, {300, 65}, {300, 1}));
    table.push_back(reduction(by, {3, 1, 4, 10}, {6, 1, 10}, {3, 6, 4, 10}, {1, 6, 1, 10}));
    table.push_back(reduction(by, {3, 4, 1, 9}, {5, 9}, {3, 4, 5, 9}, {4, 1, 1}));
    table.push_back(reduction(by, {2, 5000}, {}, {2, 5000}, {2, 1}));
    table.push_back(reduction(by, {3, 2100}, {2100}, {3, 2100}, {2100}));
    table.push_back(reduction(by, {70, 513}, {70, 513}, {70, 513}, {}));
    table.push_back(reduction(by, {2, 3}, {2, 3}, {2, 3}, {2, 3}));
  }
  // What maps take some rows of at once, with a row that repeats within a larger dimension
  table.push_back(broadcast_map({4, 50, 24}, {4, 1, 24}, {24}, {4, 50, 24}));
  table.push_back(broadcast_map({700, 3}, {700, 1}, {3}, {700, 3}));
}

void add_rows_along(std::vector<Operation>& table) {
  for (const Ties ties : {Ties::kNone, Ties::kMany}) {
    table.push_back(top_k(1, 40, 1, 1, ties));
    table.push_back(top_k(7, 300, 1, 5, ties));
    table.push_back(top_k(3, 33, 5, 20, ties));
    table.push_back(top_k(2, 700, 1, 300, ties));
    table.push_back(top_k(4, 6, 17, 6, ties));
  }
  for (const bool reverse : {false, true}) {
    table.push_back(cumulative_sum(3, 7, 1, reverse));
    table.push_back(cumulative_sum(2, 70, 33, reverse));
    table.push_back(cumulative_sum(300, 9, 5, reverse));
    table.push_back(cumulative_sum(2, 5000, 1, reverse));
    table.push_back(cumulative_sum(1, 40000, 1, reverse));
  }
  table.push_back(resampled(Resampling::kNearest, {2, 3, 4, 8}, 6, 8, {2.0, 2.0}));
  table.push_back(resampled(Resampling::kNearest, {2, 7, 5, 3}, 3, 7, {0.5, 1.5}));
  table.push_back(resampled(Resampling::kBilinear, {2, 3, 4, 8}, 6, 8, {2.0, 2.0}));
  table.push_back(resampled(Resampling::kBilinear, {1, 5, 1, 33}, 12, 3, {2.5, 3.0}));
  table.push_back(resampled(Resampling::kBilinear, {2, 9, 6, 3}, 4, 2, {0.5, 0.4}));
  table.push_back(resampled(Resampling::kAverage, {2, 7, 5, 16}, 3, 2));
  table.push_back(resampled(Resampling::kAverage, {1, 3, 4, 5}, 5, 4));
  table.push_back(resampled(Resampling::kAverage, {3, 8, 8, 64}, 1, 1));
}

void add_attention(std::vector<Operation>& table) {
  using Mask = AttentionRow::Mask;
  for (const AttentionRow& row : std::vector<AttentionRow>{
           {.samples = 2, .heads = 2, .kv_heads = 2, .queries = 5, .keys = 7, .depth = 8},
           {.heads = 4, .kv_heads = 2, .queries = 9, .keys = 9, .depth = 16, .causal = true},
           {.heads = 2, .queries = 101, .keys = 99, .depth = 20, .causal = true},
           {.queries = 70, .keys = 130, .depth = 64, .mask = Mask::kScores},
           {.samples = 2, .heads = 3, .queries = 7, .keys = 12, .depth = 5, .mask = Mask::kKeys},
           {.heads = 2, .queries = 12, .keys = 6, .depth = 33, .causal = true, .p = 0.3},
           {.samples = 2, .queries = 6, .keys = 19, .depth = 4, .mask = Mask::kScores, .p = 0.5},
           {.queries = 3, .keys = 2, .depth = 130},
           {.queries = 150, .keys = 140, .depth = 12, .p = 0.3},
           {.heads = 2, .kv_heads = 1, .queries = 270, .keys = 270, .depth = 68, .causal = true},
           {.heads = 2, .queries = 230, .keys = 230, .depth = 16, .causal = true, .window = 101},
           {.heads = 2,
           .kv_heads = 2,
           .queries = 20,
           .keys = 9,
           .depth = 8,
           .causal = true,
           .mask = Mask::kKeys,
           .p = 0.3,
           .window = 4},
           {.samples = 2,
           .heads = 4,
           .kv_heads = 2,
           .queries = 230,
           .keys = 230,
           .depth = 16,
           .causal = true,
           .documents = {100, 5, 1, 1, 96, 20, 7}},
           {.heads = 2,
           .queries = 20,
           .keys = 20,
           .depth = 33,
           .causal = true,
           .mask = Mask::kScores,
           .p = 0.3,
           .window = 4,
           .documents = {7, 13}},
           {.queries = 2, .keys = 2, .depth = 1, .p = 1.0},
           {.queries = 3, .keys = 0, .depth = 4},
           {.samples = 0, .queries = 3, .keys = 3, .depth = 4},
       })
    table.push_back(attention(row));
  table.push_back(packed_attention({.samples = 2,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .queries = 10,
                                    .keys = 10,
                                    .depth = 8,
                                    .causal = true}));
  table.push_back(
      packed_attention({.heads = 2, .kv_heads = 2, .queries = 7, .keys = 7, .depth = 3}));
  table.push_back(packed_attention({.heads = 2,
                                    .kv_heads = 1,
                                    .queries = 12,
                                    .keys = 12,
                                    .depth = 8,
                                    .causal = true,
                                    .window = 5}));
  table.push_back(rotary(12, 8, 12, 1, false));
  table.push_back(rotary(2 * 5 * 3, 6, 5, 3, true));
  table.push_back(rotary(7, 140, 7, 1, false));
  table.push_back(rotary(2 * 5 * 3, 8, 5, 3, false, 70));
  table.push_back(rotary(9, 12, 9, 1, false, 1000, true));
}

void add_rows_of_norm_steps(std::vector<Operation>& table) {
  for (const Index channels : {1, 5, 16, 130}) {
    table.push_back(batch_norm_statistics(1100, channels));
    table.push_back(batch_norm_backward_sums(601, channels));
    table.push_back(batch_norm_backward_sums(601, channels, {true, 0.5}));
    table.push_back(batch_norm_backward_sums(601, channels, {}));
    table.push_back(batch_norm_backward_apply(90, channels, channels == 16));
    table.push_back(batch_norm_backward_apply(7, channels, false, false));
  }
  table.push_back(batch_norm_finish(7, 50, true));
  table.push_back(batch_norm_finish(300, 4096, false));
}

void add_rows_without_gradient(std::vector<Operation>& table) {
  for (Operation& op : std::vector<Operation>{
           soft_target_loss(LossKind::kCrossEntropy, 5, 7, 0.0, 0.1),
           soft_target_loss(LossKind::kCrossEntropy, 3, 300),
           soft_target_loss(LossKind::kFocal, 6, 10, 2.0),
           soft_target_loss(LossKind::kFocal, 4, 33, 0.5, 0.2),
           soft_target_loss(LossKind::kCrossEntropy, 6, 9, 0.0, 0.1, true),
           soft_target_loss(LossKind::kLogistic, 9, 5),
           soft_target_loss(LossKind::kSquared, 7, 3),
           soft_target_loss(LossKind::kAbsolute, 40, 1),
           soft_target_loss(LossKind::kHuber, 8, 9, 0.4),
           squared_distance(7, false),
           squared_distance(4096, true),
           squared_distance(9001, true),
           squared_distance(70 * 4096 + 7, false),
           squared_norms(9001),
           gradient_control(1, 0.0, false, Norms::kFinite),
           gradient_control(40, 0.5, true, Norms::kFinite),
           augmentation({5, 9, 7, 3}, 2),
           augmentation({3, 8, 8, 1}, 0),
           augmentation({2, 12, 12, 4}, 4),
           augmentation({5, 9, 7, 3}, 2, 2, true),
           augmentation({3, 8, 8, 1}, 0, 1, false),
           augmentation({4, 6, 16, 4}, 1, 0, true),
           changed_pixels({3, 9, 7, 3}, 4),
           changed_pixels({2, 12, 5, 1}, 3),
           changed_pixels({2, 6, 6, 4}, 2),
           resized_pictures({8, 7, 5, 3}),
           resized_pictures({3, 40, 33, 3}),
           coded_sum(96, Code::kInt8, 32),
           coded_sum(96, Code::kMinMax8, 32),
           coded_sum(1000, Code::kInt8, 256),
           coded_sum(1000, Code::kMinMax8, 256, true),
           coded_sum(40000, Code::kInt8, 0),
           coded_sum(70000, Code::kMinMax8, 0),
           coded_sum(140000, Code::kInt8, 65568, true),
           coded_sum(104, Code::kInt4, 32),
           coded_sum(1000, Code::kInt4, 256, true),
           coded_sum(70008, Code::kInt4, 0),
           coded_rest(1000, Code::kInt8, 256),
           sparse_mean(320, 64, 1.0 / 16.0, 2),
           sparse_mean(800, 128, 0.3, 8, true),
           sparse_mean(800, 96, 1.0, 4),
           sparse_mean(9600, 4096, 1.0 / 64.0, 2, true),
           sparse_mean(9600, 8192, 0.01, 4),
           sparse_mean(320, 64, 0.3, 2, false, 150),
           coded_rest(5000, Code::kInt4, 128, false),
           coded_rest(70000, Code::kInt4, 0),
           coded_rest(20000, Code::kMinMax8, 4096),
           coded_rest(132, Code::kBf16, 0),
           coded_rest(132, Code::kNone, 0),
           coded_sum(132, Code::kBf16, 0),
           coded_sum(132, Code::kNone, 0),
           fused_update({.rule = "sgd"}),
           fused_update({.rule = "adamw", .n = 4128, .terms = 0}),
           fused_update({.rule = "adamw", .terms = 2, .step = 5}),
           fused_update({.rule = "adamw", .terms = 1, .skip = true}),
           fused_update({.rule = "accum_adamw", .n = 1056, .terms = 1, .step = 1}),
           fused_update({.rule = "accum_adamw", .terms = 0, .step = 5}),
           fused_update({.rule = "accum_adamw", .terms = 3, .step = 6}),
       }) {
    table.push_back(std::move(op));
  }
  for (const double clip : {0.0, 0.1, 1e3}) {
    for (const Norms norms : {Norms::kFinite, Norms::kInfinite, Norms::kNan}) {
      for (const bool check : {false, true})
        table.push_back(gradient_control(5, clip, check, norms));
    }
  }
}

/// What is bound by launches, and by memory, in networks as they are trained: on a GPU (2048) CIFAR
/// ResNet-20 with 128 images, and ResNet-50 with 256.
void add_rows_of_networks(std::vector<Operation>& table, Index batch) {
  const Index small = std::max<Index>(batch / 16, 1), large = std::max<Index>(batch / 8, 1);
  for (const Index shrunk : {1, 2, 4}) {
    table.push_back(batch_norm(small * 1024 / (shrunk * shrunk), 16 * shrunk,
                               {.relu = true, .mask = MaskFrom::kInput}));
  }
  table.push_back(batch_norm(large * 3136, 64, {.relu = true, .mask = MaskFrom::kInput}));
  table.push_back(batch_norm(large * 196, 1024, {.relu = true, .residual = true}));
  table.push_back(batch_norm(large * 49, 2048, {.relu = true, .residual = true}));
  table.push_back(global_pooling({small, 8, 8, 64}));
  table.push_back(global_pooling({large, 7, 7, 2048}));
  table.push_back(coded_sum(1152 * batch, Code::kInt8, 256));
  table.push_back(coded_sum(1152 * batch, Code::kMinMax8, 256));
  table.push_back(coded_sum(1152 * batch, Code::kInt4, 256));
  table.push_back(coded_rest(1152 * batch, Code::kInt4, 256));
  table.push_back(sparse_mean(1152 * batch, 4096, 1.0 / 16.0, 2));
  table.push_back(cross_entropy(small, 10, 0.0));
  table.push_back(cross_entropy(large, 1000, 0.1));
  table.push_back(sums_of_rows(small, 10));
  table.push_back(sums_of_rows(large, 1000));
  table.push_back(squared_distance(18 * batch, false));
  table.push_back(squared_distance(1152 * batch, false));
}

}  // namespace

std::vector<Operation> operation_table() {
  std::vector<Operation> table = {
      convolution({2, 7, 6, 3}, 16, window(3, 1, 1), false),
      convolution({2, 8, 8, 1}, 5, window(5, 2, 2), true),
      convolution({2, 8, 8, 16}, 16, window(3, 1, 1), false),
      // By minimal filtering: tiles over the edge; several parts of the outputs and blocks of tiles
      convolution({4, 7, 6, 16}, 32, window(3, 1, 1), true),
      convolution({1, 5, 61, 48}, 16, window(3, 1, 1), false),
      convolution({13, 7, 7, 16}, 144, window(3, 1, 1), false),
      convolution({3, 8, 8, 16}, 32, window(3, 2, 1), false),
      convolution({2, 9, 7, 33}, 17, window(3, 2, 1), true),
      convolution({2, 6, 6, 64}, 64, window(3, 1, 1), false),
      convolution({2, 6, 6, 32}, 64, window(1, 2, 0), false),
      convolution({2, 5, 4, 96}, 96, window(1, 1, 0), true),
      convolution({2, 5, 4, 96}, 96, window(1, 2, 0), false),
      convolution({2, 3, 4, 96}, 96, window(1, 1, 1), false),
      convolution({3, 7, 6, 128}, 80, window(3, 2, 1), true),
      convolution({5, 42, 8, 512}, 16, Window2d{{1, 2}, {1, 2}, {0, 1}, {1, 1}, 1}, false),
      convolution({2, 4, 3, 256}, 256, window(3, 1, 1), true),
      convolution({2, 9, 9, 8}, 12, window(3, 1, 2, 2), true),
      convolution({2, 6, 6, 32}, 32, window(3, 1, 1, 1, 4), true),
      convolution({2, 6, 6, 12}, 12, window(3, 1, 1, 1, 12), false),
      // Of every channel alone: tiles of all sizes, blocks that are not full, parts of the rows.
      convolution({2, 9, 15, 24}, 24, window(3, 1, 1, 1, 24), true),
      convolution({3, 7, 8, 70}, 70, window(3, 2, 1, 1, 70), false),
      convolution({2, 7, 7, 96}, 96, window(7, 1, 3, 1, 96), true),
      convolution({1, 37, 12, 5}, 5, window(7, 1, 3, 1, 5), false),
      convolution({2, 6, 9, 8}, 8, window(5, 1, 2, 1, 8), false),
      convolution({2, 10, 9, 65}, 65, window(5, 2, 0, 1, 65), false),
      convolution({1, 9, 9, 6}, 6, window(3, 1, 2, 2, 6), true),
      convolution({1, 9, 12, 6}, 6, window(5, 1, 4, 2, 6), false),
      convolution({1, 9, 8, 3}, 3, window(2, 3, 1, 1, 3), false),
      convolution({1, 4, 5, 16}, 16, window(3, 1, 3, 1, 16), false),
      convolution({2, 2, 2, 64}, 64, window(7, 1, 3, 1, 64), false),
      convolution({1, 5, 6, 4}, 4, Window2d{{1, 2}, {3, 4}, {0, 0}, {1, 1}, 4}, false),
      convolution({1, 12, 12, 2}, 2, window(9, 1, 4, 1, 2), false),
      convolution({1, 6, 9, 4}, 6, Window2d{{3, 2}, {2, 1}, {1, 0}, {1, 2}, 2}, true),
      convolution({2, 16, 16, 3}, 8, window(7, 2, 3), false),
      convolution({2, 16, 17, 3}, 48, window(8, 8, 0), false),
      convolution({1, 9, 6, 17}, 70, window(1, 1, 0), false),
      convolution({2, 9, 8, 6}, 9, Window2d{{3, 2}, {2, 3}, {1, 0}, {1, 2}, 3}, true),
      // Long sums, which parts of a grid share: for the weights, and forward.
      convolution({2, 20, 20, 4}, 6, window(3, 1, 1, 1, 2), false),
      convolution({1, 3, 3, 66}, 65, window(3, 2, 1), false),
      layer_norm(5, 1),
      layer_norm(9, 33),
      layer_norm(20, 130),
      layer_norm(33, 64),
      layer_norm(3, 520),
      layer_norm(600, 40),
      layer_norm(9, 33, false),
      layer_norm(0, 6),
      layer_norm(3, 4300),
      layer_norm(9, 33, true, false),
      layer_norm(601, 40, true, false),
      layer_norm(4, 130, false, false),
      layer_norm(20, 130, true, true, true),
      layer_norm(5, 64, false, false, true),
      layer_norm(3, 4300, true, false, true),
      layer_norm_of_sum(20, 130),
      layer_norm_of_sum(9, 768),
      layer_norm_of_sum(5, 1536, false),
      layer_norm_of_sum(3, 4304, false),
      layer_norm_of_sum(0, 6),
      softmax(5, 1),
      softmax(9, 33),
      softmax(28, 24, true),
      softmax(130, 40),
      softmax(2, 4301),
      softmax(1, 4301, true),
      softmax(1, 4112, true),
      softmax(3, 4352),
      softmax(0, 6),
      pooling(Pooling::kMax, {2, 8, 8, 16}, window(3, 2, 1)),
      pooling(Pooling::kMax, {2, 7, 5, 3}, window(2, 2, 0)),
      pooling(Pooling::kMax, {1, 9, 9, 5}, window(3, 1, 2, 2)),
      pooling(Pooling::kMax, {1, 5, 8, 24}, {{3, 2}, {1, 3}, {1, 0}, {2, 1}}, Ties::kMany),
      pooling(Pooling::kMax, {2, 11, 4, 40}, window(3, 2, 1), Ties::kMany),
      pooling(Pooling::kMax, {1, 4, 4, 8}, window(2, 3, 0)),
      pooling(Pooling::kMax, {1, 1, 1, 1}, window(1, 1, 0)),
      pooling(Pooling::kAverage, {1, 2, 3, 2}, window(3, 1, 2)),
      pooling(Pooling::kAverage, {1, 5, 8, 24}, {{3, 2}, {1, 3}, {1, 0}, {2, 1}}),
      pooling(Pooling::kAverage, {2, 8, 8, 16}, window(2, 2, 0)),
      pooling(Pooling::kAverage, {2, 7, 5, 33}, window(3, 2, 1)),
      pooling(Pooling::kBlur, {2, 8, 8, 16}, window(3, 1, 1)),
      pooling(Pooling::kBlur, {2, 7, 6, 33}, window(3, 2, 1)),
      pooling(Pooling::kBlur, {1, 9, 9, 5}, {{7, 4}, {2, 3}, {3, 1}}),
      pooling(Pooling::kBlur, {2, 5, 4, 1}, window(2, 1, 0)),
      global_pooling({3, 4, 4, 64}),
      global_pooling({2, 7, 1, 5}),
      global_pooling({1, 1, 1, 1}),
      global_pooling({2, 7, 7, 24}),
      global_pooling({40, 2, 3, 8}),
      global_pooling({2, 7, 7, 300}),
      subsample_pad({2, 8, 8, 16}, 2, 32, 8),
      subsample_pad({2, 7, 5, 3}, 2, 6, 1),
      subsample_pad({1, 9, 4, 8}, 3, 24, 8),
      subsample_pad({3, 4, 4, 16}, 1, 16, 0),
      subsample_pad({2, 5, 6, 16}, 2, 40, 4),
      flatten({3, 4, 5, 7}),
      flatten({2, 8, 8, 64}),
      turned_around(5, 7),
      broadcast_map({3, 4, 1, 8}, {8}, {3, 4, 5, 8}, {3, 4, 5, 8}),
      broadcast_map({2, 7}, {2, 1}, {1}, {2, 7}),
      broadcast_map({600}, {600}, {600}, {600}),
      broadcast_map({3, 1, 33}, {5, 1}, {}, {3, 5, 33}),
      repeated(6, 5),
      put_beside(9, 40, 8, 24, std::nullopt),
      put_beside(9, 40, 8, 24, 2.5),
      put_beside(7, 13, 3, 5, std::nullopt),
      put_beside(7, 13, 0, 5, -2.5),
      flatten({2, 3, 11, 33}),
      flatten({1, 6, 6, 70}),
      indexed(1, 5, 9, 3),
      indexed(1, 100, 2, 33),
      indexed(1, 300, 40, 64),
      indexed(1, 3, 500, 16),
      indexed(1, 700, 70000, 1),  // three digits of 8 bits
      indexed(1, 4, 3, 16400),    // a row is more than one thread's least work
      indexed(3, 7, 5, 8),
      indexed(3, 7, 5, 8, true),
      indexed(4, 70, 30, 1, true),
      target_loss(LossKind::kCrossEntropy, 2, 700, 0.0, 0.1),
      target_loss(LossKind::kFocal, 16, 10, 2.0),
      target_loss(LossKind::kFocal, 3, 300, 1.5, 0.1),
      target_loss(LossKind::kLogistic, 17, 10),
      target_loss(LossKind::kSquared, 4, 7),
      target_loss(LossKind::kAbsolute, 5, 6),
      target_loss(LossKind::kHuber, 6, 5, 0.5),
      target_loss(LossKind::kCrossEntropy, 70, 4, 0.0, 0.0, true),
      target_loss(LossKind::kCrossEntropy, 9, 300, 0.0, 0.2, true),
      target_loss(LossKind::kFocal, 5, 8, 1.5, 0.0, true),
      target_loss(LossKind::kCrossEntropy, 30, 4, 0.0, 0.1, false, 1),
      target_loss(LossKind::kFocal, 40, 5, 2.0, 0.0, true, 3),
      cross_entropy(30, 5, 0.1, 2),
      cross_entropy_in_parts(30, 5, 2),
      cross_entropy(9, 2500, 0.0, 0),
      cross_entropy(16, 10, 0.0),
      cross_entropy(17, 300, 0.1),
      cross_entropy(3, 2, 0.2),
      cross_entropy(1, 1, 0.0),
      cross_entropy(2, 2500, 0.1),
      cross_entropy(4, 2500, 0.1, {}, 60),
      cross_entropy(5, 2051, 0.0, 7, 13),
      cross_entropy(6, 10, 0.0, 3, 6),
      cross_entropy(70, 33, 0.0),
      sum_with_weights(5),
      sum_with_weights(3000),
      dropout(5, 0.5),
      dropout(33, 0.0),
      dropout(33, 1.0),
      dropout(4099, 0.1),
      cast(1001, Role::kActivation, Role::kParameter),
      cast(1001, Role::kParameter, Role::kActivation),
      cast(33, Role::kIndex, Role::kParameter),
      cast(33, Role::kIndex, Role::kExact),
      sums_of_rows(1, 10),
      sums_of_rows(77, 3),
      sums_of_rows(5000, 16),
      sums_of_rows(300, 130),
      sums_of_rows(40, 520),
      sums_of_rows(9000, 2),
      sums_of_rows(33, 1000),
  };
  table.push_back(matrix_product(9, 64, 1100, false, true, true));
  table.push_back(matrix_product(65, 130, 17, true, false, false));
  for (const bool ta : {false, true}) {
    for (const bool tb : {false, true}) {
      table.push_back(matrix_product(5, 7, 3, ta, tb, false));
      table.push_back(matrix_product(64, 33, 300, ta, tb, true));
      table.push_back(matrix_product(64, 33, 300, ta, tb, false, Role::kParameter));
      table.push_back(matrix_product(30, 34, 70, ta, tb, ta, Role::kActivation, true));
    }
    table.push_back(gelu_product(18, 24, 33, ta));
  }
  table.push_back(gelu_gradient_product(18, 24, 33));
  table.push_back(weight_gradient(17, 40, 300));
  for (const bool ta : {false, true}) {
    table.push_back(batched_product({6, ta ? 9 : 20, ta ? 20 : 9}, {6, 9, 17}, {6, 20, 17}, ta,
                                    false, true, ta));
    table.push_back(
        batched_product({2, 3, ta ? 8 : 5, ta ? 5 : 8}, {7, 8}, {2, 3, 5, 7}, ta, true));
    table.push_back(
        batched_product({3, 1, ta ? 8 : 5, ta ? 5 : 8}, {4, 16, 8}, {3, 4, 5, 16}, ta, true, ta));
    table.push_back(batched_product({ta ? 6 : 4, ta ? 4 : 6}, {5, 6, 3}, {5, 4, 3}, ta, false));
  }
  for (const Index length : {1, 7, 33}) {
    table.push_back(head_scores(2, length, 3, 8));
    table.push_back(head_values(2, length, 3, 8));
  }
  add_attention(table);
  for (int terms = 0; terms <= 8; ++terms) table.push_back(sum_with_weights(33, terms));
#define STARLING_ROW(name, operands, value) table.push_back(map_function(MapFunction::name, 131));
  STARLING_MAP_FUNCTIONS(STARLING_ROW)
#undef STARLING_ROW
  table.push_back(map_of_several({1037}, {1037}, {1037}));
  table.push_back(map_of_several({5, 1, 24}, {7, 24}, {5, 7, 24}));
  for (const Index n : {1, 7, 33, 4101}) {
    table.push_back(sum_of_two(n));
    table.push_back(activation(MapFunction::kRelu, "relu", n));
    table.push_back(activation(MapFunction::kGelu, "gelu", n));
    table.push_back(activation(MapFunction::kSilu, "silu", n));
    table.push_back(activation(MapFunction::kRelu6, "relu6", n));
  }
  const NormCase norms[] = {
      {},
      {.relu = true},
      {.relu = true, .affine = false},
      {.relu = true, .mask = MaskFrom::kInput},
      {.relu = true, .mask = MaskFrom::kInput, .ceiling = 0.75},
      {.relu = true, .residual = true},
      {.relu = true, .residual = true, .two_terms = true},
      {.residual = true, .affine = false, .two_terms = true},
      {.relu = true, .mask = MaskFrom::kInput, .inference = true, .two_terms = true},
      {.residual = true, .affine = false, .inference = true}};
  for (const NormCase& how : norms) {
    // Tails, packs and single elements, one part of the rows and several with a shorter last one.
    table.push_back(batch_norm(37, 3, how));
    table.push_back(batch_norm(77, 33, how));
    table.push_back(batch_norm(600, 16, how));
    table.push_back(batch_norm(5, 264, how));
  }
  for (const Index channels : {1, 5, 64, 130})
    table.push_back(batch_norm(50, channels, {.relu = true, .residual = true}));
  // few numbers: one that low precision rounds to the ceiling has another mask
  for (const bool inference : {false, true}) {
    table.push_back(batch_norm(37, 3, {.relu = true, .ceiling = 0.5, .inference = inference}));
    table.push_back(batch_norm(7, 8,
                               {.relu = true,
                                .residual = true,
                                .ceiling = 0.5,
                                .inference = inference,
                                .two_terms = true}));
  }
  table.push_back(batch_norm(2500, 1, {.relu = true}));
  table.push_back(batch_norm(2, 4, {}));
  // more than the CPU's kernels take at once
  table.push_back(batch_norm(9, 4500, {.relu = true, .residual = true}));
  add_reductions(table);
  add_rows_along(table);
  add_rows_of_norm_steps(table);
  add_rows_without_gradient(table);
  return table;
}

std::vector<Operation> timing_table(std::int64_t batch) {
  const Index pixels = batch * 32 * 32, n = pixels * 16;
  std::vector<Operation> table = {
      convolution({batch, 32, 32, 16}, 16, window(3, 1, 1), false),
      convolution({batch, 32, 32, 16}, 32, window(3, 2, 1), false),
      convolution({batch, 16, 16, 32}, 32, window(3, 1, 1), false),
      convolution({batch, 8, 8, 64}, 64, window(3, 1, 1), false),
      convolution({batch, 8, 8, 64}, 256, window(1, 1, 0), false),
      convolution({batch, 16, 16, 192}, 192, window(3, 1, 1, 1, 192), false),
      convolution({batch, 16, 16, 96}, 96, window(7, 1, 3, 1, 96), true),
      matrix_product(batch, 512, 3072, false, true, true),
      matrix_product(512, 3072, batch, true, false, false, Role::kParameter),
      matrix_product(8 * batch, 1024, 1024, false, true, false),
      matrix_product(8 * batch, 1024, 1024, false, true, true, Role::kActivation, true),
  };
  for (const Index shrunk : {1, 2, 4}) {
    const Index rows = pixels / (shrunk * shrunk), channels = 16 * shrunk;
    table.push_back(batch_norm(rows, channels, {}));
    table.push_back(batch_norm(rows, channels, {.relu = true, .mask = MaskFrom::kInput}));
    table.push_back(batch_norm(rows, channels, {.relu = true, .residual = true}));
  }
  add_rows_of_networks(table, batch);
  const Index rows = pixels / 4;
  for (Operation& op : std::vector<Operation>{
           layer_norm(64 * batch, 256),
           layer_norm(64 * batch, 256, true, false),
           softmax(64 * batch, 256),
           softmax(batch, 16384, true),
           pooling(Pooling::kMax, {batch, 32, 32, 16}, window(3, 2, 1)),
           pooling(Pooling::kAverage, {batch, 32, 32, 16}, window(2, 2, 0)),
           pooling(Pooling::kBlur, {batch, 32, 32, 16}, window(3, 1, 1)),
           global_pooling({batch, 32, 32, 16}),
           subsample_pad({batch, 32, 32, 16}, 2, 32, 8),
           flatten({batch, 32, 32, 16}),
           indexed(1, 32 * batch, 4096, 256),
           packed_attention({.samples = std::max<Index>(1, batch / 32),
           .heads = 12,
           .kv_heads = 12,
           .queries = 256,
           .keys = 256,
           .depth = 64,
           .causal = true}),
           rotary(64 * batch, 64, 64, 1, false),
           cross_entropy(16 * batch, 1000, 0.1),
           activation(MapFunction::kRelu, "relu", n),
           activation(MapFunction::kGelu, "gelu", n),
           activation(MapFunction::kSilu, "silu", n),
           sum_of_two(n),
           sum_with_weights(n),
           sums_of_rows(32 * batch, 512),
           batch_norm_statistics(rows, 32),
           batch_norm_backward_sums(rows, 32),
           batch_norm_backward_apply(rows, 32, false),
           dropout(n, 0.5),
           cast(n, Role::kActivation, Role::kParameter),
           cast(n, Role::kParameter, Role::kActivation),
           augmentation({batch, 32, 32, 3}, 4),
           augmentation({batch, 32, 32, 3}, 4, 1, true),
           changed_pixels({batch, 32, 32, 3}, 3),
           resized_pictures({batch, 32, 32, 3}),
           top_k(16 * batch, 1000, 1, 1),
           top_k(16 * batch, 1000, 1, 50),
           cumulative_sum(64 * batch, 256, 1),
           cumulative_sum(batch, 1024, 16),
           resampled(Resampling::kNearest, {batch, 16, 16, 16}, 32, 32, {2.0, 2.0}),
           resampled(Resampling::kBilinear, {batch, 16, 16, 16}, 32, 32, {2.0, 2.0}),
           resampled(Resampling::kAverage, {batch, 32, 32, 16}, 7, 7),
           squared_distance(n, true),
           fused_update({.rule = "adamw", .n = 4096 * batch, .own_states = false}),
           fused_update(
               {.rule = "accum_adamw", .n = 4096 * batch, .updates = 3, .own_states = false}),
           coded_sum(n, Code::kInt8, 256),
           coded_rest(n, Code::kInt4, 256),
       }) {
    table.push_back(std::move(op));
  }
  return table;
}

}  // namespace starling::tests
