// A second, plain implementation of a training run: every rank of it in one process, one sample at
// a time, in double precision, straight from the formulas. It knows nothing of buckets' memory,
// schedulers, transports or kernels. `prepare` writes initial values; `check` compares each rank's
// final checkpoint of a run of starling-train with what the formulas give.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "apps/data/image_dataset.h"
#include "apps/inference/checkpoint_file.h"
#include "apps/training/config/plugins.h"
#include "core/config.h"
#include "core/random.h"
#include "core/safetensors.h"
#include "tests/comm/plain_families.h"
#include "topology/topology.h"

namespace {

using starling::ConfigSection;
using Vector = std::vector<double>;
using Json = nlohmann::json;

/// Weights and biases by layer: tensor 2l is layer l's weight (out×in), 2l + 1 its bias.
struct Network {
  std::vector<int> widths;
  std::vector<Vector> tensors;
  std::vector<std::string> names;

  Network(int inputs, const Json& model) {
    widths.push_back(inputs);
    for (int width : model["hidden"]) widths.push_back(width);
    widths.push_back(model["num_classes"]);
    for (std::size_t l = 0; l + 1 < widths.size(); ++l) {
      tensors.emplace_back(static_cast<std::size_t>(widths[l + 1] * widths[l]));
      tensors.emplace_back(static_cast<std::size_t>(widths[l + 1]));
      names.push_back(fmt::format("{}.weight", 1 + 2 * l));
      names.push_back(fmt::format("{}.bias", 1 + 2 * l));
    }
  }

  /// Adds scale · d(loss)/d(tensors) of one sample to `gradient`; the loss is softmax cross entropy
  /// with label smoothing.
  void add_gradient(const Vector& x, int label, double smoothing, double scale,
                    std::vector<Vector>& gradient) const {
    const std::size_t layers = widths.size() - 1;
    std::vector<Vector> values{x};
    for (std::size_t l = 0; l < layers; ++l) {
      Vector y = tensors[2 * l + 1];
      const auto in = static_cast<std::size_t>(widths[l]);
      for (std::size_t o = 0; o < y.size(); ++o) {
        for (std::size_t i = 0; i < in; ++i) y[o] += tensors[2 * l][o * in + i] * values[l][i];
        if (l + 1 < layers && y[o] < 0.0) y[o] = 0.0;
      }
      values.push_back(y);
    }
    Vector d = values.back();
    double largest = d[0], sum = 0.0;
    for (double v : d) largest = std::max(largest, v);
    for (double& v : d) sum += v = std::exp(v - largest);
    const auto classes = static_cast<double>(d.size());
    for (std::size_t c = 0; c < d.size(); ++c) {
      const double target =
          (static_cast<int>(c) == label ? 1.0 - smoothing : 0.0) + smoothing / classes;
      d[c] = scale * (d[c] / sum - target);
    }
    for (std::size_t l = layers; l-- > 0;) {
      const auto in = static_cast<std::size_t>(widths[l]);
      Vector below(in, 0.0);
      for (std::size_t o = 0; o < d.size(); ++o) {
        gradient[2 * l + 1][o] += d[o];
        for (std::size_t i = 0; i < in; ++i) {
          gradient[2 * l][o * in + i] += d[o] * values[l][i];
          below[i] += d[o] * tensors[2 * l][o * in + i];
        }
      }
      for (std::size_t i = 0; i < in; ++i) {
        if (values[l][i] <= 0.0) below[i] = 0.0;  // unused for the input itself
      }
      d = below;
    }
  }
};

/// Semantics, section 9: position p of epoch e's order.
std::vector<std::int64_t> permutation(std::uint64_t seed, std::uint32_t epoch, std::int64_t n) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
  for (std::size_t i = order.size() - 1; i > 0; --i) {
    const auto bits = starling::random_bits(seed, starling::RandomStream::kPermutation, epoch, i);
    std::swap(order[i], order[starling::uniform_below(bits, i + 1)]);
  }
  return order;
}

