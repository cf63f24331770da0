#include "apps/interrupt.h"

#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>

namespace sixfold::apps {
namespace {

sigset_t OnlyInterrupt() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

InterruptWatch::InterruptWatch() {
  const sigset_t set = OnlyInterrupt();
  if (::pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0)
    fd_ = ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

InterruptWatch::~InterruptWatch() {
  if (fd_ >= 0) ::close(fd_);
  const sigset_t set = OnlyInterrupt();
  ::pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

bool InterruptWatch::Take() {
  bool taken = false;
  signalfd_siginfo info;
  while (fd_ >= 0 && ::read(fd_, &info, sizeof info) == sizeof info) taken = true;
  return taken;
}

InterruptWatch::Event InterruptWatch::WaitForInput(std::chrono::milliseconds longest) {
  pollfd waits[2] = {{STDIN_FILENO, POLLIN, 0}, {fd_, POLLIN, 0}};
  while (true) {
    const int ready = ::poll(waits, fd_ >= 0 ? 2 : 1, static_cast<int>(longest.count()));
    if (ready < 0 && errno == EINTR) continue;
    if (fd_ >= 0 && (waits[1].revents & POLLIN) != 0 && Take()) return Event::kInterrupt;
    return ready == 0 ? Event::kNothing : Event::kInput;
  }
}

}  // namespace sixfold::apps
