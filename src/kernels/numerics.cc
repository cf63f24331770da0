#include "kernels/numerics.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <xmmintrin.h>

#include <array>
#include <utility>

namespace sixfold {

namespace {

constexpr std::array<std::pair<Isa, std::string_view>, 4> kIsaNames = {
    {{Isa::kScalar, "scalar"}, {Isa::kAvx2, "avx2"}, {Isa::kAvx512, "avx512"}, {Isa::kAmx, "amx"}}};

struct CpuidRegs {
  unsigned a = 0, b = 0, c = 0, d = 0;
};

CpuidRegs Cpuid(unsigned leaf, unsigned subleaf) {
  CpuidRegs r;
  if (__get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d) == 0) return {};
  return r;
}

bool Has(unsigned reg, std::initializer_list<int> bits) {
  for (int bit : bits) {
    if ((reg >> bit & 1) == 0) return false;
  }
  return true;
}

// Register state that the kernel saves: XCR0. Written out because the intrinsic needs -mxsave.
uint64_t SavedState() {
  unsigned lo, hi;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return uint64_t{hi} << 32 | lo;
}

// Linux gives a process the tile registers only when it asks: arch_prctl(ARCH_REQ_XCOMP_PERM,
// XFEATURE_XTILEDATA).
bool TilesPermitted() {
  constexpr int kArchReqXcompPerm = 0x1023;
  constexpr int kXfeatureXtiledata = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

}  // namespace

std::string_view NameOf(Isa isa) { return kIsaNames[static_cast<size_t>(isa)].second; }

std::optional<Isa> IsaFromName(std::string_view name) {
  for (const auto& [isa, isa_name] : kIsaNames) {
    if (isa_name == name) return isa;
  }
  return std::nullopt;
}

Isa DetectIsa() {
  const CpuidRegs one = Cpuid(1, 0);
  const CpuidRegs seven = Cpuid(7, 0);
  constexpr int kFma = 12, kOsxsave = 27, kAvx = 28, kF16c = 29;  // leaf 1, ecx
  if (!Has(one.c, {kFma, kOsxsave, kAvx, kF16c})) return Isa::kScalar;
  const uint64_t state = SavedState();
  constexpr uint64_t kYmm = 0x6, kZmm = 0xe0, kTiles = 0x60000;
  constexpr int kAvx2Bit = 5;  // leaf 7, ebx
  if ((state & kYmm) != kYmm || !Has(seven.b, {kAvx2Bit})) return Isa::kScalar;
  constexpr int kF = 16, kDq = 17, kBw = 30, kVl = 31;  // leaf 7, ebx
  if ((state & kZmm) != kZmm || !Has(seven.b, {kF, kDq, kBw, kVl})) return Isa::kAvx2;
  constexpr int kAmxBf16 = 22, kAmxTile = 24;  // leaf 7, edx
  if ((state & kTiles) != kTiles || !Has(seven.d, {kAmxBf16, kAmxTile}) || !TilesPermitted())
    return Isa::kAvx512;
  return Isa::kAmx;
}

std::string_view NameOf(ActDType dtype) {
  switch (dtype) {
    case ActDType::kF32: return "f32";
    case ActDType::kBF16: return "bf16";
    case ActDType::kInt8: return "int8";
  }
  return "?";
}

void SetFloatMode() {
  constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
  _mm_setcsr(_mm_getcsr() | kFlushToZero | kDenormalsAreZero);
}

}  // namespace sixfold
