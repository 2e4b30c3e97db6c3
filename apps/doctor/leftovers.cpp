#include "apps/doctor/leftovers.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>
#include <system_error>

#include "core/host.h"

namespace starling {
namespace {

namespace fs = std::filesystem;

constexpr std::time_t kYoung = 2;  // seconds

bool numeric(const std::string& name) {
  return !name.empty() &&
         std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c) != 0; });
}

/// The names in a folder; empty if it cannot be read.
std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    names.push_back(at->path().filename());
  std::ranges::sort(names);
  return names;
}

/// Files below `folder` that are mapped by running processes.
std::set<std::string> mapped_files(const std::string& processes, const std::string& folder) {
  std::set<std::string> mapped;
  for (const std::string& process : names_in(processes)) {
    if (!numeric(process)) continue;
    std::ifstream maps(processes + "/" + process + "/maps");
    for (std::string line; std::getline(maps, line);) {
      if (const std::size_t at = line.find(folder + "/"); at != std::string::npos)
        mapped.insert(line.substr(at));
    }
  }
  return mapped;
}

/// The numbers of running processes, in this PID namespace and in nested ones.
std::set<std::string> process_numbers(const std::string& processes) {
  std::set<std::string> numbers;
  for (const std::string& process : names_in(processes)) {
    if (!numeric(process)) continue;
    numbers.insert(process);
    std::ifstream status(processes + "/" + process + "/status");
    for (std::string line; std::getline(status, line);) {
      if (!line.starts_with("NSpid:")) continue;
      std::istringstream all(line.substr(line.find(':') + 1));
      for (std::string number; all >> number;) numbers.insert(number);
    }
  }
  return numbers;
}

/// The HOST of "KIND.HOST.A.B", where `parts` dot-separated parts follow it.
std::string host_in(const std::string& name, int parts) {
  std::size_t end = name.size();
  for (; parts > 0 && end != std::string::npos; --parts)
    end = end == 0 ? std::string::npos : name.rfind('.', end - 1);
  const std::size_t begin = name.find('.') + 1;
  return end == std::string::npos || end < begin ? "" : name.substr(begin, end - begin);
}

std::int64_t bytes_below(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return static_cast<std::int64_t>(fs::file_size(path, error));
  std::int64_t bytes = 0;
  for (fs::recursive_directory_iterator at(path, error), end; !error && at != end;
       at.increment(error)) {
    std::error_code none;
    if (const auto size = at->is_regular_file(none) ? at->file_size(none) : 0; !none)
      bytes += static_cast<std::int64_t>(size);
  }
  return bytes;
}

/// Adds `path` if it exists and is old enough. `host`: the host in its name.
void add(const std::string& path, const std::string& host, const LeftoverPlaces& places,
         std::vector<Leftover>& found) {
  struct stat status {};
  if (::lstat(path.c_str(), &status) != 0 || std::time(nullptr) - status.st_mtime < kYoung) return;
  std::string kept;
  if (status.st_uid != ::getuid()) kept = fmt::format("it is of user {}", status.st_uid);
  // Open MPI may omit the domain
  else if (host != places.host && host != places.host.substr(0, places.host.find('.')))
    kept = fmt::format("it is of host or container {}, and this is {}", host, places.host);
  found.push_back({path, bytes_below(path), kept});
}

}  // namespace

LeftoverPlaces leftover_places() {
  LeftoverPlaces places;
  const char* temporary = std::getenv("TMPDIR");
  places.temporary = temporary && *temporary ? temporary : "/tmp";
  places.host = host_name();
  return places;
}

std::vector<Leftover> find_leftovers(const LeftoverPlaces& places) {
  std::vector<Leftover> found;
  // Files before processes: one that is created and mapped in between is not abandoned.
  std::vector<Leftover> segments;
  for (const std::string& name : names_in(places.shared_memory)) {
    if (name.starts_with("vader_segment.") || name.starts_with("sm_segment."))
      add(places.shared_memory + "/" + name, host_in(name, 3), places, segments);
  }
  if (!segments.empty()) {
    const std::set<std::string> mapped = mapped_files(places.processes, places.shared_memory);
    std::copy_if(segments.begin(), segments.end(), std::back_inserter(found),
                 [&](const Leftover& segment) { return mapped.count(segment.path) == 0; });
  }
  struct Session {
    std::string process, path, host;
  };
  std::vector<Session> sessions;
  for (const std::string& host : names_in(places.temporary)) {
    if (!host.starts_with("ompi.")) continue;
    for (const std::string& name : names_in(places.temporary + "/" + host)) {
      const std::string process = name.starts_with("pid.") ? name.substr(4) : "";
      if (numeric(process))
        sessions.push_back({process, places.temporary + "/" + host + "/" + name, host_in(host, 1)});
    }
  }
  const std::set<std::string> living = process_numbers(places.processes);
  for (const Session& session : sessions) {
    if (living.count(session.process) == 0) add(session.path, session.host, places, found);
  }
  return found;
}

void remove_leftovers(std::vector<Leftover>& leftovers) {
  for (Leftover& leftover : leftovers) {
    if (!leftover.kept.empty()) continue;
    std::error_code error;
    fs::remove_all(leftover.path, error);
    if (error) leftover.kept = error.message();
  }
}

}  // namespace starling
