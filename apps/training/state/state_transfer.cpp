#include "apps/training/state/state_transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "apps/inference/model_file.h"
#include "comm/shared/shared_tensor.h"
#include "core/error.h"
#include "core/text.h"

namespace starling {
namespace {

constexpr std::size_t kMostHeaderBytes = 64u << 20;

/// Whether it belongs to the rank that has sent the state: what that has sent, or is yet to send.
bool is_sender_specific(const std::string& name) {
  return name.starts_with("sync.residual") || name.starts_with("sync.carried");
}

/// A state's memory, which travels as it lies: that of tensors which it refers to, each buffer
/// once, with where they lie in it; then other tensors' bytes.
struct Blocks {
  std::vector<std::shared_ptr<Storage>> buffers;
  /// (buffer, offset) of each tensor that is referred to, by name
  std::map<std::string, std::pair<std::size_t, std::size_t>> places;

  explicit Blocks(const SafetensorsFile& state) {
    std::map<const Storage*, std::size_t> known;
    for (const auto& [name, tensor] : state.tensors) {
      const ReferredTensor* own = ReferredTensor::in(tensor);
      if (!own) continue;
      const std::shared_ptr<Storage>& storage = own->tensor.storage();
      const auto [at, fresh] = known.try_emplace(storage.get(), buffers.size());
      if (fresh) buffers.push_back(storage);
      places[name] = {at->second, static_cast<std::size_t>(own->tensor.raw() - storage->data())};
    }
  }
};

std::string header_of(const SafetensorsFile& state, const Blocks& blocks) {
  nlohmann::json tensors = nlohmann::json::object(), buffers = nlohmann::json::array();
  for (const auto& buffer : blocks.buffers) buffers.push_back(buffer->bytes());
  for (const auto& [name, tensor] : state.tensors) {
    const ReferredTensor* own = ReferredTensor::in(tensor);
    const Shape& shape = own ? own->tensor.shape() : tensor.shape;
    const std::span<const std::int64_t> sizes = shape.sizes();
    auto& form = tensors[name];
    form = {static_cast<int>(tensor.dtype), std::vector(sizes.begin(), sizes.end())};
    if (!own) continue;
    const auto& [buffer, offset] = blocks.places.at(name);
    form.insert(form.end(), {static_cast<int>(own->layout), buffer, offset});
  }
  return nlohmann::json{{"metadata", state.metadata}, {"buffers", buffers}, {"tensors", tensors}}
      .dump();
}

/// The state that a header announces, with memory of `host` for it: `places`, in the order in which
/// its bytes come. There are `bytes` of them.
SafetensorsFile read_header(std::string_view text, std::uint64_t bytes, int from, Backend& host,
                            std::deque<std::span<std::byte>>& places) {
  SafetensorsFile state;
  const auto refuse = [&](const std::string& why) {
    fail(ExitCode::kLost, "join", "rank {} has sent a state that cannot be read: {}", from, why);
  };
  try {
    const auto header = nlohmann::json::parse(text);
    state.metadata = header.at("metadata").get<std::map<std::string, std::string>>();
    const auto sizes = header.at("buffers").get<std::vector<std::uint64_t>>();
    std::uint64_t left = bytes;
    const auto take = [&](std::uint64_t part) {
      if (part > left) refuse(fmt::format("it announces more than its {} bytes", bytes));
      left -= part;
    };
    std::vector<std::shared_ptr<Storage>> buffers;
    for (const std::uint64_t size : sizes) {
      take(size);
      buffers.push_back(
          Tensor(host, Shape{static_cast<std::int64_t>(size)}, DType::kUInt8).storage());
      places.emplace_back(buffers.back()->data(), size);
    }
    for (const auto& [name, form] : header.at("tensors").items()) {
      const auto dtype = form.at(0).get<unsigned>();
      const auto shape = form.at(1).get<std::vector<std::int64_t>>();
      double elements = 1.0;
      for (const std::int64_t size : shape) elements *= static_cast<double>(size);
      if (dtype > static_cast<unsigned>(DType::kUInt8) ||
          std::ranges::any_of(shape, [](std::int64_t size) { return size < 0; }) ||
          shape.size() > Shape::kMaxRank || elements > static_cast<double>(bytes))
        refuse(fmt::format("its tensor {} has an unknown form, {}", shown(name),
                           shown(form.dump(), 100)));
      FileTensor& tensor = state.tensors[name];
      tensor = {static_cast<DType>(dtype), Shape(std::span(shape)), {}};
      const std::size_t size =
          static_cast<std::size_t>(tensor.shape.elements()) * size_of(tensor.dtype);
      if (form.size() == 2) {
        take(size);
        tensor.bytes.resize(size);
        places.emplace_back(tensor.bytes);
        continue;
      }
      const auto layout = form.at(2).get<unsigned>();
      const auto buffer = form.at(3).get<std::size_t>();
      const auto offset = form.at(4).get<std::uint64_t>();
      if (layout > static_cast<unsigned>(TensorLayout::kTransposed) || buffer >= buffers.size() ||
          offset % size_of(tensor.dtype) != 0 || offset > sizes[buffer] ||
          size > sizes[buffer] - offset)
        refuse(fmt::format("its tensor {} lies at {}", shown(name), shown(form.dump(), 100)));
      refer_file_tensor(Tensor(buffers[buffer], offset, tensor.shape, tensor.dtype),
                        static_cast<TensorLayout>(layout), tensor);
    }
    if (left != 0) refuse(fmt::format("it has {} bytes more than its tensors", left));
  } catch (const nlohmann::json::exception& error) {
    refuse(shown(error.what(), 200));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kInternal) throw;
    refuse(error.message());  // a shape that the layout does not have
  }
  return state;
}

}  // namespace

