#include "apps/data/tokens/rows.h"

#include <deque>

namespace starling {

Rows pack(std::span<const std::int64_t> order,
          const std::function<std::int64_t(std::int64_t)>& length, std::int64_t room) {
  struct Open {
    std::int64_t left;
    std::vector<std::int64_t> members;
  };
  std::deque<Open> open;
  Rows rows;
  const auto close = [&] {
    rows.members.insert(rows.members.end(), open.front().members.begin(),
                        open.front().members.end());
    rows.begins.push_back(std::ssize(rows.members));
    open.pop_front();
  };
  for (const std::int64_t sample : order) {
    const std::int64_t needed = length(sample);
    auto row = open.begin();
    while (row != open.end() && row->left < needed) ++row;
    if (row == open.end()) {
      if (open.size() == kOpenRows) close();
      row = open.insert(open.end(), Open{room, {}});
    }
    row->left -= needed;
    row->members.push_back(sample);
  }
  while (!open.empty()) close();
  return rows;
}

}  // namespace starling
