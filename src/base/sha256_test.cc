#include "base/sha256.h"

#include <gtest/gtest.h>

namespace sixfold {
namespace {

// The examples of FIPS 180-4 (SHA_All.pdf of NIST).
TEST(Sha256, AgreesWithTheStandard) {
  Sha256 sha;
  EXPECT_EQ(HexText(sha.Finish()),
            "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(HexText(sha.Add("abc").Finish()),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(
      HexText(sha.Add("abcdbcdecdefdefgefghfghighijhijk").Add("ijkljklmklmnlmnomnopnopq").Finish()),
      "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  for (int i = 0; i < 1000; ++i) sha.Add(std::string(1000, 'a'));
  EXPECT_EQ(HexText(sha.Finish()),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, SizedTextsCannotTradeBytes) {
  Sha256 sha;
  EXPECT_NE(sha.AddSized("ab").AddSized("c").Finish(), sha.AddSized("a").AddSized("bc").Finish());
  EXPECT_EQ(sha.AddSized("ab").Finish(), sha.Add(uint64_t{2}).Add("ab").Finish());
  EXPECT_EQ(sha.Add(uint64_t{0x0201}).Finish(),
            sha.Add(std::string_view("\1\2\0\0\0\0\0\0", 8)).Finish());
}

}  // namespace
}  // namespace sixfold
