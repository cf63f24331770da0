#include "kernels/testing/tile_counter.h"

#include <ucontext.h>

#include <cstdint>

#include "base/check.h"

namespace sixfold::testing {
namespace {

constexpr greg_t kTrapFlag = 0x100;

// Of the one counter, for its handler.
volatile std::sig_atomic_t stepping = 0;
volatile long count = 0;

// Three-byte VEX, map 0F38, W0, L0, and an opcode of tiles: configuration and zeros, loads and
// stores, products.
bool IsTileInstruction(const uint8_t* code) {
  if (code[0] != 0xc4 || (code[1] & 31) != 2 || (code[2] & 0x84) != 0) return false;
  return code[3] == 0x49 || code[3] == 0x4b || code[3] == 0x5c || code[3] == 0x5e;
}

void OnTrap(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (stepping == 0) {
    registers[REG_EFL] &= ~kTrapFlag;
    return;
  }
  registers[REG_EFL] |= kTrapFlag;
  if (IsTileInstruction(reinterpret_cast<const uint8_t*>(registers[REG_RIP]))) count = count + 1;
}

}  // namespace

TileCounter::TileCounter() {
  struct sigaction action {};
  action.sa_sigaction = OnTrap;
  action.sa_flags = SA_SIGINFO;
  SF_CHECK_EQ(sigaction(SIGTRAP, &action, &previous_), 0);
  count = 0;
  stepping = 1;
  raise(SIGTRAP);  // the handler sets the flag
}

TileCounter::~TileCounter() {
  Stop();
  sigaction(SIGTRAP, &previous_, nullptr);
}

long TileCounter::Stop() {
  stepping = 0;  // the next trap is the last
  return count;
}

}  // namespace sixfold::testing