/// Section 8, the schedules that the runs use.
double learning_rate(const Json& config, std::int64_t t, std::int64_t total) {
  const Json& schedule = config["schedule"];
  const double base = config["optimizer"]["lr"];
  if (schedule["type"] == "constant" && schedule["warmup_steps"] == 0) return base;
  const double warmup = schedule["warmup_steps"], s = schedule["warmup_factor"];
  if (static_cast<double>(t) < warmup)
    return base * (s + (1.0 - s) * static_cast<double>(t) / warmup);
  if (schedule["type"] == "constant") return base;
  const double min_lr = schedule["min_lr"], T = static_cast<double>(total) - warmup;
  return min_lr +
         (base - min_lr) *
             (1.0 + std::cos(M_PI * std::min((static_cast<double>(t) - warmup) / T, 1.0))) / 2.0;
}

/// Section 1: tensors become ready last layer first, the weight with its bias. Which bucket each is
/// in, and where in it.
struct Places {
  std::vector<int> bucket;               ///< by tensor
  std::vector<std::size_t> first;        ///< by tensor
  std::vector<std::size_t> bucket_size;  ///< in elements, with padding
};
Places places_of(const Network& net, double bucket_bytes) {
  Places places{
      std::vector<int>(net.tensors.size()), std::vector<std::size_t>(net.tensors.size()), {}};
  bool open = false;
  for (std::size_t l = net.tensors.size() / 2; l-- > 0;) {
    for (std::size_t k : {2 * l, 2 * l + 1}) {
      if (!open) places.bucket_size.push_back(0);
      std::size_t& size = places.bucket_size.back();
      places.bucket[k] = static_cast<int>(places.bucket_size.size()) - 1;
      places.first[k] = size;
      size += (net.tensors[k].size() + 31) / 32 * 32;
      open = 8.0 * static_cast<double>(size) < bucket_bytes;
    }
  }
  return places;
}

void load(const starling::SafetensorsFile& file, const std::string& prefix, Network& net) {
  for (std::size_t k = 0; k < net.tensors.size(); ++k) {
    const starling::FileTensor& tensor = file.tensors.at(prefix + net.names[k]);
    const auto* data = reinterpret_cast<const double*>(tensor.bytes.data());
    net.tensors[k].assign(data, data + net.tensors[k].size());
  }
}

int prepare(const std::string& path, const Json& config, int inputs) {
  Network net(inputs, config["model"]);
  starling::SafetensorsFile file;
  for (std::size_t k = 0; k < net.tensors.size(); ++k) {
    starling::fill_random(starling::Init::uniform(0.1), 99, static_cast<std::uint32_t>(k),
                          static_cast<std::int64_t>(net.tensors[k].size()), net.tensors[k].data());
    starling::FileTensor tensor{starling::DType::kFloat64, {}, {}};
    const std::int64_t out = net.widths[k / 2 + 1], in = net.widths[k / 2];
    tensor.shape = k % 2 == 0 ? starling::Shape{out, in} : starling::Shape{out};
    const auto* bytes = reinterpret_cast<const std::byte*>(net.tensors[k].data());
    tensor.bytes.assign(bytes, bytes + net.tensors[k].size() * sizeof(double));
    file.tensors[net.names[k]] = tensor;
  }
  starling::write_safetensors(path, file);
  return 0;
}

Vector flat(const std::vector<Vector>& tensors) {
  Vector all;
  for (const Vector& tensor : tensors) all.insert(all.end(), tensor.begin(), tensor.end());
  return all;
}
Network shaped(const Network& like, const Vector& all) {
  Network net = like;
  auto from = all.begin();
  for (Vector& tensor : net.tensors) {
    std::copy_n(from, tensor.size(), tensor.begin());
    from += static_cast<std::ptrdiff_t>(tensor.size());
  }
  return net;
}

