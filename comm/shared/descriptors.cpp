#include "comm/shared/descriptors.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <random>

#include "comm/agreement.h"
#include "comm/other_ranks.h"
#include "core/running_clock.h"

namespace starling::detail {
namespace {

/// An abstract Unix socket address: without a file, and removed when its process ends.
sockaddr_un socket_address(const std::string& name) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  return address;
}
socklen_t length_of(const std::string& name) {
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

/// Sent with a descriptor. `secret` was chosen by the receiver and given to the other ranks only,
/// so that messages of strangers are ignored.
struct Note {
  std::uint64_t secret = 0;
  std::int32_t rank = 0;
};

Descriptor make_socket(const std::string& name) {
  Descriptor socket(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) refuse("socket");
  const sockaddr_un address = socket_address(name);
  if (bind(socket.number(), reinterpret_cast<const sockaddr*>(&address), length_of(name)) != 0)
    refuse("bind of a local socket");
  return socket;
}

/// Returns false if the receiver's queue is full.
bool send_file(const Descriptor& socket, const std::string& to, Note note, const Descriptor& file) {
  sockaddr_un address = socket_address(to);
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

/// The next descriptor that was received with `secret`, and its sender; empty if there is none.
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
    if (header && header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof(int))) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(header), sizeof number);
      file = Descriptor(number);
    }
    const bool ours = static_cast<std::size_t>(got) == sizeof note && note.secret == secret;
    require(!ours || file, "sharing",
            "a descriptor from another rank did not arrive; is the limit of open files (ulimit -n) "
            "reached?");
    if (ours) return {std::move(file), note.rank};
  }
}

/// Sends the file to the ranks at the other places of `local`, and receives theirs. `addresses`:
/// the ranks' socket names and secrets.
void swap_files(int rank, const std::vector<int>& local, const std::vector<std::string>& addresses,
                const Descriptor& file, const Descriptor& socket, std::uint64_t secret,
                double timeout_seconds,
                const std::function<void(std::size_t, Descriptor)>& accept) {
  std::vector<char> missing(local.size(), 1);
  std::vector<std::size_t> unsent;
  for (std::size_t k = 0; k < local.size(); ++k) {
    if (local[k] == rank) {
      missing[k] = 0;
    } else {
      unsent.push_back(k);
    }
  }
  std::size_t left = unsent.size();
  const auto limit = RunningClock::now() + RunningClock::seconds(timeout_seconds);
  while (left > 0 || !unsent.empty()) {
    std::erase_if(unsent, [&](std::size_t k) {
      const std::string& text = addresses[static_cast<std::size_t>(local[k])];
      const std::size_t space = text.find(' ');
      return send_file(socket, text.substr(0, space), {std::stoull(text.substr(space + 1)), rank},
                       file);
    });
    while (true) {
      auto [received, from] = receive_file(socket, secret);
      if (!received) break;
      const auto place =
          static_cast<std::size_t>(std::find(local.begin(), local.end(), from) - local.begin());
      if (place == local.size() || missing[place] == 0)
        fail(ExitCode::kInternal, "sharing", "an unexpected descriptor from rank {}", from);
      missing[place] = 0;
      --left;
      accept(place, std::move(received));
    }
    if (left == 0 && unsent.empty()) break;
    check_lost_ranks();
    if (RunningClock::now() >= limit) {
      fail(ExitCode::kLost, "sharing", "no descriptor from {} ranks within {:g} s", left,
           timeout_seconds);
    }
    pollfd ready{socket.number(), POLLIN, 0};
    poll(&ready, 1, unsent.empty() ? 100 : 1);
  }
}

}  // namespace

void refuse(const char* call) {
  fail(ExitCode::kInternal, "sharing", "{}: {}", call, std::strerror(errno));
}

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

std::string swap_descriptors(World& world, const std::vector<int>& local, double timeout_seconds,
                             const std::function<Descriptor()>& make,
                             const std::function<void(std::size_t, Descriptor)>& accept) {
  Descriptor file, socket;
  std::random_device random;
  const std::uint64_t secret = (static_cast<std::uint64_t>(random()) << 32) | random();
  const std::string name = fmt::format("starling-{}-{:08x}{:08x}", getpid(), random(), random());
  const auto refusal_of = [&](const std::function<void()>& work) {
    const auto error = try_on_all_ranks(world, [&] {
      if (local.size() > 1) work();
    });
    return error ? RankReason{error->rank(), error->message()}.text() : std::string();
  };
  std::string refusal = refusal_of([&] {
    file = make();
    socket = make_socket(name);
  });
  if (!refusal.empty()) return refusal;
  const std::vector<std::string> addresses = world.all_gather(fmt::format("{} {}", name, secret));
  return refusal_of([&] {
    swap_files(world.rank(), local, addresses, file, socket, secret, timeout_seconds, accept);
  });
}

}  // namespace starling::detail
