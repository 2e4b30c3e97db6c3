#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "apps/training/output/progress.h"
#include "core/stop_signals.h"
#include "tests/support/caught.h"
#include "tests/support/errors.h"
#include "tests/support/folder.h"

using namespace starling;
using namespace starling::test;

namespace {

/// What `action` prints on stdout.
template <class Action>
std::string printed_by(Action&& action) {
  const Folder folder;
  {
    const Caught caught(stdout, folder / "out");
    action();
  }
  return folder.read("out");
}

/// The exit status of a child that catches signals, gets `signals` and then ends with 7 if a stop
/// was asked for, else 8.
int status_after(const std::vector<int>& signals, int pause_ms = 900,
                 AtStopSignal first = AtStopSignal::kNote) {
  const pid_t child = ::fork();
  if (child == 0) {
    install_stop_signals();
    request_stop(false);
    at_stop_signal(first);
    for (const int signal : signals) {
      ::kill(::getpid(), signal);
      // a second one of a kind must not meet the first still pending
      std::this_thread::sleep_for(std::chrono::milliseconds(pause_ms));
    }
    for (int i = 0; i < 100 && !signals.empty() && !stop_requested(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    ::_exit(stop_requested() ? 7 : 8);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

MetricsLine line_of(std::int64_t step, double epoch, double loss, double lr, double rate) {
  MetricsLine line{.step = step, .epoch = epoch};
  line.loss = loss;
  line.lr = lr;
  line.samples_per_second = rate;
  return line;
}

}  // namespace

TEST_CASE("apps/progress: durations") {
  CHECK(duration_text(0.0) == "0:00");
  CHECK(duration_text(245.4) == "4:05");
  CHECK(duration_text(59.7) == "1:00");
  CHECK(duration_text(3723.0) == "1:02:03");
  CHECK(duration_text(100 * 3600.0) == "100:00:00");
  CHECK(duration_text(-1.0) == "0:00");
  CHECK(duration_text(1.0 / 0.0) == "?");
}

TEST_CASE("apps/progress: plain lines, the first and the last, where stdout is no terminal") {
  const std::string text = printed_by([] {
    Progress progress(1000, 0, false);
    for (int step = 1; step <= 1000; ++step)
      progress.update(line_of(step, step / 100.0, 2.5, 0.1, 1234.0), "img");
    progress.message("test accuracy 91.2%");
    progress.finish();
  });
  CHECK(std::count(text.begin(), text.end(), '\n') == 3);
  CHECK(contains(text, "step 1/1000 0%  epoch 0.01  loss 2.5000  lr 0.1  1234 img/s"));
  CHECK(contains(text, "left\ntest accuracy 91.2%\n"));
  CHECK(contains(text, "step 1000/1000 100%  epoch 10.00"));
  CHECK(!contains(text, "\r"));
  CHECK(!contains(text, "\x1b"));
  const std::string of_text = printed_by([] {
    MetricsLine line = line_of(1, 0.01, 2.5, 0.1, 10.0);
    line.tokens_per_second = 2560.0;
    line.model_flop_utilization = 0.4125;
    Progress(10, 0, false).update(line, "samples");
  });
  CHECK(contains(of_text, "lr 0.1  2560 tokens/s  MFU 41.2%"));
}

TEST_CASE("apps/progress: one line rewritten in place on a terminal") {
  const std::string text = printed_by([] {
    Progress progress(8, 4, true);
    progress.update(line_of(6, 1.5, 0.25, 0.01, 10.0), "img");
    progress.message("checkpoint");
    progress.update(line_of(8, 2.0, 0.125, 0.01, 10.0), "img");
    progress.finish();
  });
  CHECK(contains(text, "\r[######...] step 6/8 75%"));
  CHECK(contains(text, "\r\x1b[Kcheckpoint\n"));
  CHECK(contains(text, "[###################] step 8/8 100%"));
  CHECK(text.back() == '\n');
  CHECK(printed_by([] { Progress(10, 0, true).finish(); }) == "");
}

TEST_CASE(
    "apps/signals: the first asks for a stop, a second SIGTERM or SIGINT ends at once, and the "
    "first where nothing is to be saved") {
  CHECK(status_after({}) == 8);
  CHECK(status_after({SIGUSR1}, 300) == 7);
  CHECK(status_after({SIGUSR1, SIGUSR1}, 300) == 7);
  CHECK(status_after({SIGUSR2, SIGXCPU}, 300) == 7);
  CHECK(status_after({SIGTERM}, 300) == 7);
  CHECK(status_after({SIGINT}, 300) == 7);
  CHECK(status_after({SIGTERM, SIGUSR1}, 300) == 7);
  CHECK(status_after({SIGUSR1, SIGTERM}, 300) == 7);
  CHECK(status_after({SIGTERM, SIGTERM}) == 128 + SIGTERM);
  CHECK(status_after({SIGINT, SIGINT}) == 128 + SIGINT);
  CHECK(status_after({SIGINT, SIGTERM}) == 128 + SIGTERM);
  // passed on twice, as by a batch system and a launcher
  CHECK(status_after({SIGTERM, SIGINT}, 50) == 7);
  // Where there is nothing to save.
  CHECK(status_after({SIGUSR1}, 50, AtStopSignal::kEnd) == 128 + SIGUSR1);
  CHECK(status_after({SIGTERM}, 50, AtStopSignal::kEndAsStopped) == 75);
}

TEST_CASE("apps/signals: a request can be made and taken back") {
  request_stop(true);
  CHECK(stop_requested());
  request_stop(false);
  CHECK(!stop_requested());
}
