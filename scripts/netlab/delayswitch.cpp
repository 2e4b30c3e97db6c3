// A user-space Ethernet switch with a rate and a one-way delay per port, for kernels without netem.
//   delayswitch COMMANDS RATE_MBIT DELAY_US NAMESPACE...
// Gives each namespace a TAP device eth0 with address 10.77.0.(i+1)/24, prints "ready", and
// forwards until SIGTERM. A line in the FIFO COMMANDS changes one port in both directions: "rate
// PORT MBIT", of which 0 drops all its frames; "loss PORT PERCENT" drops some at random; "jitter
// PORT US" has each wait up to so much longer, so that they overtake each other.
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

namespace {

/// Layout of linux/virtio_net.h, which some distributions' headers leave out.
struct VirtioHeader {
  unsigned char flags, gso_type;
  unsigned short header_length, gso_size, checksum_start, checksum_offset;
};

struct Frame {
  double due;
  std::vector<char> bytes;
};

struct Port {
  int fd = -1;
  double bytes_per_second = 0;  ///< of each direction; 0: everything is lost
  double uplink_free = 0;       ///< when the uplink has sent all that it took
  double paused_until = 0;      ///< nothing is read before
  double downlink_free = 0;     ///< the same of the way to the host
  double loss = 0, jitter = 0;  ///< a share, and seconds
  std::deque<Frame> outgoing;   ///< to the host, due in order
};

// backlog at which a port stops reading, so that TCP sees back-pressure
constexpr double kUplinkSeconds = 0.004;
// backlog at which those who send to a port are paused, as by Ethernet flow control
constexpr double kDownlinkSeconds = 0.010;

constexpr unsigned kLargeFrames = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6;

volatile std::sig_atomic_t stopped = 0;

double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

[[noreturn]] void die(const char* what) {
  perror(what);
  exit(1);
}

int open_tap(const std::string& name_space, int host) {
  const int ns = open(("/run/netns/" + name_space).c_str(), O_RDONLY);
  if (ns < 0 || setns(ns, CLONE_NEWNET) != 0) die("setns");
  close(ns);
  const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
  ifreq request{};
  strcpy(request.ifr_name, "eth0");
  request.ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR;
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request) != 0) die("TUNSETIFF");
  int size = sizeof(VirtioHeader);
  if (ioctl(fd, TUNSETVNETHDRSZ, &size) != 0) die("TUNSETVNETHDRSZ");
  if (ioctl(fd, TUNSETOFFLOAD, kLargeFrames) != 0) perror("TUNSETOFFLOAD");
  const std::string setup =
      "ip addr add 10.77.0." + std::to_string(host + 1) + "/24 dev eth0; ip link set eth0 up";
  if (system(setup.c_str()) != 0) exit(1);
  return fd;
}

class Switch {
 public:
  Switch(double rate, double delay, const std::vector<std::string>& namespaces)
      : ports_(namespaces.size()), delay_(delay), buffer_(70000), polls_(namespaces.size() + 1) {
    for (std::size_t i = 0; i < ports_.size(); ++i) {
      ports_[i].fd = open_tap(namespaces[i], static_cast<int>(i));
      ports_[i].bytes_per_second = rate;
    }
  }

  void run(int commands) {
    while (!stopped) {
      const double time = now();
      double wake = time + 1;
      for (std::size_t i = 0; i < ports_.size(); ++i) {
        Port& port = ports_[i];
        deliver(port, time);
        if (!port.outgoing.empty()) wake = std::min(wake, port.outgoing.front().due);
        const bool full = port.uplink_free - time > kUplinkSeconds,
                   paused = port.paused_until > time;
        polls_[i] = {port.fd, static_cast<short>(full || paused ? 0 : POLLIN), 0};
        if (full || paused)
          wake =
              std::min(wake, std::max(port.uplink_free - kUplinkSeconds * 0.75, port.paused_until));
      }
      polls_.back() = {commands, POLLIN, 0};
      const double wait = std::max(0.0, wake - now());
      const timespec timeout{
          static_cast<time_t>(wait),
          static_cast<long>((wait - static_cast<double>(static_cast<time_t>(wait))) * 1e9)};
      ppoll(polls_.data(), polls_.size(), &timeout, nullptr);
      if (polls_.back().revents & POLLIN) obey(commands);
      for (std::size_t i = 0; i < ports_.size(); ++i) {
        if (polls_[i].revents & POLLIN) accept(i);
      }
    }
  }

