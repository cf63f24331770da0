#include "kernels/testing/amx_emulator.h"

#include <ucontext.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "kernels/numerics.h"
#include "kernels/x86/target.h"

namespace sixfold::testing {

namespace {

constexpr int kTiles = 8;
constexpr int kRowBytes = 64;

struct TileFile {
  uint8_t config[64];
  uint8_t data[kTiles][16 * kRowBytes];
  long count;

  int rows(int t) const { return config[48 + t]; }
  int row_bytes(int t) const { return config[16 + 2 * t] | config[17 + 2 * t] << 8; }
  uint8_t* row(int t, int r) { return data[t] + r * kRowBytes; }
};

// The architecture's state belongs to a thread; so does this copy.
thread_local TileFile tiles;

enum class Prefix : uint8_t { kNone = 0, k66 = 1, kF3 = 2, kF2 = 3 };

struct Instruction {
  Prefix prefix;
  uint8_t opcode;
  int reg, rm, third;  // register fields; third is vvvv
  bool memory;
  uintptr_t address;  // without the row stride
  intptr_t stride;    // the index register, for tile loads and stores
  int length;
};

// General registers of the context in the order of their numbers.
greg_t Register(const ucontext_t& context, int number) {
  constexpr int kOrder[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                              REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                              REG_R12, REG_R13, REG_R14, REG_R15};
  return context.uc_mcontext.gregs[kOrder[number]];
}

int32_t Load32(const uint8_t* p) {
  int32_t v;
  std::memcpy(&v, p, 4);
  return v;
}

// Reads modrm, sib and displacement at p; returns what follows them.
const uint8_t* DecodeMemory(const ucontext_t& context, const uint8_t* p, int rex_b, int rex_x,
                            Instruction* out) {
  const int mod = *p >> 6;
  const int rm = *p++ & 7;
  int64_t address = 0;
  bool no_base = false;
  if (rm == 4) {
    const int scale = *p >> 6;
    const int index = (*p >> 3 & 7) | rex_x << 3;
    const int base = (*p++ & 7);
    if (index != 4) out->stride = static_cast<intptr_t>(Register(context, index)) << scale;
    no_base = base == 5 && mod == 0;
    if (!no_base) address = Register(context, base | rex_b << 3);
  } else if (rm == 5 && mod == 0) {
    // Relative to the end of the instruction; no immediate follows in any tile instruction.
    out->address = reinterpret_cast<uintptr_t>(p) + 4 + static_cast<uintptr_t>(int64_t{Load32(p)});
    return p + 4;
  } else {
    address = Register(context, rm | rex_b << 3);
  }
  if (mod == 1) address += static_cast<int8_t>(*p++);
  if (mod == 2 || no_base) {
    address += Load32(p);
    p += 4;
  }
  out->address = static_cast<uintptr_t>(address);
  return p;
}

// Three-byte VEX, map 0F38, W0, L0: all tile instructions.
bool Decode(const ucontext_t& context, const uint8_t* code, Instruction* out) {
  if (code[0] != 0xc4 || (code[1] & 31) != 2 || (code[2] & 0x84) != 0) return false;
  const int rex_x = (code[1] >> 6 & 1) ^ 1;
  const int rex_b = (code[1] >> 5 & 1) ^ 1;
  *out = {};
  out->prefix = static_cast<Prefix>(code[2] & 3);
  out->third = ~(code[2] >> 3) & 15;
  out->opcode = code[3];
  const uint8_t modrm = code[4];
  out->reg = modrm >> 3 & 7;
  out->rm = modrm & 7;
  out->memory = modrm >> 6 != 3;
  const uint8_t* end = code + 5;
  if (out->memory) end = DecodeMemory(context, code + 4, rex_b, rex_x, out);
  out->length = static_cast<int>(end - code);
  return true;
}

}  // namespace
}  // namespace sixfold::testing

