// Runs the tile instructions of a machine that has none: a handler of SIGILL decodes LDTILECFG,
// STTILECFG, TILERELEASE, TILEZERO, TILELOADD(T1), TILESTORED, TDPBF16PS and TDPB{SS,SU,US,UU}D and
// does their work in software, in the documented order (Intel SDM volume 2: fused products of even
// and odd pairs from zero, then c + (e + o), denormals flushed). So tests run the very instructions
// of the AMX path on any AVX-512 machine.
#pragma once

#include <csignal>

namespace sixfold::testing {

// While one lives, tile instructions of every thread are emulated; each thread has its own tiles.
// Not for use where the machine has tiles (nothing traps there), nor for two at once. Test only:
// installs a process-wide handler.
class AmxEmulator {
 public:
  AmxEmulator();
  ~AmxEmulator();
  AmxEmulator(const AmxEmulator&) = delete;
  AmxEmulator& operator=(const AmxEmulator&) = delete;

  // Instructions emulated in the calling thread so far.
  static long CountInThisThread();

 private:
  struct sigaction previous_;
};

}  // namespace sixfold::testing
