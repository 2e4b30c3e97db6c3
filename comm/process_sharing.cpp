#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <utility>

#include "comm/memory_sharing.h"
#include "core/error.h"

namespace starling {
namespace {

using Clock = std::chrono::steady_clock;

/// What goes wrong here ends in a fallback, never in the end of the program.
struct Refused {
  std::string why;
};

[[noreturn]] void refuse(const char* call) { throw Refused{fmt::format("{}: {}", call, std::strerror(errno))}; }

class Descriptor {
 public:
  explicit Descriptor(int number = -1) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int number() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }

 private:
  int number_;
};

constexpr std::size_t kHugePage = 2u << 20;

/// What a block of `bytes` takes: whole huge pages where it is large enough to have some.
std::size_t whole_pages(std::size_t bytes) {
  const std::size_t page = bytes >= kHugePage ? kHugePage : 4096;
  return (bytes + page - 1) / page * page;
}

/// A memory file as this process sees it. The mapping stays when the descriptor is closed.
class MappedBlock final : public SharedBlock {
 public:
  MappedBlock(const Descriptor& file, std::size_t bytes, bool own) : SharedBlock(map(file, whole_pages(bytes), own), bytes) {}
  ~MappedBlock() override { munmap(data(), whole_pages(bytes())); }

 private:
  static std::byte* map(const Descriptor& file, std::size_t bytes, bool own) {
    // An address that huge pages may start at, from within a larger piece of address space.
    const std::size_t space = bytes + kHugePage;
    void* reserved = mmap(nullptr, space, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) refuse("mmap");
    auto* const begin = static_cast<std::byte*>(reserved);
    const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
    std::byte* const at = begin + before;
    const int access = own ? PROT_READ | PROT_WRITE : PROT_READ;
    if (mmap(at, bytes, access, MAP_SHARED | MAP_FIXED, file.number(), 0) == MAP_FAILED) {
      const int error = errno;
      munmap(begin, space);
      errno = error;
      refuse("mmap");
    }
    if (before > 0) munmap(begin, before);
    munmap(at + bytes, space - before - bytes);
    madvise(at, bytes, MADV_DONTFORK);  // a child of ours has no business there
    // Small pages cost an update of a large bucket a third of its speed. Kernels that cannot do this say so, and small pages it is.
    if (own && bytes >= kHugePage) madvise(at, bytes, kCollapse);
    madvise(at, bytes, own ? kPopulateWrite : kPopulateRead);  // now rather than in the first step
    return at;
  }
  // Linux 6.1's and 5.14's advice, by number for older headers.
  static constexpr int kCollapse = 25, kPopulateRead = 22, kPopulateWrite = 23;
};

/// A file of memory with all its pages, which nobody can shrink or grow: so no access ever fails.
Descriptor make_file(std::size_t block) {
  const std::size_t bytes = whole_pages(block);
  // Beyond this limit the kernel would send a signal rather than an error.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes) {
    throw Refused{fmt::format("{} bytes of shared memory are beyond the file size limit (ulimit -f) of {} bytes", bytes, limit.rlim_cur)};
  }
  Descriptor file(memfd_create("starling", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) refuse("memfd_create");
  if (ftruncate(file.number(), static_cast<off_t>(bytes)) != 0) refuse("ftruncate of shared memory");
  if (fallocate(file.number(), 0, 0, static_cast<off_t>(bytes)) != 0) refuse("fallocate of shared memory");
  if (fcntl(file.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) refuse("sealing shared memory");
  return file;
}

void check_file(const Descriptor& file, std::size_t block) {
  const std::size_t bytes = whole_pages(block);
  struct stat status {};
  if (fstat(file.number(), &status) != 0) refuse("fstat of shared memory");
  if (status.st_size < 0 || static_cast<std::size_t>(status.st_size) != bytes || (fcntl(file.number(), F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
    throw Refused{fmt::format("another rank's shared memory has {} bytes, needed: {}, sealed", status.st_size, bytes)};
  }
}

/// "" and an abstract name: a socket that is in no folder and ends with its process.
sockaddr_un address_of(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  return address;
}
socklen_t length_of(const std::string& name) { return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size()); }

/// Goes with a descriptor. `secret` is the receiver's, told to the other ranks alone, so that no stranger's message counts.
struct Note {
  std::uint64_t secret = 0;
  std::int32_t rank = 0;
};

Descriptor make_socket(const std::string& name) {
  Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) refuse("socket");
  const sockaddr_un address = address_of(name);
  if (bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), length_of(name)) != 0) refuse("bind of a local socket");
  return socket;
}

/// False where the receiver's queue is full.
bool send_file(const Descriptor& socket, const std::string& to, Note note, const Descriptor& file) {
  sockaddr_un address = address_of(to);
  iovec part{&note, sizeof note};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_name = &address;
  message.msg_namelen = length_of(to);
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int number = file.number();
  std::memcpy(CMSG_DATA(header), &number, sizeof number);
  if (sendmsg(socket.number(), &message, MSG_NOSIGNAL) >= 0) return true;
  if (errno == EAGAIN || errno == EINTR || errno == ENOBUFS || errno == ETOOMANYREFS) return false;
  refuse("sending a descriptor to another rank");
}

