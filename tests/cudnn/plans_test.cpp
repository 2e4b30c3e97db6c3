#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <span>
#include <sstream>

#include "core/backend.h"
#include "core/error.h"
#include "core/operations/attention.h"
#include "kernels/cuda/libraries/cudnn_graphs.h"
#include "tests/cudnn/model_calls.h"

// Plans on described devices what the backend would plan on real ones, by the same functions.
namespace starling::testing {

using cuda::GraphKind;
using cuda::GraphSpec;

namespace {

struct Device {
  const char *name, *file;
};
constexpr Device kDevices[] = {
    {"H200", "h200.json"}, {"H100", "h100_sxm.json"}, {"A100", "a100_80gb.json"}};
constexpr DType kTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

std::unique_ptr<cuda::GraphMaker> maker_for(const Device& device) {
  std::ifstream file(std::string(STARLING_CUDNN_DEVICES "/") + device.file);
  std::stringstream text;
  text << file.rdbuf();
  REQUIRE_MESSAGE(file.good(), "cannot read ", device.file);
  return cuda::make_described_graphs(text.str());
}

std::vector<TracedModel> all_models() {
  std::vector<TracedModel> models = configured_models();
  models.push_back(grouped_model());
  return models;
}

/// Plans one graph; of its candidates so many are tried until one can be finalised.
struct Planned {
  int candidates = 0;
  bool finalised = false;
  std::size_t workspace = 0;
  std::string why;
};
constexpr int kAll = 1000;
/// A driver alone can compile them.
bool is_attention(const GraphSpec& spec) {
  return spec.kind == GraphKind::kAttentionForward || spec.kind == GraphKind::kAttentionBackward;
}
Planned plan(cuda::GraphMaker& maker, const GraphSpec& spec, const cuda::PlanRules& rules,
             int tries) {
  Planned result;
  const auto plan = maker.plan(spec, rules, result.why);
  result.candidates = plan->candidates();
  for (int i = 0; i < std::min(plan->candidates(), tries) && !result.finalised; ++i) {
    result.finalised = plan->finalise(i, result.why);
    if (result.finalised) result.workspace = plan->workspace(i);
  }
  return result;
}

void check_models(std::span<const Device> devices) {
  for (const DType dtype : kTypes) {
    const auto graphs_of_models = trace_graphs(all_models(), dtype);
    for (const Device& device : devices) {
      const auto maker = maker_for(device);
      for (const bool tf32 : {false, true}) {
        if (tf32 && dtype != DType::kFloat32) continue;
        const cuda::PlanRules rules{.tf32 = tf32};
        std::set<GraphKind> seen;
        int graphs = 0;
        for (const auto& [spec, model] : graphs_of_models) {
          const Planned planned = plan(*maker, spec, rules, is_attention(spec) ? 0 : kAll);
          const std::string row =
              fmt::format("{} {}{}: {}", device.name, cuda::text(spec), tf32 ? " tf32" : "", model);
          ++graphs;
          seen.insert(spec.kind);
          CHECK_MESSAGE(planned.candidates > 0, row, " ", planned.why);
          CHECK_MESSAGE((planned.finalised || is_attention(spec)), row, " ", planned.why);
          CHECK_MESSAGE(planned.workspace <= rules.workspace, row);
        }
        CHECK(seen.size() == (dtype == DType::kFloat32 ? 3 : 5));
        CHECK(graphs > 80);
      }
    }
  }
}

}  // namespace

TEST_CASE("cudnn/plans: the configs' own batches are among what is planned") {
  const auto models = configured_models();
  CHECK(models.size() >= 6);
  const auto imagenet = std::find_if(models.begin(), models.end(), [](const TracedModel& model) {
    return model.name == "imagenet_resnet50.json";
  });
  REQUIRE(imagenet != models.end());
  CHECK(imagenet->input[0] == 176);
  CHECK(imagenet->batch == 128);
  CHECK(imagenet->evaluated.contains(128));
  CHECK(imagenet->evaluated.contains(50000 % 128));
}

TEST_CASE(
    "cudnn/plans: every convolution and attention of our models has an engine on an H200, in every "
    "precision") {
  check_models(std::span(kDevices).first(1));
}
TEST_CASE("cudnn/plans: every convolution and attention has one on an H100 and an A100, too") {
  check_models(std::span(kDevices).subspan(1));
}

TEST_CASE(
    "cudnn/plans: attention has an engine on an H200, an H100 and an A100 in bf16, in fp16 on one, "
    "with sums in a fixed order") {
  struct Case {
    std::int64_t n, heads, kv_heads, queries, keys, depth;
    bool causal, packed, masked;
    std::int64_t window = 0;
  };
  // GPT-2, a larger one's context, Llama's groups, ViT's 197 places, a longer memory, masks, a
  // window. Sums in a fixed order take a workspace that grows with the square of the places.
  const Case cases[] = {{8, 12, 12, 1024, 1024, 64, true, true, false},
                        {1, 16, 16, 4096, 4096, 128, true, true, false},
                        {2, 32, 8, 2048, 2048, 128, true, false, false},
                        {64, 3, 3, 197, 197, 64, false, true, false},
                        {4, 8, 8, 100, 300, 40, false, false, false},
                        {4, 8, 8, 256, 256, 64, false, false, true},
                        {4, 8, 2, 250, 250, 64, true, false, true},
                        {2, 32, 8, 2048, 2048, 128, true, false, false, 1024}};
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    const auto meta = make_meta_backend();
    for (const Device& device : kDevices) {
      // Engines for fp16 are those for bf16: one device shows it.
      if (dtype == DType::kFloat16 && &device != &kDevices[0]) continue;
      const auto maker = maker_for(device);
      for (const Case& c : cases) {
        const std::int64_t all = c.heads + 2 * c.kv_heads;
        const Tensor one(*meta, {c.n, c.queries, all * c.depth}, dtype),
            y(*meta, {c.n, c.queries, c.heads * c.depth}, dtype);
        const auto part = [&](const Tensor& x, std::int64_t first, std::int64_t count) {
          return View(x).split(2, c.depth).slice(2, first, count).transposed(1, 2);
        };
        const auto whole = [&](std::int64_t heads, std::int64_t places) {
          return View(Tensor(*meta, {c.n, heads, places, c.depth}, dtype));
        };
        AttentionBackward back;
        back.q = c.packed ? part(one, 0, c.heads) : whole(c.heads, c.queries);
        back.k = c.packed ? part(one, c.heads, c.kv_heads) : whole(c.kv_heads, c.keys);
        back.v = c.packed ? part(one, c.heads + c.kv_heads, c.kv_heads) : whole(c.kv_heads, c.keys);
        back.dq = back.q, back.dk = back.k, back.dv = back.v;
        back.y = back.dy = c.packed ? part(y, 0, c.heads) : whole(c.heads, c.queries);
        back.causal = c.causal, back.window = c.window;
        back.scale = 0.125;
        if (c.masked)
          back.mask = View(Tensor(*meta, {c.queries, c.keys}, dtype),
                           {c.n, c.heads, c.queries, c.keys}, {0, 0, c.keys, 1}, 0);
        AttentionForward forward;
        static_cast<Attention&>(forward) = back;
        forward.y = back.y;
        std::string why;
        for (const auto& spec : {cuda::spec_of(forward, why), cuda::spec_of(back, why)}) {
          REQUIRE_MESSAGE(spec, why);
          const Planned planned = plan(*maker, *spec, {}, 0);
          CHECK_MESSAGE(planned.candidates > 0, device.name, " ", cuda::text(*spec), " ",
                        planned.why);
        }
      }
    }
  }
}