 private:
  static void deliver(Port& port, double time) {
    while (!port.outgoing.empty() && port.outgoing.front().due <= time) {
      const std::vector<char>& bytes = port.outgoing.front().bytes;
      if (write(port.fd, bytes.data(), bytes.size()) < 0 && errno == EAGAIN) return;
      port.outgoing.pop_front();
    }
  }

  void obey(int commands) {
    char text[256] = {};
    if (read(commands, text, sizeof text - 1) <= 0) return;
    std::istringstream words(text);
    std::string what;
    unsigned port = 0;
    double value = 0;
    while (words >> what >> port >> value) {
      if (port >= ports_.size() || value < 0) continue;
      if (what == "rate") ports_[port].bytes_per_second = value * 1e6 / 8;
      if (what == "loss") ports_[port].loss = value / 100;
      if (what == "jitter") ports_[port].jitter = value * 1e-6;
    }
    // A lost frame is one packet: the kernel gives large ones only where none are lost or
    // overtaken.
    const bool plain = std::all_of(ports_.begin(), ports_.end(),
                                   [](const Port& p) { return p.loss == 0 && p.jitter == 0; });
    for (const Port& each : ports_) {
      if (ioctl(each.fd, TUNSETOFFLOAD, plain ? kLargeFrames : TUN_F_CSUM) != 0)
        perror("TUNSETOFFLOAD");
    }
  }

  bool lost(const Port& port) { return port.loss > 0 && chance_(random_) < port.loss; }

  void accept(std::size_t i) {
    Port& port = ports_[i];
    for (int burst = 0; burst < 16; ++burst) {
      const double time = now();
      if (port.uplink_free - time > kUplinkSeconds || port.paused_until > time) return;
      const ssize_t length = read(port.fd, buffer_.data(), buffer_.size());
      if (length <= static_cast<ssize_t>(sizeof(VirtioHeader)) + 12) return;
      if (port.bytes_per_second <= 0 || lost(port)) continue;
      const char* ethernet = buffer_.data() + sizeof(VirtioHeader);
      const std::string destination(ethernet, 6), source(ethernet + 6, 6);
      port_of_[source] = i;
      // a large frame goes out as MTU-sized ones
      const double wire_bytes = static_cast<double>(length + length / 1460 * 54);
      port.uplink_free = std::max(time, port.uplink_free) + wire_bytes / port.bytes_per_second;
      const auto known = port_of_.find(destination);
      for (std::size_t j = 0; j < ports_.size(); ++j) {
        if (j == i || (known != port_of_.end() && known->second != j)) continue;
        forward(port, ports_[j], wire_bytes, length);
      }
    }
  }

  /// The frame goes down as it arrives, unless the way is taken.
  void forward(Port& from, Port& to, double wire_bytes, ssize_t length) {
    if (to.bytes_per_second <= 0 || lost(to)) return;
    const double arrival = from.uplink_free + delay_;
    to.downlink_free = std::max(arrival, to.downlink_free + wire_bytes / to.bytes_per_second);
    const double due = to.downlink_free + std::max(from.jitter, to.jitter) * chance_(random_);
    const auto later = std::upper_bound(to.outgoing.begin(), to.outgoing.end(), due,
                                        [](double time, const Frame& f) { return time < f.due; });
    to.outgoing.insert(later, {due, std::vector<char>(buffer_.data(), buffer_.data() + length)});
    if (to.downlink_free - arrival > kDownlinkSeconds)
      from.paused_until = now() + to.downlink_free - arrival - kDownlinkSeconds;
  }

  std::vector<Port> ports_;
  double delay_;
  std::mt19937 random_;
  std::uniform_real_distribution<double> chance_;
  std::map<std::string, std::size_t> port_of_;  ///< by MAC address
  std::vector<char> buffer_;
  std::vector<pollfd> polls_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    fprintf(stderr, "usage: delayswitch COMMANDS RATE_MBIT DELAY_US NAMESPACE...\n");
    return 2;
  }
  signal(SIGTERM, [](int) { stopped = 1; });
  signal(SIGINT, [](int) { stopped = 1; });
  // open for writing too: never at its end
  const int commands = open(argv[1], O_RDWR | O_NONBLOCK);
  const int root = open("/proc/self/ns/net", O_RDONLY);
  if (commands < 0 || root < 0) die("open");
  Switch the_switch(atof(argv[2]) * 1e6 / 8, atof(argv[3]) * 1e-6,
                    std::vector<std::string>(argv + 4, argv + argc));
  if (setns(root, CLONE_NEWNET) != 0) die("setns");
  puts("ready");
  fflush(stdout);
  the_switch.run(commands);
}
