// Ctrl-C as an event that is asked for, not a signal handler.
#pragma once

#include <chrono>

#include "base/status.h"

namespace sixfold::apps {

// While it lives SIGINT is blocked in this thread and in those that it starts, and waits in a file
// descriptor. Make it before any other thread. Thread rule: one thread.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  // Whether Ctrl-C was pressed since the last call.
  bool Take();

  enum class Event { kInput, kInterrupt, kNothing };
  // Waits until stdin has something to read (or ended), Ctrl-C is pressed, which it takes, or
  // `longest` has passed; a negative `longest` is for ever.
  Event WaitForInput(std::chrono::milliseconds longest = std::chrono::milliseconds(-1));

 private:
  int fd_ = -1;
};

}  // namespace sixfold::apps