TEST_CASE("cudnn/plans: the rules are kept") {
  const auto maker = maker_for(kDevices[0]);
  GraphSpec spec{.kind = GraphKind::kForward,
                 .x = {256, 56, 56, 64},
                 .y = {256, 56, 56, 64},
                 .kernel = {3, 3},
                 .stride = {1, 1},
                 .padding = {1, 1},
                 .dilation = {1, 1}};
  // fp32 without tf32 leaves out the engines that use tensor cores; a small workspace those that
  // need a larger one; determinism those whose sums have no fixed order.
  const int all = plan(*maker, spec, {.tf32 = true}, 0).candidates;
  CHECK(plan(*maker, spec, {.tf32 = false}, 0).candidates < all);
  CHECK(plan(*maker, spec, {.tf32 = true, .workspace = 0}, 0).candidates < all);
  spec.kind = GraphKind::kBackwardWeights;
  CHECK(plan(*maker, spec, {.tf32 = true}, 0).candidates <
        plan(*maker, spec, {.tf32 = true, .deterministic = false}, 0).candidates);
  // A shape that does not exist is refused with a reason, without a crash.
  spec.y = {256, 5, 5, 64};
  const Planned wrong = plan(*maker, spec, {}, kAll);
  CHECK(wrong.candidates == 0);
  CHECK(!wrong.why.empty());
}

TEST_CASE("cudnn/plans: a device's description that is no JSON is refused") {
  CHECK_THROWS_AS(cuda::make_described_graphs("{"), Error);
}

}  // namespace starling::testing