void clear_tensors(SafetensorsFile& state, bool (*which)(const std::string&)) {
  for (auto& [name, tensor] : state.tensors) {
    if (!which(name)) continue;
    if (const ReferredTensor* own = ReferredTensor::in(tensor))
      std::memset(own->tensor.raw(), 0, own->tensor.bytes());
    std::fill(tensor.bytes.begin(), tensor.bytes.end(), std::byte{});
  }
}

OfferedState state_bytes(std::shared_ptr<const SafetensorsFile> state) {
  struct Bytes {
    std::shared_ptr<const SafetensorsFile> state;
    Blocks blocks;
    std::string head;
    std::map<std::uint64_t, std::span<const std::byte>> parts;  ///< by where they begin
  };
  const SafetensorsFile& of = *state;
  const auto all = std::make_shared<Bytes>(Bytes{std::move(state), Blocks(of), {}, {}});
  const std::string header = header_of(of, all->blocks);
  const std::uint64_t length = header.size();
  all->head.assign(reinterpret_cast<const char*>(&length), sizeof length);
  all->head += header;
  std::uint64_t bytes = all->head.size();
  all->parts[0] = std::as_bytes(std::span(all->head));
  const auto add = [&](std::span<const std::byte> part) {
    if (!part.empty()) all->parts[bytes] = part;
    bytes += part.size();
  };
  for (const auto& buffer : all->blocks.buffers) add({buffer->data(), buffer->bytes()});
  for (const auto& [name, tensor] : of.tensors) add(tensor.bytes);
  return {bytes, [all](std::uint64_t offset, std::byte* to, std::size_t count) {
            for (auto part = std::prev(all->parts.upper_bound(offset)); count > 0; ++part) {
              const std::size_t before = offset - part->first,
                                taken = std::min(count, part->second.size() - before);
              std::memcpy(to, part->second.data() + before, taken);
              offset += taken, to += taken, count -= taken;
            }
          }};
}

void StateReader::add(std::uint64_t bytes, std::string_view piece) {
  if (piece.size() > bytes - received_)
    fail(ExitCode::kLost, "join",
         "rank {} has sent more of its state than the {} bytes it announced", from_, bytes);
  remaining_ = bytes - received_ - piece.size();
  received_ += piece.size();
  while (!piece.empty()) {
    if (!state_) {
      std::uint64_t length = sizeof length;
      if (header_.size() >= sizeof length) std::memcpy(&length, header_.data(), sizeof length);
      const bool counted = header_.size() >= sizeof length;
      if (counted && length > kMostHeaderBytes)
        fail(ExitCode::kLost, "join",
             "rank {} announces a state whose list of tensors has {} bytes", from_, length);
      const std::size_t wanted = counted ? sizeof length + length : sizeof length,
                        taken = std::min(piece.size(), wanted - header_.size());
      header_.append(piece.substr(0, taken));
      piece.remove_prefix(taken);
      if (counted && header_.size() == wanted)
        state_ = read_header(std::string_view(header_).substr(sizeof length), bytes - wanted, from_,
                             *host_, destinations_);
    } else if (filled_ == destinations_.front().size()) {
      destinations_.pop_front();
      filled_ = 0;
    } else {
      const std::size_t taken = std::min(piece.size(), destinations_.front().size() - filled_);
      std::memcpy(destinations_.front().data() + filled_, piece.data(), taken);
      piece.remove_prefix(taken);
      filled_ += taken;
    }
  }
}

SafetensorsFile StateReader::take() {
  clear_tensors(*state_, is_sender_specific);
  state_->metadata["loss_sum"] = state_->metadata["loss_count"] = "0";
  return std::move(*state_);
}

void load_deferred_tensors(SafetensorsFile& state) {
  for (auto& [name, tensor] : state.tensors) {
    const ReferredTensor* own = ReferredTensor::in(tensor);
    if (!own || !is_shared(own->tensor)) continue;
    std::vector<std::byte> buffer;
    const std::span<const std::byte> bytes = tensor.source(buffer);
    if (buffer.empty()) buffer.assign(bytes.begin(), bytes.end());
    tensor.bytes = std::move(buffer);
    tensor.source = nullptr;
  }
}

std::future<StateMemory> memory_for(const SafetensorsFile& state, Backend& backend) {
  std::vector<std::size_t> sizes;
  for (const auto& buffer : Blocks(state).buffers) sizes.push_back(buffer->bytes());
  return std::async(std::launch::async, [sizes, &backend] {
    StateMemory memory;
    for (const std::size_t size : sizes) {
      memory.emplace_back(backend, Shape{static_cast<std::int64_t>(size)}, DType::kUInt8);
      std::memset(memory.back().raw(), 0, size);
    }
    return memory;
  });
}

OfferedState offered_state(SafetensorsFile state, StateMemory memory) {
  const Blocks blocks(state);
  memory.resize(blocks.buffers.size());
  for (std::size_t k = 0; k < blocks.buffers.size(); ++k) {
    const Storage& buffer = *blocks.buffers[k];
    // After a switch it may be another size
    if (!memory[k] || memory[k].bytes() != buffer.bytes())
      memory[k] =
          Tensor(buffer.backend(), Shape{static_cast<std::int64_t>(buffer.bytes())}, DType::kUInt8);
    std::memcpy(memory[k].raw(), buffer.data(), buffer.bytes());
  }
  for (const auto& [name, place] : blocks.places) {
    FileTensor& tensor = state.tensors[name];
    const ReferredTensor own = *ReferredTensor::in(tensor);
    refer_file_tensor(
        Tensor(memory[place.first].storage(), place.second, own.tensor.shape(), own.tensor.dtype()),
        own.layout, tensor);
  }
  return state_bytes(std::make_shared<const SafetensorsFile>(std::move(state)));
}

}  // namespace starling