/// In an algorithm's steps before this one the optimizer gets means over the ranks' gradients.
std::int64_t means_before(const Json& algorithm) {
  const auto type =
      algorithm.is_string() ? algorithm.get<std::string>() : algorithm.value("type", "gossip");
  if (type == "allreduce" || type == "bytegrad") return std::numeric_limits<std::int64_t>::max();
  if (type == "local_sgd") return algorithm.value("start", 0);
  return type == "qadam" ? algorithm.value("warmup", 100) : 0;
}

using GradientsAt =
    std::function<std::vector<std::vector<Vector>>(std::int64_t, const std::vector<Network>&)>;
std::vector<Network> trained(const Json& config, const Network& start, std::size_t n,
                             std::int64_t steps_per_epoch, const GradientsAt& gradients_at) {
  const Json& sync = config["sync"];
  starling::test::Job job;
  job.algorithm = sync["algorithm"];
  job.topology = sync.value("topology", Json::object());
  job.exchange = sync.value("exchange", "fp32");
  job.optimizer = config["optimizer"];
  if (job.optimizer.value("noise_correction", Json()) == "ranks")
    job.optimizer["noise_correction"] = n;
  job.steps = config["steps"];
  job.clip = {config["clip_norm"], config["clip"] == "bucket"};
  for (const Json& entry : sync.value("switch", Json::array())) {
    const int step = entry.contains("step") && !entry["step"].is_null()
                         ? entry["step"].get<int>()
                         : static_cast<int>(std::ceil(entry.at("epoch").get<double>() *
                                                      static_cast<double>(steps_per_epoch)));
    job.switches.push_back({step, entry.at("algorithm"), entry.value("topology", Json())});
  }
  const auto drop_text = [](Json& algorithm) {
    if (algorithm.is_object() && algorithm.value("mu", Json()) == "momentum") algorithm.erase("mu");
  };
  drop_text(job.algorithm);
  for (starling::test::Switch& next : job.switches) drop_text(next.algorithm);
  const Json& given_scale = sync["lr_scale"];
  const double scale =
      given_scale == "sqrt_ranks" ? std::sqrt(static_cast<double>(n)) : given_scale.get<double>();
  job.lr_at = [&](int t) {
    const Json* algorithm = &job.algorithm;
    int first = 0;
    for (const starling::test::Switch& next : job.switches) {
      if (t < next.step) break;
      algorithm = &next.algorithm;
      first = next.step;
    }
    return learning_rate(config, t, config["steps"]) *
           (t - first < means_before(*algorithm) ? 1.0 : scale);
  };
  starling::test::PlainProblem problem;
  problem.start.assign(n, flat(start.tensors));
  const Places places = places_of(start, sync["bucket_mb"].get<double>() * 1024 * 1024);
  problem.message_sizes = places.bucket_size;
  for (std::size_t k = 0; k < start.tensors.size(); ++k) {
    const std::size_t elements = start.tensors[k].size();
    problem.decays.insert(problem.decays.end(), elements,
                          k % 2 == 0 || config["optimizer"]["decay"] == "all");
    problem.bucket_of.insert(problem.bucket_of.end(), elements,
                             static_cast<std::size_t>(places.bucket[k]));
    for (std::size_t e = 0; e < elements; ++e) problem.place_of.push_back(places.first[k] + e);
  }
  const auto nets_of = [&](const std::vector<Vector>& x) {
    std::vector<Network> nets;
    for (const Vector& of_rank : x) nets.push_back(shaped(start, of_rank));
    return nets;
  };
  problem.gradients = [&](const std::vector<Vector>& x, int t) {
    std::vector<Vector> gradients;
    for (const std::vector<Vector>& of_rank : gradients_at(t, nets_of(x)))
      gradients.push_back(flat(of_rank));
    return gradients;
  };
  return nets_of(starling::test::run_plain_family(job, static_cast<int>(n), &problem));
}

