#include "core/crash.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <string_view>

#include "core/error.h"
#include "core/flight_recorder.h"
#include "core/mapped_files.h"
#include "core/signal_text.h"

namespace starling {
namespace {

constexpr int kFrames = 32, kShown = 20;  // looked at, and in the line
constexpr std::size_t kStack = 256 << 10;
constexpr std::size_t kLine = 8 << 10;
constexpr int kNamesMs = 2000;  // for demangling names; after that they are shown mangled
constexpr std::size_t kNameShown = 100;

std::array<char, 512> terminated{};  // what std::terminate() was called for

std::string_view signal_name(int signal) {
  switch (signal) {
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    case SIGFPE: return "SIGFPE";
    case SIGILL: return "SIGILL";
    case SIGABRT: return "SIGABRT";
  }
  return "a signal";
}

/// The function of an ELF file that holds the address (relative to the file's own), static ones
/// included; empty without symbols. All by system calls, as the heap may be what is broken. The
/// text stays mapped.
std::string_view symbol_in(const char* path, std::uint64_t address) {
  const int file = ::open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  struct stat status {};
  void* mapped = ::fstat(file, &status) == 0 && status.st_size > 0
                     ? ::mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ,
                              MAP_PRIVATE, file, 0)
                     : MAP_FAILED;
  ::close(file);
  if (mapped == MAP_FAILED) return {};
  const auto* bytes = static_cast<const unsigned char*>(mapped);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const auto* header = reinterpret_cast<const ElfW(Ehdr)*>(bytes);
  if (size < sizeof *header || std::memcmp(header->e_ident, ELFMAG, SELFMAG) != 0) return {};
  if (header->e_shoff + header->e_shnum * sizeof(ElfW(Shdr)) > size) return {};
  const auto* sections = reinterpret_cast<const ElfW(Shdr)*>(bytes + header->e_shoff);
  for (const ElfW(Word) kind : {ElfW(Word){SHT_SYMTAB}, ElfW(Word){SHT_DYNSYM}}) {
    for (int i = 0; i < header->e_shnum; ++i) {
      const ElfW(Shdr)& section = sections[i];
      if (section.sh_type != kind || section.sh_link >= header->e_shnum ||
          section.sh_offset + section.sh_size > size)
        continue;
      const ElfW(Shdr)& names = sections[section.sh_link];
      if (names.sh_offset + names.sh_size > size) continue;
      const auto* symbols = reinterpret_cast<const ElfW(Sym)*>(bytes + section.sh_offset);
      for (std::uint64_t s = 0; s < section.sh_size / sizeof(ElfW(Sym)); ++s) {
        const ElfW(Sym)& symbol = symbols[s];
        if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || address < symbol.st_value ||
            address >= symbol.st_value + symbol.st_size)
          continue;
        if (symbol.st_name < names.sh_size)
          return reinterpret_cast<const char*>(bytes + names.sh_offset + symbol.st_name);
      }
    }
  }
  return {};
}

/// One frame's name as the linker has it, or "library.so+0x123".
void put_frame(SignalText& out, const void* address) {
  Dl_info info{};
  if (::dladdr(address, &info) == 0 || !info.dli_fname) {
    (out << "generated code at ").hexadecimal(reinterpret_cast<std::uint64_t>(address));
    return;
  }
  const auto at = reinterpret_cast<std::uint64_t>(address),
             base = reinterpret_cast<std::uint64_t>(info.dli_fbase);
  // Programs and libraries are linked at 0 here; a program that is not has its addresses in its
  // symbols.
  const auto* header = static_cast<const ElfW(Ehdr)*>(info.dli_fbase);
  const char* path =
      info.dli_fname[0] == '/' || info.dli_fname[0] == '.' ? info.dli_fname : "/proc/self/exe";
  const std::string_view symbol = symbol_in(path, header->e_type == ET_DYN ? at - base : at);
  if (!symbol.empty()) {
    out << symbol;
  } else if (info.dli_sname) {
    out << info.dli_sname;
  } else {
    const std::string_view name(info.dli_fname);
    const std::size_t slash = name.rfind('/');
    (out << (slash == std::string_view::npos ? name : name.substr(slash + 1)) << "+")
        .hexadecimal(at - base);
  }
}

/// A name without its parameters, and not too long.
std::string_view shortened(std::string_view name) {
  constexpr std::string_view kUnnamed = "(anonymous namespace)";
  int depth = 0;  // within <…>
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '<') ++depth;
    if (name[i] == '>') --depth;
    if (name[i] != '(' || depth > 0) continue;
    if (name.compare(i, kUnnamed.size(), kUnnamed) == 0) {
      i += kUnnamed.size() - 1;
      continue;
    }
    if (i >= 8 && name.compare(i - 8, 8, "operator") == 0) continue;
    name = name.substr(0, i);
    break;
  }
  return name.substr(0, kNameShown);
}

