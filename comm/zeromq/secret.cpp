#include "comm/zeromq/secret.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace starling::detail {
namespace {

int digit_of(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

constexpr const char* kRemedy = "make one by: (umask 077; openssl rand -hex 32 > FILE)";

}  // namespace

Secret draw_secret() {
  Secret secret{};
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size()))
    fail(ExitCode::kInternal, "secret", "the system gives no random bytes: {}",
         std::strerror(errno));
  return secret;
}

Secret parse_secret(const std::string& text, const std::string& path) {
  std::string digits = text;
  if (!digits.empty() && digits.back() == '\n') digits.pop_back();
  Secret secret{};
  bool right = digits.size() == 2 * secret.size();
  for (std::size_t i = 0; right && i < secret.size(); ++i) {
    const int high = digit_of(digits[2 * i]), low = digit_of(digits[2 * i + 1]);
    right = high >= 0 && low >= 0;
    secret[i] = static_cast<unsigned char>(high * 16 + low);
  }
  if (!right)
    fail(ExitCode::kUsage, "secret", {.file = path},
         "its {} characters are not a secret, which is one line of {} hexadecimal digits; take the "
         "other ranks', or {}",
         digits.size(), 2 * secret.size(), kRemedy);
  return secret;
}

Secret read_secret(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0)
    fail(ExitCode::kUsage, "secret", {.file = path}, "cannot be read: {}; {}", std::strerror(errno),
         kRemedy);
  struct stat status {};
  char buffer[256];
  const bool known = ::fstat(file, &status) == 0;
  const ssize_t count = ::read(file, buffer, sizeof buffer);
  ::close(file);
  if (!known || !S_ISREG(status.st_mode) || count < 0)
    fail(ExitCode::kUsage, "secret", {.file = path}, "is no file that can be read; {}", kRemedy);
  if (status.st_uid != ::geteuid())
    fail(ExitCode::kUsage, "secret", {.file = path}, "belongs to another user; {}", kRemedy);
  if ((status.st_mode & 077) != 0)
    fail(ExitCode::kUsage, "secret", {.file = path},
         "others than its owner may read or change it (mode {:o}), so that it is no secret; chmod "
         "600 it, or {}",
         status.st_mode & 0777, kRemedy);
  return parse_secret(std::string(buffer, static_cast<std::size_t>(count)), path);
}

}  // namespace starling::detail
