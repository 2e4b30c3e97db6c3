#include "core/mapped_files.h"

#include <atomic>
#include <mutex>

namespace starling {
namespace {

/// A noted mapping, or one that was (begin is 0). They are made once and stay, so that a handler
/// can walk along them at any moment.
struct Mapping {
  std::atomic<std::uintptr_t> begin{0};
  std::size_t bytes = 0;  // written while begin is 0
  std::string path;
  Mapping* next = nullptr;
};

std::atomic<Mapping*> mappings{nullptr};
std::mutex mappings_mutex;  // of those who write

Mapping* find_begin(std::uintptr_t begin) {
  Mapping* mapping = mappings;
  while (mapping && mapping->begin != begin) mapping = mapping->next;
  return mapping;
}

}  // namespace

void note_mapping(const void* begin, std::size_t bytes, const std::string& path) {
  const std::lock_guard lock(mappings_mutex);
  Mapping* mapping = find_begin(0);
  const bool made = !mapping;
  if (made) mapping = new Mapping;
  mapping->bytes = bytes;
  mapping->path = path;
  mapping->begin = reinterpret_cast<std::uintptr_t>(begin);
  if (!made) return;
  mapping->next = mappings;
  mappings = mapping;
}

void forget_mapping(const void* begin) {
  const std::lock_guard lock(mappings_mutex);
  if (Mapping* mapping = find_begin(reinterpret_cast<std::uintptr_t>(begin))) mapping->begin = 0;
}

bool find_mapping(const void* address, MappedPlace& place) noexcept {
  const auto at = reinterpret_cast<std::uintptr_t>(address);
  for (const Mapping* mapping = mappings; mapping; mapping = mapping->next) {
    const std::uintptr_t begin = mapping->begin;
    if (begin == 0 || at < begin || at - begin >= mapping->bytes) continue;
    place = {mapping->path, at - begin, mapping->bytes};
    return true;
  }
  return false;
}

}  // namespace starling