/// Reads until the end, the limit or the end of the buffer; returns the size.
std::size_t read_all(int descriptor, char* to, std::size_t capacity, int limit_ms) {
  std::size_t used = 0;
  timespec begin{}, now{};
  ::clock_gettime(CLOCK_MONOTONIC, &begin);
  while (used < capacity) {
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    const auto passed = static_cast<int>((now.tv_sec - begin.tv_sec) * 1000 +
                                         (now.tv_nsec - begin.tv_nsec) / 1'000'000);
    pollfd file{descriptor, POLLIN, 0};
    const int ready = passed < limit_ms ? ::poll(&file, 1, limit_ms - passed) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) break;
    const ssize_t got = ::read(descriptor, to + used, capacity - used);
    if (got <= 0) break;
    used += static_cast<std::size_t>(got);
  }
  return used;
}

/// Reads back what `write` puts into a pipe: text made without memory. It fits into a pipe, which
/// holds 64 KiB.
template <class Write>
std::size_t text_of(const Write& write, char* to, std::size_t capacity) {
  std::array<int, 2> pipe{-1, -1};
  if (::pipe2(pipe.data(), O_CLOEXEC | O_NONBLOCK) != 0) return 0;
  {
    SignalText out(pipe[1]);
    write(out);
  }
  ::close(pipe[1]);
  const std::size_t used = read_all(pipe[0], to, capacity, kNamesMs);
  ::close(pipe[0]);
  return used;
}

void put_names(SignalText& out, std::string_view lines, bool demangle) {
  for (bool first = true; !lines.empty(); first = false) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    std::array<char, 2048> mangled{};
    const std::string_view name = lines.substr(0, std::min(end, mangled.size() - 1));
    std::copy(name.begin(), name.end(), mangled.begin());
    int status = -1;
    const char* plain =
        demangle ? abi::__cxa_demangle(mangled.data(), nullptr, nullptr, &status) : nullptr;
    out << (first ? "" : " < ") << shortened(status == 0 && plain ? std::string_view(plain) : name);
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
}

/// The stack as "f < g < h". Taking names apart needs memory, and the heap may be what is broken or
/// locked: a copy of this process does it, which the system makes without asking the C library, and
/// of which nobody waits longer than a moment.
std::size_t stack_text(void* const* frames, int count, char* to, std::size_t capacity) {
  std::array<char, kLine> mangled{};
  const auto put_lines = [&](SignalText& out) {
    for (int i = 0; i < count; ++i) {
      // All but the first are where calls return to, which after a call that never returns is the
      // next function.
      put_frame(out, static_cast<const char*>(frames[i]) - (i > 0 ? 1 : 0));
      out << "\n";
    }
  };
  const std::string_view lines(mangled.data(), text_of(put_lines, mangled.data(), mangled.size()));
  std::array<int, 2> pipe{-1, -1};
  std::size_t used = 0;
  if (::pipe2(pipe.data(), O_CLOEXEC) == 0) {
    const auto child =
        static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, nullptr, nullptr, nullptr, nullptr));
    if (child == 0) {
      SignalText out(pipe[1]);
      put_names(out, lines, true);
      out.flush();
      ::_exit(0);
    }
    ::close(pipe[1]);
    if (child > 0) {
      used = read_all(pipe[0], to, capacity, kNamesMs);
      ::kill(child, SIGKILL);  // it has finished, or was too slow
      ::waitpid(child, nullptr, 0);
    }
    ::close(pipe[0]);
  }
  if (used > 0) return used;
  return text_of([&](SignalText& out) { put_names(out, lines, false); }, to, capacity);
}

void end_by(int signal) {
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  ::sigaction(signal, &action, nullptr);
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  ::raise(signal);
}

// Program whose lines begin with its name; without it they begin with the rank.
const char* program = nullptr;