/// The next descriptor that has come with `secret`, and from whom; none where nothing waits.
std::pair<Descriptor, int> receive_file(const Descriptor& socket, std::uint64_t secret) {
  while (true) {
    Note note;
    iovec part{&note, sizeof note};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket.number(), &message, MSG_CMSG_CLOEXEC);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return {Descriptor(), -1};
    if (got < 0) refuse("receiving a descriptor from another rank");
    const cmsghdr* header = CMSG_FIRSTHDR(&message);
    Descriptor file;
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS && header->cmsg_len == CMSG_LEN(sizeof(int))) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header), sizeof number);
      file = Descriptor(number);
    }
    const bool ours = static_cast<std::size_t>(got) == sizeof note && note.secret == secret;
    if (ours && !file) throw Refused{"a descriptor from another rank did not arrive; is the limit of open files (ulimit -n) reached?"};
    if (ours) return {std::move(file), note.rank};
  }
}

std::string first_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string link_target(const char* path) {
  char text[256];
  const ssize_t length = readlink(path, text, sizeof text);
  return length > 0 ? std::string(text, static_cast<std::size_t>(length)) : std::string();
}

class ProcessSharing final : public MemorySharing {
 public:
  explicit ProcessSharing(double timeout_seconds) : timeout_(std::min(timeout_seconds, 30.0)) {}

  /// One kernel, and one network namespace, which abstract socket names belong to.
  std::string host() const override {
    char name[256] = {};
    gethostname(name, sizeof name - 1);
    return std::string(name) + " " + first_line("/proc/sys/kernel/random/boot_id") + " " + link_target("/proc/self/ns/net");
  }

  SharedBlocks share(Transport& control, const std::vector<int>& local, std::size_t bytes) override {
    SharedBlocks result;
    Descriptor file, socket;
    std::random_device random;
    const std::uint64_t secret = (static_cast<std::uint64_t>(random()) << 32) | random();
    const std::string name = fmt::format("starling-{}-{:08x}{:08x}", getpid(), random(), random());
    std::shared_ptr<SharedBlock> own;
    std::string failure;
    const auto attempt = [&](const auto& work) {
      if (local.size() < 2 || !failure.empty()) return;
      try {
        work();
      } catch (const Refused& refused) {
        failure = refused.why;
      }
    };
    attempt([&] {
      file = make_file(bytes);
      own = std::make_shared<MappedBlock>(file, bytes, true);
      socket = make_socket(name);
    });
    // "!why", or "name secret".
    const std::vector<std::string> told = control.all_gather(failure.empty() ? fmt::format("{} {}", name, secret) : "!" + failure);
    std::vector<std::string> failures(told.size());
    for (std::size_t rank = 0; rank < told.size(); ++rank) {
      if (told[rank][0] == '!') failures[rank] = told[rank].substr(1);
    }
    result.refusal = first_failure(failures);
    if (!result.refusal.empty()) return result;
    attempt([&] { result.of = swap_files(control.rank(), local, told, file, socket, secret, own); });
    result.refusal = first_failure(control.all_gather(failure));
    if (!result.refusal.empty()) result.of.clear();
    return result;
  }

 private:
  std::vector<std::shared_ptr<SharedBlock>> swap_files(int rank, const std::vector<int>& local, const std::vector<std::string>& told,
                                                       const Descriptor& file, const Descriptor& socket, std::uint64_t secret,
                                                       const std::shared_ptr<SharedBlock>& own) const {
    std::vector<std::shared_ptr<SharedBlock>> blocks(local.size());
    std::vector<std::size_t> unsent;
    for (std::size_t k = 0; k < local.size(); ++k) {
      if (local[k] == rank) {
        blocks[k] = own;
      } else {
        unsent.push_back(k);
      }
    }
    std::size_t missing = unsent.size();
    const auto limit = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(timeout_));
    while (missing > 0 || !unsent.empty()) {
      std::erase_if(unsent, [&](std::size_t k) {
        const std::string& text = told[static_cast<std::size_t>(local[k])];
        const std::size_t space = text.find(' ');
        return send_file(socket, text.substr(0, space), {std::stoull(text.substr(space + 1)), rank}, file);
      });
      while (true) {
        auto [received, from] = receive_file(socket, secret);
        if (!received) break;
        const auto place = static_cast<std::size_t>(std::find(local.begin(), local.end(), from) - local.begin());
        if (place == local.size() || blocks[place]) throw Refused{fmt::format("an unexpected descriptor from rank {}", from)};
        check_file(received, own->bytes());
        blocks[place] = std::make_shared<MappedBlock>(received, own->bytes(), false);
        --missing;
      }
      if (missing == 0 && unsent.empty()) break;
      if (Clock::now() >= limit) throw Refused{fmt::format("no descriptor from {} ranks within {:g} s", missing, timeout_)};
      pollfd ready{socket.number(), POLLIN, 0};
      poll(&ready, 1, unsent.empty() ? 100 : 1);
    }
    return blocks;
  }

  double timeout_;
};

}  // namespace

std::unique_ptr<MemorySharing> make_process_sharing(double timeout_seconds) { return std::make_unique<ProcessSharing>(timeout_seconds); }

}  // namespace starling
