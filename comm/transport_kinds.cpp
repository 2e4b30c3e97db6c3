#include "comm/transport_kinds.h"

namespace starling {

TransportKinds& transport_kinds() {
  static TransportKinds kinds = [] {
    using Use = TransportKind::Use;
    TransportKinds builtin("transport");
    const auto add = [&](const char* name, const TransportKind& kind, const char* summary) {
      builtin.add(
          name, [kind] { return kind; }, summary);
    };
    add("auto", {true, Use::kWherePossible, Use::kWherePossible, true}, "the fastest way that all ranks have");
    add("direct", {true, Use::kWherePossible, Use::kRequired, false}, "ranks of one host read each other's parameters where they lie");
    add("mpi", {true, Use::kNever, Use::kNever, false}, "messages; between GPUs through host memory");
    add("nccl", {false, Use::kRequired, Use::kNever, true}, "GPUs send to each other");
    add("staged", {false, Use::kNever, Use::kNever, false}, "between GPUs through host memory");
    return builtin;
  }();
  return kinds;
}

std::string kinds_between_cpus() {
  std::vector<std::string> names;
  for (const std::string& name : transport_kinds().names()) {
    if (transport_kinds().make(name, "sync.transport").between_cpus) names.push_back(name);
  }
  std::string text;
  for (std::size_t k = 0; k < names.size(); ++k) text += (k == 0 ? "" : k + 1 == names.size() ? " or " : ", ") + names[k];
  return text;
}

}  // namespace starling