/// Ends the process where a mapped file has no byte any more at the address, or none that can be
/// read. It leaves one line as of any other error of data, and its exit status. Otherwise returns.
void end_by_lost_data(const siginfo_t* info) {
  MappedPlace place;
  if (info->si_code <= 0 || !find_mapping(info->si_addr, place)) return;
  std::array<char, kLine> path{};  // for the system, with a zero at its end
  struct stat status {};
  const std::size_t length = std::min(place.path.size(), path.size() - 1);
  std::copy_n(place.path.begin(), length, path.begin());
  const bool known = ::stat(path.data(), &status) == 0;
  const auto put_line = [&](SignalText& out) {
    out << "[data] " << std::string_view(path.data(), length) << ": ";
    if (known && static_cast<std::uint64_t>(status.st_size) < place.bytes) {
      out << "was shortened from " << static_cast<std::int64_t>(place.bytes) << " to "
          << static_cast<std::int64_t>(status.st_size) << " bytes while it was being read";
    } else {
      out << "byte " << static_cast<std::int64_t>(place.offset) << " of "
          << static_cast<std::int64_t>(place.bytes)
          << " could not be read: the file was shortened and written again meanwhile, or its disk "
             "is failing";
    }
    out << "; make it whole, change no data that is in use, and start again";
  };
  std::array<char, kLine + 1024> line{};
  const std::string_view said(line.data(), text_of(put_line, line.data(), line.size()));
  constexpr int kStatus = static_cast<int>(ExitCode::kUsage);
  FlightRecorder& recorder = FlightRecorder::instance();
  if (!program) recorder.write(FlightRecorder::Reason::kError, kStatus, said);
  {
    SignalText out(STDERR_FILENO);
    if (program) {
      out << program << ": ";
    } else if (recorder.rank() > 0) {
      out << "rank " << recorder.rank() << ": ";
    }
    out << said << "\n";
  }
  ::_exit(kStatus);
}

/// True where this thread is the first to crash. Another one that does tells its crash, and ends
/// the process, while this one waits.
bool crashes_first() {
  static std::atomic<pid_t> crashing{0};
  const auto self = static_cast<pid_t>(::syscall(SYS_gettid));
  pid_t other = 0;
  if (crashing.compare_exchange_strong(other, self)) return true;
  const timespec moment{2 * kNamesMs / 1000, 0};
  if (other != self) ::nanosleep(&moment, nullptr);
  return false;
}

[[maybe_unused]] void on_bus_error(int signal, siginfo_t* info, void*) {
  if (crashes_first()) end_by_lost_data(info);
  end_by(signal);
}

void on_crash(int signal, siginfo_t* info, void*) {
  if (!crashes_first()) return end_by(signal);
  if (signal == SIGBUS) end_by_lost_data(info);
  FlightRecorder& recorder = FlightRecorder::instance();
  std::array<void*, kFrames> frames{};
  const int count = ::backtrace(frames.data(), kFrames);
  const int skipped = std::min(2, count);  // this handler, and the kernel's frame
  std::array<char, kLine> stack{};
  const std::size_t length = stack_text(frames.data() + skipped, std::min(count - skipped, kShown),
                                        stack.data(), stack.size());
  const auto put_line = [&](SignalText& out) {
    out << "[crash] " << signal_name(signal);
    if (signal == SIGABRT) {
      if (terminated[0] != '\0') out << ", terminated: " << std::string_view(terminated.data());
    } else if (info->si_code > 0) {
      (out << " at address ").hexadecimal(reinterpret_cast<std::uint64_t>(info->si_addr));
    } else {
      out << " sent by process " << static_cast<int>(info->si_pid);
    }
    if (recorder.step() >= 0) out << " in step " << recorder.step();
    out << "; stack: "
        << (length > 0 ? std::string_view(stack.data(), length) : std::string_view("not known"));
  };
  std::array<char, kLine + 1024> line{};
  const std::string_view said(line.data(), text_of(put_line, line.data(), line.size()));
  const bool recorded = recorder.write(FlightRecorder::Reason::kCrash, 128 + signal, said);
  {
    SignalText out(STDERR_FILENO);
    out << "rank " << recorder.rank() << ": " << said;
    if (recorded) out << "; the last events are in " << recorder.file();
    out << "\n";
  }
  end_by(signal);
}

[[noreturn]] void on_terminate() {
  const auto keep = [](std::string_view text) {
    std::copy_n(text.begin(), std::min(text.size(), terminated.size() - 1), terminated.begin());
  };
  try {
    if (const std::exception_ptr exception = std::current_exception())
      std::rethrow_exception(exception);
    keep("no exception");
  } catch (const std::exception& error) {
    keep(error.what());
  } catch (...) {
    keep("an exception of unknown type");
  }
  std::abort();
}

}  // namespace

void install_crash_reports() {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  std::array<void*, 4> frames{};
  // Loads libgcc now: a handler must not.
  ::backtrace(frames.data(), static_cast<int>(frames.size()));
  stack_t stack{};
  // Never freed. A separate stack allows reporting a stack overflow of the main thread.
  stack.ss_sp = new char[kStack];
  stack.ss_size = kStack;
  ::sigaltstack(&stack, nullptr);
  std::set_terminate(on_terminate);
  struct sigaction action {};
  action.sa_sigaction = on_crash;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  ::sigemptyset(&action.sa_mask);
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT})
    ::sigaction(signal, &action, nullptr);
#endif
}

void install_data_fault_reports([[maybe_unused]] const char* name) {
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  program = name;
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, nullptr);
#endif
}

}  // namespace starling