// The fused operations must be instructions: libm may not be entered from a signal handler in some
// builds.
SF_BEGIN_TARGET("fma")
namespace sixfold::testing {
namespace {

float FromBF16(const uint8_t* p) {
  uint32_t bits = 0;
  std::memcpy(reinterpret_cast<uint8_t*>(&bits) + 2, p, 2);
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

void Widen(int t, float (*out)[32]) {
  for (int r = 0; r < tiles.rows(t); ++r) {
    for (int i = 0; i < tiles.row_bytes(t) / 2; ++i) out[r][i] = FromBF16(tiles.row(t, r) + 2 * i);
  }
}

void DotBF16(int c, int a, int b) {
  float x[16][32], w[16][32];
  Widen(a, x);
  Widen(b, w);
  const int pairs = tiles.row_bytes(a) / 4;
  for (int m = 0; m < tiles.rows(c); ++m) {
    for (int n = 0; n < tiles.row_bytes(c) / 4; ++n) {
      float e = 0;
      float o = 0;
      for (int k = 0; k < pairs; ++k) {
        e = __builtin_fmaf(x[m][2 * k], w[k][2 * n], e);
        o = __builtin_fmaf(x[m][2 * k + 1], w[k][2 * n + 1], o);
      }
      float sum;
      uint8_t* at = tiles.row(c, m) + 4 * n;
      std::memcpy(&sum, at, 4);
      sum = sum + (e + o);
      std::memcpy(at, &sum, 4);
    }
  }
}

}  // namespace
}  // namespace sixfold::testing
SF_END_TARGET

namespace sixfold::testing {

namespace {

void DotInt8(int c, int a, int b, bool a_signed, bool b_signed) {
  const auto value = [](uint8_t byte, bool is_signed) {
    return is_signed ? int{static_cast<int8_t>(byte)} : int{byte};
  };
  for (int m = 0; m < tiles.rows(c); ++m) {
    for (int n = 0; n < tiles.row_bytes(c) / 4; ++n) {
      uint8_t* at = tiles.row(c, m) + 4 * n;
      auto sum = static_cast<uint32_t>(Load32(at));
      for (int k = 0; k < tiles.row_bytes(a); ++k) {
        const int product = value(tiles.row(a, m)[k], a_signed) *
                            value(tiles.row(b, k / 4)[4 * n + k % 4], b_signed);
        sum += static_cast<uint32_t>(product);
      }
      std::memcpy(at, &sum, 4);
    }
  }
}

void Configure(const Instruction& in) {
  if (in.memory && in.prefix == Prefix::kNone) {
    std::memset(tiles.data, 0, sizeof(tiles.data));
    std::memcpy(tiles.config, reinterpret_cast<const void*>(in.address), sizeof(tiles.config));
  } else if (in.memory) {
    std::memcpy(reinterpret_cast<void*>(in.address), tiles.config, sizeof(tiles.config));
  } else if (in.prefix == Prefix::kNone) {
    std::memset(&tiles.config, 0, sizeof(tiles.config));  // TILERELEASE
  } else {
    std::memset(tiles.data[in.reg], 0, sizeof(tiles.data[0]));  // TILEZERO
  }
}

void LoadTile(const Instruction& in) {
  std::memset(tiles.data[in.reg], 0, sizeof(tiles.data[0]));
  for (int r = 0; r < tiles.rows(in.reg); ++r) {
    std::memcpy(tiles.row(in.reg, r),
                reinterpret_cast<const void*>(in.address + static_cast<uintptr_t>(r * in.stride)),
                static_cast<size_t>(tiles.row_bytes(in.reg)));
  }
}

void StoreTile(const Instruction& in) {
  for (int r = 0; r < tiles.rows(in.reg); ++r) {
    std::memcpy(reinterpret_cast<void*>(in.address + static_cast<uintptr_t>(r * in.stride)),
                tiles.row(in.reg, r), static_cast<size_t>(tiles.row_bytes(in.reg)));
  }
}

// A use of tiles that the processor would refuse: no configuration, or shapes that do not fit
// together.
bool ShapesFit(int c, int a, int b) {
  return tiles.rows(c) > 0 && tiles.rows(a) == tiles.rows(c) &&
         tiles.row_bytes(b) == tiles.row_bytes(c) && tiles.row_bytes(a) == tiles.rows(b) * 4;
}

bool Execute(const Instruction& in) {
  const bool configured = tiles.config[0] == 1;
  switch (in.opcode) {
    case 0x49:
      if (!in.memory && in.prefix == Prefix::kF2 && !configured) return false;
      Configure(in);
      return true;
    case 0x4b:
      if (!configured || tiles.rows(in.reg) == 0) return false;
      in.prefix == Prefix::kF3 ? StoreTile(in) : LoadTile(in);
      return true;
    case 0x5c:
      if (in.prefix != Prefix::kF3 || !configured || !ShapesFit(in.reg, in.rm, in.third))
        return false;
      DotBF16(in.reg, in.rm, in.third);
      return true;
    case 0x5e:
      if (!configured || !ShapesFit(in.reg, in.rm, in.third)) return false;
      DotInt8(in.reg, in.rm, in.third, in.prefix == Prefix::kF2 || in.prefix == Prefix::kF3,
              in.prefix == Prefix::kF2 || in.prefix == Prefix::k66);
      return true;
    default: return false;
  }
}

void OnIllegalInstruction(int signal, siginfo_t*, void* raw_context) {
  auto& context = *static_cast<ucontext_t*>(raw_context);
  auto& ip = context.uc_mcontext.gregs[REG_RIP];
  // The kernel starts a handler with default float modes and restores the program's own at its end.
  SetFloatMode();
  Instruction in;
  if (Decode(context, reinterpret_cast<const uint8_t*>(ip), &in) && Execute(in)) {
    ip += in.length;
    ++tiles.count;
    return;
  }
  std::signal(signal, SIG_DFL);  // a real illegal instruction: run into it again
}

}  // namespace

AmxEmulator::AmxEmulator() {
  struct sigaction action = {};
  action.sa_sigaction = OnIllegalInstruction;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  if (sigaction(SIGILL, &action, &previous_) != 0) std::abort();
}

AmxEmulator::~AmxEmulator() { sigaction(SIGILL, &previous_, nullptr); }

long AmxEmulator::CountInThisThread() { return tiles.count; }

}  // namespace sixfold::testing