int check(const std::string& folder, const std::string& init, int ranks, const Json& config,
          const starling::ImageDataset& data) {
  const starling::ImageInfo info = data.images();
  const auto pixels = static_cast<std::size_t>(info.image.elements());
  const auto channels = static_cast<std::size_t>(info.image[2]);
  const auto n = static_cast<std::size_t>(ranks);
  const std::int64_t total = config["steps"], K = config["accumulate"],
                     batch = config["batch_size"];
  const std::int64_t steps_per_epoch = info.train_samples / ranks / batch / K;

  Network start(static_cast<int>(pixels), config["model"]);
  load(starling::read_safetensors(init), "", start);
  std::vector<std::uint8_t> image(pixels);
  const auto gradients_at = [&](std::int64_t t, const std::vector<Network>& at) {
    const std::int64_t epoch = t / steps_per_epoch;
    const auto order =
        permutation(config["seed"], static_cast<std::uint32_t>(epoch), info.train_samples);
    std::vector<std::vector<Vector>> gradients;
    for (std::size_t rank = 0; rank < n; ++rank) {
      std::vector<Vector> gradient;
      for (const Vector& tensor : start.tensors) gradient.emplace_back(tensor.size(), 0.0);
      for (std::int64_t b = 0; b < K * batch; ++b) {
        const std::int64_t position =
            (t % steps_per_epoch * K * batch + b) * ranks + static_cast<std::int64_t>(rank);
        const std::int64_t sample = order[static_cast<std::size_t>(position)];
        data.image(starling::Dataset::Split::kTrain, sample, image.data());
        Vector x(pixels);  // PyTorch's order C, H, W from H, W, C
        for (std::size_t i = 0; i < pixels; ++i) {
          const std::size_t c = i % channels;
          const double mean = config["data"]["normalize"]["mean"][c],
                       std_dev = config["data"]["normalize"]["std"][c];
          x[c * (pixels / channels) + i / channels] = (image[i] / 255.0 - mean) / std_dev;
        }
        at[rank].add_gradient(
            x, static_cast<int>(data.label(starling::Dataset::Split::kTrain, sample)),
            config["loss"]["label_smoothing"], 1.0 / static_cast<double>(K * batch), gradient);
      }
      gradients.push_back(gradient);
    }
    return gradients;
  };
  const std::vector<Network> nets = trained(config, start, n, steps_per_epoch, gradients_at);

  double worst = 0.0, moved = 0.0;
  const starling::CheckpointFile checkpoint(fmt::format("{}/checkpoints/step-{}", folder, total));
  for (std::size_t rank = 0; rank < n; ++rank) {
    Network got = start;
    load(checkpoint.read(static_cast<int>(rank)), "model.", got);
    for (std::size_t k = 0; k < start.tensors.size(); ++k) {
      for (std::size_t i = 0; i < start.tensors[k].size(); ++i) {
        worst = std::max(worst, std::abs(got.tensors[k][i] - nets[rank].tensors[k][i]));
        moved = std::max(moved, std::abs(got.tensors[k][i] - start.tensors[k][i]));
      }
    }
  }
  fmt::print(
      "{} ranks, {} steps: largest difference {:.3g}; training moved a parameter by up to {:.3g}\n",
      ranks, total, worst, moved);
  return worst <= 1e-12 && moved >= 1e-3 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4)
    return std::fprintf(stderr,
                        "usage: plain_training prepare CONFIG INIT | check FOLDER INIT RANKS\n"),
           2;
  const std::string mode = argv[1];
  starling::register_builtins();
  const Json config =
      starling::read_json_file(mode == "prepare" ? argv[2] : std::string(argv[2]) + "/config.json");
  ConfigSection root(config, argv[2]);
  ConfigSection section = root.section("data", "");
  const auto data = starling::datasets().make(section.required_text("type", ""), "data.type",
                                              section, config.value("seed", std::uint64_t{1}));
  const auto& images = dynamic_cast<const starling::ImageDataset&>(*data);
  if (mode == "prepare")
    return prepare(argv[3], config, static_cast<int>(images.images().image.elements()));
  data->open();
  return check(argv[2], argv[3], std::stoi(argv[4]), config, images);
}
