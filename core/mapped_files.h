#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace starling {

// The files that this process has mapped, for a signal handler. An access to a mapped page that the
// file has no longer is a SIGBUS, and all that the handler is told is the address.

/// A byte of a mapped file.
struct MappedPlace {
  std::string_view path;
  std::uint64_t offset = 0, bytes = 0;  ///< of the byte, and of the file when it was mapped
};

/// Notes that the addresses from `begin` on belong to that file from now on. Any thread.
void note_mapping(const void* begin, std::size_t bytes, const std::string& path);
/// Forgets a mapping, before it is unmapped.
void forget_mapping(const void* begin);
/// False where the address is in no noted file. Safe in a signal handler, takes no lock.
bool find_mapping(const void* address, MappedPlace& place) noexcept;

}  // namespace starling
