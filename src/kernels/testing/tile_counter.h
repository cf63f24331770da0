// Counts the tile instructions that the calling thread runs on a machine that has them: the trap
// flag stops after every instruction, and a handler looks at the next one. Slow, about a
// microsecond an instruction.
#pragma once

#include <csignal>

namespace sixfold::testing {

// From its making to Stop. Test only: installs a process-wide handler of SIGTRAP. One at a time.
class TileCounter {
 public:
  TileCounter();
  ~TileCounter();
  TileCounter(const TileCounter&) = delete;
  TileCounter& operator=(const TileCounter&) = delete;

  // Instructions so far. Once.
  long Stop();

 private:
  struct sigaction previous_;
};

}  // namespace sixfold::testing
